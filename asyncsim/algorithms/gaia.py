"""Gaia's significance filter: of what a site has changed, it sends what is large beside the parameter itself."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from asyncsim.algorithms.base import Context, PeerAlgorithm, State, algorithm
from asyncsim.algorithms.parts import Nesterov, moved, zeros_like
from asyncsim.records import Positive, register
from asyncsim.workload import Costs


@register("gaia")
@algorithm
class Gaia(Nesterov, PeerAlgorithm):
    """Local momentum SGD; a change travels once it is significant, and is added by all others.

        x, v: one step of ``Descent`` or ``Nesterov``;    u = u + (x_new - x)
        significant: |u| > threshold / sqrt(t) |x|, for each parameter, t being the site's own steps
        message: u where it is significant, which it then forgets;    merge: x = keep x + take message

    Gaia (Hsieh et al., NSDI 2017), recalled: a threshold of .01 at first, which falls with the square root of time. A
    site: 3 buffers, without momentum 2. A message holds an index beside each value, so one of all parameters is as
    large as two models (``costs``).
    """

    protocol = "gaia"
    takes = ("changes",)
    costs = Costs(upload=2.0)
    threshold: Positive = 0.01

    def init(self, params: Any) -> State:
        return {**self.buffers(params), "unsent": zeros_like(params)}

    def local(self, state: State, gradient: Any, context: Context) -> State:
        new, step = self.descend(state, self.decayed(gradient, self.point(state)), context.learning_rate)
        return {**new, "unsent": moved(state["unsent"], context.learning_rate, step)}

    def outgoing(self, state: State, context: Context) -> tuple[State, Any]:
        large = self._significant(state, context)
        message = jax.tree.map(lambda yes, u: jnp.where(yes, u, 0), large, state["unsent"])
        return {**state, "unsent": jax.tree.map(jnp.subtract, state["unsent"], message)}, message

    def decide(self, state: State, context: Context) -> Any:
        """The share of parameters whose change is significant."""
        large = jax.tree.leaves(self._significant(state, context))
        return sum(jnp.sum(yes) for yes in large) / sum(yes.size for yes in large)

    def _significant(self, state: State, context: Context) -> Any:
        limit = self.threshold / jnp.sqrt(jnp.maximum(context.step, 1))
        return jax.tree.map(lambda u, x: jnp.abs(u) > limit * jnp.abs(x), state["unsent"], state["params"])
