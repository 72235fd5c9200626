"""What one event does to the slices it touches: shared by both ways of replaying a trace.

Functions of one algorithm, one problem's rule, and the slices of one worker. Which slices those are, and where they are
stored, is the caller's business.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from asyncsim.algorithms import Context
from asyncsim.data.sampling import Batches
from asyncsim.errors import InputError
from asyncsim.trace import Trace
from asyncsim.vocabulary import APPLY


class Learning(NamedTuple):
    """What stays the same over a whole replay, as arguments of a compiled program."""

    algorithm: Any  # an Algorithm, every leaf an array
    train: Any  # the training samples
    key: jax.Array  # from which each row's key is folded
    num_workers: Any


FIRST_ROW = {"worker": 0, "step": 0, "draw": 0, "staleness": 0, "count": 1, "factor": 1.0}


class Setting(NamedTuple):
    """All that an engine needs to begin."""

    trace: Trace
    learning: Learning
    rule: Any  # the hashable part of the problem: loss and metrics
    params: Any  # at the start
    extra: Any
    batches: Batches
    factor: np.ndarray  # (R,) on the learning rate, by row of the trace
    cuts: list[int]  # rows of the trace that the replay will halt at, in order
    measures: bool
    statistics: str = "mean"  # whose extra: each its own ("mean" or "first" of them is evaluated), or one, "shared"

    @property
    def summed(self) -> bool:
        """Whether some update is made of several gradients, with a server."""
        trace = self.trace
        return bool(np.any((trace.verb == APPLY) & trace.accepted & ~trace.closes))

    @property
    def shares_extra(self) -> bool:
        """Whether there is one extra, and something in it, that all workers' gradients change."""
        return self.statistics == "shared" and bool(jax.tree.leaves(self.extra))

    def first_row(self) -> dict[str, Any]:
        """The columns of what is done before any row."""
        return {**FIRST_ROW, "factor": self.factor[0] if len(self.factor) else 1.0}


# which use of a row's random key: never the same key twice
GRADIENT, SEND, RECEIVE, UPDATE, VIEW, STEP, PUBLISH, MERGE, DECIDE = range(9)


def context(learning: Learning, row: dict[str, Any], use: int, **more: Any) -> Context:
    """The context of an event; ``row`` holds its columns as scalars."""
    rate = learning.algorithm.learning_rate * row["factor"]
    counts = {k: row[k] for k in ("worker", "step", "staleness")} | {"num_workers": learning.num_workers}
    counts |= {k: more.pop(k) for k in ("count",) if k in more}
    # the type of the replay: a quotient of 32-bit counts would have 32 bits in float64 too
    counts = {k: jnp.asarray(x, int) for k, x in counts.items()}
    return Context(rate, **counts, key=row_key(learning, row, use), **more)


def row_key(learning: Learning, row: dict[str, Any], use: int) -> jax.Array:
    """The random key of (seed, worker, step or count of the verb) for one use."""
    key = jax.random.fold_in(jax.random.fold_in(learning.key, row["worker"]), row["draw"])
    return jax.random.fold_in(key, use)


