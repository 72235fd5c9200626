"""What an algorithm is: pure functions over pytrees, with hyper-parameters that never recompile.

An algorithm is a frozen dataclass made by ``@algorithm``: its fields are traced leaves, so that one compiled program
serves every learning rate, but for those made by ``static()``, which may steer Python code. A method of the two
contracts below that is not overridden does what most methods do. All parameters, gradients and messages are pytrees of
arrays; a state is whatever pytree the algorithm likes (a dict with a key ``"params"`` needs no ``final`` or ``point``;
what a dict calls ``"momentum"`` is measured as such).

Nothing here knows of time, slots or other workers: what is kept per worker comes and goes as that worker's slice.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np

from asyncsim.errors import InputError
from asyncsim.records import Family, Positive, checked
from asyncsim.trace import Trace
from asyncsim.vocabulary import STEP
from asyncsim.workload import Costs

Params = Any  # a pytree of arrays
State = Any
Message = Any
T = TypeVar("T")


class Context(NamedTuple):
    """What a method may want to know about the event at hand. All are scalars unless said otherwise."""

    learning_rate: Any  # the algorithm's own, times the schedule at this clock
    worker: Any  # whose event it is (of an update: who closed it)
    step: Any  # this worker's count of its gradients
    staleness: Any  # versions between read and arrival (between peers: of the own model)
    num_workers: Any = 1  # in the whole cluster
    count: Any = 1  # server: gradients in this update
    sent: Any = None  # server: the parameters (pytree) that the worker was sent for this gradient
    keep: Any = 1.0  # peers: publish: part of the mass that stays; merge: weight of the own model
    take: Any = 0.0  # peers: merge: weight of the mix
    included: Any = False  # peers: merge: whether the worker's newest message was in the mix
    key: Any = None  # a random key of this worker and step


def static(*, default: Any) -> Any:
    """A field that is no traced number: a flag or a choice. Changing it compiles anew."""
    return dataclasses.field(default=default, metadata={"static": True})


@dataclass_transform(frozen_default=True, field_specifiers=(static, dataclasses.field))
def algorithm(cls: type[T]) -> type[T]:
    """A checked, frozen dataclass, registered as a pytree of its hyper-parameters."""
    cls = checked(cls)
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    leaves = tuple(f.name for f in fields if not f.metadata.get("static"))
    fixed = tuple(f.name for f in fields if f.metadata.get("static"))

    def flatten(self: T) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
        children = [(jax.tree_util.GetAttrKey(k), getattr(self, k)) for k in leaves]
        return children, tuple(getattr(self, k) for k in fixed)

    def unflatten(aux: tuple[Any, ...], children: Any) -> T:
        self = object.__new__(cls)  # past the checks: the leaves may be tracers
        for names, values in ((leaves, children), (fixed, aux)):
            for name, value in zip(names, values, strict=True):
                object.__setattr__(self, name, value)
        return self

    jax.tree_util.register_pytree_with_keys(cls, flatten, unflatten)
    return cls


class Algorithm(Family):
    """The family of all algorithms. ``protocol`` names the one that a method runs on unless told otherwise."""

    family = "algorithm"
    kind: ClassVar[str]
    protocol: ClassVar[str]
    costs: ClassVar[Costs] = Costs()
    takes: ClassVar[tuple[str, ...]] = ()  # peers: what its messages can be: models, mass, gradients, changes
    keeps_sent: ClassVar[bool] = False  # server: uses ``context.sent``, so that it keeps a copy of it for each worker
    learning_rate: Positive  # every algorithm has one

    def check(self, trace: Trace) -> None:
        """Raise InputError if the method means nothing on this trace. Called before a replay."""
        return

    def decide(self, state: State, context: Context) -> Any:
        """One number by which a steered protocol goes on, from the state of the server, or of the peer that asks."""
        raise TypeError(f"{type(self).__name__} has no decide(state, context)")


class ServerAlgorithm(Algorithm):
    """A method with a parameter server.

    On a gradient of worker i the replay calls ``point``, takes the gradient there, then ``local`` and ``outgoing`` on
    what the worker keeps, ``receive`` on what the server keeps for this worker, and, when the update is complete,
    ``apply`` with the weighted sum of what was received. A dropped gradient goes no further than ``outgoing``, a local
    step no further than ``local``.
    """

    kind = "server"
    protocol = "async"

    def check(self, trace: Trace) -> None:
        steps = np.flatnonzero(trace.verb == STEP)
        if len(steps) and type(self).local is ServerAlgorithm.local:
            what = f"{type(self).__name__} has no local steps (no method local): this gradient would be lost"
            raise InputError(what, f"row {steps[0]}, step")

    def init(self, params: Params, num_workers: int) -> State:
        """The server's state at the start."""
        return {"params": params}

    def keep(self, params: Params) -> Any:
        """What the server keeps for each worker, at the start."""
        return ()

    def start(self, params: Params) -> Any:
        """What each worker keeps to itself, at the start and after a reset."""
        return ()

    def view(self, state: State, context: Context) -> Params:
        """What a reader of this version is sent, the same for every worker; ``context`` is of the update that made it
        (at the start: worker and step 0)."""
        return self.final(state)

    def point(self, own: Any, sent: Params) -> Params:
        """Where a worker takes its gradient."""
        return sent

    def local(self, own: Any, gradient: Params, context: Context) -> Any:
        """What the gradient does to the worker itself."""
        return own

    def outgoing(self, own: Any, gradient: Params, context: Context) -> tuple[Any, Message]:
        """What the worker sends, after ``local``."""
        return own, gradient

    def receive(self, state: State, kept: Any, message: Message, context: Context) -> tuple[Any, Message]:
        """What the server makes of one arrival, given its staleness; the sum of these is the update."""
        return kept, message

    def apply(self, state: State, message: Message, context: Context) -> State:
        """One update."""
        raise TypeError(f"{type(self).__name__} has no apply(state, message, context)")

    def final(self, state: State) -> Params:
        """The parameters that count: those evaluated."""
        return state["params"]


class PeerAlgorithm(Algorithm):
    """A method between peers, each with a state of its own.

    The replay takes a worker's gradient at the ``point`` of its state when it read, and calls ``local``; a message is
    ``outgoing``, the weighted sum of messages is merged by ``merge``.
    """

    kind = "peers"

    def init(self, params: Params) -> State:
        """A peer's state at the start."""
        return {"params": params}

    def point(self, state: State) -> Params:
        """Where the peer takes its gradient, and the model it would be judged by."""
        return state["params"]

    def local(self, state: State, gradient: Params, context: Context) -> State:
        """One local step."""
        raise TypeError(f"{type(self).__name__} has no local(state, gradient, context)")

    def outgoing(self, state: State, context: Context) -> tuple[State, Message]:
        """The message put out now, and what is left of the state."""
        return state, state["params"]

    def merge(self, state: State, mix: Message, context: Context) -> State:
        """Take in a weighted sum of messages: ``context.keep`` x own + ``context.take`` x mix."""

        def rule(own: jax.Array, mixed: jax.Array) -> jax.Array:
            return context.keep * own + context.take * mixed

        return {**state, "params": jax.tree.map(rule, state["params"], mix)}

    def restart(self, mix: Message) -> State:
        """The state of a peer that starts afresh from a weighted sum of messages."""
        return self.init(mix)

    def final(self, states: State) -> Params:
        """The parameters evaluated, from the states of all peers stacked along axis 0: the mean of their models."""
        return jax.tree.map(lambda x: jnp.mean(x, 0), jax.vmap(self.point)(states))
