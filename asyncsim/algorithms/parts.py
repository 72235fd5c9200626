"""Parts that recur: published methods are compositions of these.

A step of SGD (``Descent``, ``Nesterov``), a server that takes such steps (``ServerDescent``), and small arithmetic over
trees of arrays. What a server may make of a stale gradient first is in ``corrections``.
"""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp

from asyncsim.algorithms.base import Context, Message, Params, ServerAlgorithm, State, algorithm, static
from asyncsim.errors import InputError
from asyncsim.records import Fraction, NonNegative, Positive


def zeros_like(tree: Any) -> Any:
    """A tree of zeros of the same shapes."""
    return jax.tree.map(jnp.zeros_like, tree)


def scaled(factor: Any, tree: Any) -> Any:
    """factor x tree."""
    return jax.tree.map(lambda x: factor * x, tree)


def added(tree: Any, factor: Any, other: Any) -> Any:
    """tree + factor x other."""
    return jax.tree.map(lambda x, y: x + factor * y, tree, other)


def moved(params: Any, distance: Any, direction: Any) -> Any:
    """params - distance x direction: a step, or a look ahead to where steps will lead."""
    return jax.tree.map(lambda x, v: x - distance * v, params, direction)


def averaged(average: Any, weight: Any, new: Any) -> Any:
    """A moving average: weight x average + (1 - weight) x new."""
    return jax.tree.map(lambda a, x: weight * a + (1 - weight) * x, average, new)


def squared(tree: Any) -> Any:
    """Each number times itself."""
    return jax.tree.map(lambda x: x * x, tree)


@algorithm
class Descent:
    """One step of SGD with Polyak's momentum (1964), on a state ``{"params": x, "momentum": v}`` (no v without one).

        d = g + wd z;  v = gamma v + d;  x = x - eta v

    eta is the learning rate at this clock, gamma ``momentum``, wd ``weight_decay``, z the parameters that decay.
    """

    learning_rate: Positive = 0.1
    momentum: Fraction | None = None
    weight_decay: NonNegative = 0.0

    def buffers(self, params: Any) -> dict[str, Any]:
        """The state at the start."""
        return {"params": params} if self.momentum is None else {"params": params, "momentum": zeros_like(params)}

    def decayed(self, gradient: Any, decaying: Any) -> Any:
        """d, given g and z."""
        return added(gradient, self.weight_decay, decaying)

    def accumulate(self, state: dict[str, Any], direction: Any) -> tuple[dict[str, Any], Any]:
        """The state with the new v, and the direction in which to step, given d."""
        if self.momentum is None:
            return state, direction
        velocity = added(direction, self.momentum, state["momentum"])
        return {**state, "momentum": velocity}, velocity

    def descend(self, state: dict[str, Any], direction: Any, learning_rate: Any) -> tuple[dict[str, Any], Any]:
        """The state after one step, and its direction, given d."""
        state, step = self.accumulate(state, direction)
        return {**state, "params": moved(state["params"], learning_rate, step)}, step


@algorithm
class Nesterov(Descent):
    """``Descent``, if wanted with Nesterov's momentum as Sutskever et al. write it (ICML 2013; as optax and torch do).

    v = gamma v + d;  x = x - eta (d + gamma v)   (nesterov)
    """

    nesterov: bool = static(default=False)

    def validate(self) -> None:
        if self.nesterov and self.momentum is None:
            raise InputError("needs a momentum", "nesterov")

    def accumulate(self, state: dict[str, Any], direction: Any) -> tuple[dict[str, Any], Any]:
        state, step = super().accumulate(state, direction)
        return state, added(direction, self.momentum, state["momentum"]) if self.nesterov else step


@algorithm
class ServerDescent(Descent, ServerAlgorithm):
    """A server that takes a step for each update. What is made of a stale gradient is a correction's business:

        arrival: d = g + wd z;  d = correct(d)
        update:  v = gamma v + d;  theta = theta - eta v;  the correction remembers what it needs

    theta are the server's parameters when the gradient arrives; z are these too (``decay_at`` server), or, added by the
    worker before it sends, those that it was sent (worker). Workers are sent theta, and keep nothing. An update of
    several gradients is made of their weighted sum, which is one more buffer, and one more for what a correction notes
    of each (adaptive delay compensation, a gap penalty; DANA's changes of the momenta).
    """

    decay_at: Literal["server", "worker"] = static(default="server")

    def init(self, params: Params, num_workers: int) -> State:
        buffers, notes = self.buffers(params), self.notes(params)
        both = buffers.keys() & notes.keys()
        if both:
            raise InputError(f"{type(self).__name__} keeps two things as {', '.join(sorted(both))}", "algorithm")
        return {**buffers, **notes}

    def outgoing(self, own: Any, gradient: Params, context: Context) -> tuple[Any, Message]:
        return own, gradient if self.decay_at == "server" else self.decayed(gradient, context.sent)

    def receive(self, state: State, kept: Any, message: Message, context: Context) -> tuple[Any, Message]:
        direction = message if self.decay_at == "worker" else self.decayed(message, state["params"])
        direction, noted = self.correct(state, message, direction, context)
        return kept, {"direction": direction, "noted": noted}

    def apply(self, state: State, message: Message, context: Context) -> State:
        state, step = self.descend(state, message["direction"], context.learning_rate)
        return self.remember(state, message["noted"], step, context)

    def notes(self, params: Params) -> dict[str, Any]:
        """What the correction adds to the state at the start."""
        return {}

    def correct(self, state: State, gradient: Params, direction: Params, context: Context) -> tuple[Params, Any]:
        """d corrected, given what arrived and d, and what the correction wants to know of it when the step is done."""
        return direction, ()

    def remember(self, state: State, noted: Any, step: Params, context: Context) -> State:
        """The state after the step, given what was noted (of several gradients: the weighted sum)."""
        return state


@algorithm
class MomentumEach(ServerDescent):
    """A server that steps along what arrives: each worker has a momentum, there or on the worker, which is in it."""

    momentum: Fraction = 0.9

    def buffers(self, params: Params) -> dict[str, Any]:
        return {"params": params}

    def accumulate(self, state: State, direction: Params) -> tuple[State, Params]:
        return state, direction
