"""What a server may make of a stale gradient before it goes into a step: parts of several methods."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from asyncsim.algorithms.base import Context, Params, State, algorithm, static
from asyncsim.algorithms.parts import ServerDescent, averaged, scaled, squared, zeros_like
from asyncsim.records import Fraction, NonNegative, Positive


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
    code does (the adaptive one at m = 0). Left out, lambda is the method's usual one for the form.
    """

    keeps_sent = True
    usual: ClassVar[dict[str, float]] = {"constant": 0.04, "adaptive": 2.0, "absolute": 2.0}
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

        strength = self.usual[self.form] if self.compensation is None else self.compensation

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
    of the gap) or global (over all parameters). d is the gradient and its weight decay. At gamma = 0 A averages the
    squares of what arrives in place of s, the present one included. theta_i is what the worker was sent, a copy of
    which the server keeps for each worker; rho is ``square_decay``, eps ``epsilon``. A parameter that has had no
    gradient has a C of next to nothing: whatever moves it then, weight decay say, is divided by the large penalty of
    its first gap.
    """

    keeps_sent = True
    momentum: Fraction = 0.9
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
        return jax.tree.map(lambda a, b: jnp.where(self.momentum == 0, a, b), plain, heavy)

    def _pooled(self, squares: Params) -> Any:
        """Squares as the granularity has them: as they are, their mean for each array, or one for all."""
        if self.granularity == "parameter":
            return squares
        if self.granularity == "layer":
            return jax.tree.map(jnp.mean, squares)
        leaves = jax.tree.leaves(squares)
        return sum((jnp.sum(x) for x in leaves), jnp.zeros(())) / sum(x.size for x in leaves)
