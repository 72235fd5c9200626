"""Stochastic gradient push: averaging over directed links, on which mass may be under way."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from asyncsim.algorithms.averaging import Averaging
from asyncsim.algorithms.base import Context, Message, State, algorithm
from asyncsim.records import register
from asyncsim.trace import Trace


@register("sgp")
@algorithm
class SGP(Averaging):
    """Push-sum with local momentum SGD (Assran et al., ICML 2019).

        z = x / w, where gradients are taken;  v = gamma v + d;  x = x - eta v
        publish: the message is (x, w); of its own (x, w) the worker keeps the part p = ``keep``
        merge:   (x, w) = (x, w) + take (sum of received (x, w))       (keep 1, take p)

    Weight decay acts at z. Mass (x, w) is conserved between all states and the messages under way. Peer: 2 buffers and
    a scalar, without momentum 1.
    """

    protocol = "sgp"
    takes = ("mass", "models")

    def check(self, trace: Trace) -> None:
        return  # any weights: mass is counted along

    def init(self, params: Any) -> State:
        return {**super().init(params), "weight": jnp.ones(())}

    def point(self, state: State) -> Any:
        return jax.tree.map(lambda x: x / state["weight"], state["params"])

    def outgoing(self, state: State, context: Context) -> tuple[State, Message]:
        message = {"params": state["params"], "weight": state["weight"]}
        left = jax.tree.map(lambda x: context.keep * x, message)
        return {**state, **left}, message

    def merge(self, state: State, mix: Message, context: Context) -> State:
        own = {"params": state["params"], "weight": state["weight"]}
        return {**state, **jax.tree.map(lambda x, y: context.keep * x + context.take * y, own, mix)}

    def restart(self, mix: Message) -> State:
        return self.init(jax.tree.map(lambda x: x / mix["weight"], mix["params"]))


@register("overlap_sgp")
@algorithm
class OverlapSGP(SGP):
    """Overlap-SGP: push-sum whose messages travel while the next gradient is computed (Assran et al., ICML 2019)."""

    protocol = "overlap_sgp"
