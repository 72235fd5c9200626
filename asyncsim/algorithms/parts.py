"""Parts that recur: published methods are compositions of these.

A step of SGD (``Descent``, ``Nesterov``); a server that takes such steps (``ServerDescent``), and what it may make of a
stale gradient first (``DelayCompensation``, ``GapPenalty``, ``ScaledRate``); small arithmetic over trees of arrays.
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
        return {**self.buffers(params), **self.notes(params)}

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
class ScaledRate(ServerDescent):
    """A correction that scales the learning rate of a gradient, and of its weight decay, before the momentum."""

    def correct(self, state: State, gradient: Params, direction: Params, context: Context) -> tuple[Params, Any]:
        return scaled(self.scale(context), direction), ()

    def scale(self, context: Context) -> Any:
        """The factor on this gradient's learning rate."""
        raise TypeError(f"{type(self).__name__} has no scale(context)")


@algorithm
class DelayCompensation(ServerDescent):
    """A correction to first order of what the server moved while the gradient was under way (Zheng et al., ICML 2017).

        constant:  d = d + lambda d d (theta - theta_i)
        adaptive:  s = m s + (1 - m) d d;  d = d + lambda / sqrt(s + 1e-7) d d (theta - theta_i)
        absolute:  d = d + lambda |d| (theta - theta_i)

    elementwise, with d the gradient and its weight decay; theta_i is what the worker was sent, a backup of which the
    server keeps for each worker; lambda is ``compensation``, m ``square_decay``. The form absolute is what the authors'
    code does (the adaptive one at m = 0). Left out, lambda is .04 (constant) or 2 (the others).
    """

    keeps_sent = True
    compensation: NonNegative | None = None
    form: Literal["constant", "adaptive", "absolute"] = static(default="constant")
    square_decay: Fraction = 0.95

    def notes(self, params: Params) -> dict[str, Any]:
        return {"square": zeros_like(params)} if self.form == "adaptive" else {}

    def correct(self, state: State, gradient: Params, direction: Params, context: Context) -> tuple[Params, Any]:
        noted: Any = ()
        weight = jax.tree.map(jnp.abs, direction) if self.form == "absolute" else squared(direction)
        if self.form == "adaptive":
            noted = weight
            average = averaged(state["square"], self.square_decay, noted)
            weight = jax.tree.map(lambda w, s: w / jnp.sqrt(s + 1e-7), weight, average)

        usual = 0.04 if self.form == "constant" else 2.0
        strength = usual if self.compensation is None else self.compensation

        def compensated(d: jax.Array, w: jax.Array, here: jax.Array, there: jax.Array) -> jax.Array:
            return d + strength * w * (here - there)

        return jax.tree.map(compensated, direction, weight, state["params"], context.sent), noted

    def remember(self, state: State, noted: Any, step: Params, context: Context) -> State:
        if self.form != "adaptive":
            return state
        return {**state, "square": averaged(state["square"], self.square_decay, noted)}


@algorithm
class GapPenalty(ServerDescent):
    """A correction that divides a gradient by how far the server has moved since (Barkai et al., ICLR 2020).

        C = eta_max (sqrt(A / (1 - rho^n)) + eps)     the length of a usual step at the largest learning rate so far
        d = d / (1 + |theta - theta_i| / C)
        A = rho A + (1 - rho) s s                     s: the direction of the step, after it (at the start: 0)

    for the n-th update. ``granularity``: parameter (elementwise), layer (for each array the root mean squares of A and
    of the gap) or global (over all parameters). d is the gradient and its weight decay. At gamma = 0, or without a
    momentum, A averages the squares of what arrives in place of s, the present one included. theta_i is what the worker
    was sent, a copy of which the server keeps for each worker; rho is ``square_decay``, eps ``epsilon``. A parameter
    that has had no gradient has a C of next to nothing: whatever moves it then, weight decay say, is divided by the
    large penalty of its first gap.
    """

    keeps_sent = True
    granularity: Literal["parameter", "layer", "global"] = static(default="parameter")
    square_decay: Fraction = 0.999
    epsilon: Positive = 1e-8

    def notes(self, params: Params) -> dict[str, Any]:
        return {
            "square": self._pooled(zeros_like(params)),
            "count": jnp.zeros((), int),
            "largest_rate": jnp.zeros(()),
        }

    def correct(self, state: State, gradient: Params, direction: Params, context: Context) -> tuple[Params, Any]:
        noted = self._pooled(squared(gradient))
        average = self._either(averaged(state["square"], self.square_decay, noted), state["square"])
        seen = 1 - self.square_decay ** (state["count"] + 1)
        largest = jnp.maximum(state["largest_rate"], context.learning_rate)
        gap = jax.tree.map(lambda here, there: jnp.abs(here - there), state["params"], context.sent)
        if self.granularity != "parameter":
            gap = jax.tree.map(jnp.sqrt, self._pooled(squared(gap)))

        def penalty(distance: jax.Array, square: jax.Array) -> jax.Array:
            usual = largest * (jnp.sqrt(square / seen) + self.epsilon)
            return 1 + jnp.where(distance > 0, distance / jnp.where(usual > 0, usual, 1), 0)

        penalties = jax.tree.map(penalty, gap, average)
        if self.granularity == "global":
            return scaled(1 / penalties, direction), noted
        return jax.tree.map(jnp.divide, direction, penalties), noted

    def remember(self, state: State, noted: Any, step: Params, context: Context) -> State:
        square = self._either(noted, self._pooled(squared(step)))
        return {
            **state,
            "square": averaged(state["square"], self.square_decay, square),
            "count": state["count"] + 1,
            "largest_rate": jnp.maximum(state["largest_rate"], context.learning_rate),
        }

    def _either(self, plain: Any, heavy: Any) -> Any:
        """The first without momentum, the second with one."""
        if self.momentum is None:
            return plain
        return jax.tree.map(lambda a, b: jnp.where(self.momentum == 0, a, b), plain, heavy)

    def _pooled(self, squares: Params) -> Any:
        """Squares as the granularity has them: as they are, their mean for each array, or one for all."""
        if self.granularity == "parameter":
            return squares
        if self.granularity == "layer":
            return jax.tree.map(jnp.mean, squares)
        leaves = jax.tree.leaves(squares)
        return sum((jnp.sum(x) for x in leaves), jnp.zeros(())) / sum(x.size for x in leaves)