def gradient(rule: Any, learning: Learning, point: Any, extra: Any, row: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Batch loss, gradient and new extra at a point, on the row's mini-batch."""
    batch = jax.tree.map(lambda samples: samples[row["batch"]], learning.train)
    key = row_key(learning, row, GRADIENT)
    (loss, new), g = jax.value_and_grad(rule.loss, has_aux=True)(point, extra, batch, key)
    return loss, g, same_types(extra, new, "the problem's loss")


def send(learning: Learning, own: Any, g: Any, row: dict[str, Any], sent: Any) -> tuple[Any, Any, Any]:
    """A server method's worker takes its gradient: what it keeps after ``local``, then after ``outgoing``, and the
    message."""
    at = context(learning, row, SEND, count=row["count"], sent=sent)
    stays = same_types(own, learning.algorithm.local(own, g, at), named(learning.algorithm, "local"))
    maker = named(learning.algorithm, "outgoing")
    left, message = two(learning.algorithm.outgoing(stays, g, at), maker)
    return stays, same_types(own, left, maker), message


def receive(learning: Learning, state: Any, kept: Any, message: Any, row: dict[str, Any], sent: Any) -> tuple[Any, Any]:
    """The server takes an arrival: what it keeps for this worker, and what goes into the update."""
    at = context(learning, row, RECEIVE, count=row["count"], sent=sent)
    maker = named(learning.algorithm, "receive")
    new, message = two(learning.algorithm.receive(state, kept, message, at), maker)
    # the update is summed in the precision of the replay, whatever the message travelled in
    message = jax.tree.map(lambda m: jnp.asarray(m, jnp.result_type(m, jnp.zeros(()).dtype)), message)
    return same_types(kept, new, maker), message


def contribution(learning: Learning, state: Any, own: Any, kept: Any, row: dict[str, Any]) -> Any:
    """An example of what one arrival adds to an update: for its shapes."""
    sent = view(learning, state, row)
    _, _, message = send(learning, own, learning.algorithm.point(own, sent), row, sent)
    return receive(learning, state, kept, message, row, sent)[1]


def update(learning: Learning, state: Any, total: Any, row: dict[str, Any], sent: Any) -> Any:
    """The server makes an update."""
    at = context(learning, row, UPDATE, count=row["count"], sent=sent)
    return same_types(state, learning.algorithm.apply(state, total, at), named(learning.algorithm, "apply"))


def view(learning: Learning, state: Any, row: dict[str, Any]) -> Any:
    """What readers of the version that the row made are sent."""
    return learning.algorithm.view(state, context(learning, row, VIEW, count=row["count"]))


def step(learning: Learning, state: Any, g: Any, row: dict[str, Any]) -> Any:
    """A peer takes its gradient."""
    new = learning.algorithm.local(state, g, context(learning, row, STEP))
    return same_types(state, new, named(learning.algorithm, "local"))


def publish(learning: Learning, state: Any, row: dict[str, Any], keep: Any) -> tuple[Any, Any]:
    """A peer puts out a message: its state after that, and the message."""
    maker = named(learning.algorithm, "outgoing")
    left, message = two(learning.algorithm.outgoing(state, context(learning, row, PUBLISH, keep=keep)), maker)
    return same_types(state, left, maker), message


def merge(learning: Learning, state: Any, mix: Any, row: dict[str, Any], **weights: Any) -> Any:
    """A peer takes in a mix; weights: keep, take, included."""
    new = learning.algorithm.merge(state, mix, context(learning, row, MERGE, **weights))
    return same_types(state, new, named(learning.algorithm, "merge"))


def decide(learning: Learning, state: Any, row: dict[str, Any]) -> Any:
    """What a steered protocol is told."""
    return learning.algorithm.decide(state, context(learning, row, DECIDE))


def restart(learning: Learning, state: Any, mix: Any) -> Any:
    """A peer starts afresh from a mix."""
    return same_types(state, learning.algorithm.restart(mix), named(learning.algorithm, "restart"))


def named(algorithm: Any, method: str) -> str:
    """``ASGD.apply``, for messages."""
    return f"{type(algorithm).__name__}.{method}"


def same_types(old: Any, new: Any, maker: str = "") -> Any:
    """A state keeps the types of its arrays, whatever the arithmetic promoted them to; its shape it must keep itself.

    ``maker`` names the method that made it, for the message.
    """
    if jax.tree.structure(old) != jax.tree.structure(new):  # type: ignore[operator]
        before, after = (
            [jax.tree_util.keystr(path) or "the whole" for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
            for tree in (old, new)
        )
        lost, added = (", ".join(p for p in x if p not in y) for x, y in ((before, after), (after, before)))
        parts = [f"{word} {names}" for word, names in (("without", lost), ("with", added)) if names]
        raise InputError(f"{maker} gives another structure than it got: {', '.join(parts) or 'of other containers'}")
    for a, b in zip(jax.tree.leaves(old), jax.tree.leaves(new), strict=True):
        if jnp.shape(a) != jnp.shape(b):
            raise InputError(f"{maker} gives an array of shape {jnp.shape(b)} in place of {jnp.shape(a)}")
    return jax.tree.map(lambda a, b: jnp.asarray(b, jnp.asarray(a).dtype), old, new)


def two(value: Any, maker: str) -> Any:
    """The two things that a method returns, as the contract says."""
    if not isinstance(value, tuple) or len(value) != 2:
        raise InputError(f"{maker} returns {type(value).__name__}; it should return a pair, as the contract says")
    return value


def weighted_sum(messages: tuple[Any, ...], weights: Any) -> Any:
    """The sum of weights[k] x messages[k]."""
    return jax.tree.map(lambda *leaves: sum(w * x for w, x in zip(weights, leaves, strict=True)), *messages)


def evaluated_extra(statistics: str, extras: Any) -> Any:
    """Of what the workers' models keep besides parameters, stacked along axis 0, what an evaluation takes."""
    if statistics == "mean":
        return jax.tree.map(lambda x: jnp.mean(x, 0).astype(x.dtype), extras)
    return jax.tree.map(lambda x: x[0], extras)  # worker 0's, or the only one
