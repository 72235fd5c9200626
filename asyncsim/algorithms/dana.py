"""DANA: a momentum for each worker, and a look ahead by all of them (Hakimi et al., arXiv 1907.11612)."""

from __future__ import annotations

from typing import Any, Literal

import jax

from asyncsim.algorithms.base import Context, Message, Params, State, algorithm, static
from asyncsim.algorithms.corrections import DelayCompensation, GapPenalty
from asyncsim.algorithms.multi_asgd import MultiASGD
from asyncsim.algorithms.parts import MomentumEach, added, moved, zeros_like
from asyncsim.records import register


@register("dana_zero")
@algorithm
class DanaZero(MultiASGD):
    """DANA-Zero: each worker's next gradient is taken where the momenta of all workers will have led.

        v_i = gamma v_i + g;  theta = theta - eta v_i;  send Theta = theta - eta gamma S,  S = sum over j of v_j

    Server: N + 2 buffers (theta, v_1 .. v_N, and S, which follows the changes of the v_i, each at the weight that its
    gradient had in the update). Hakimi et al., arXiv 1907.11612 (the formula from quotations, the order of events
    recalled; its equality with DANA-Slim is tested).
    """

    def buffers(self, params: Params) -> dict[str, Any]:
        return {"params": params, "momenta": zeros_like(params)}

    def receive(self, state: State, kept: Any, message: Message, context: Context) -> tuple[Any, Message]:
        new, message = super().receive(state, kept, message, context)
        change = jax.tree.map(lambda a, b: a - b, new["momentum"], kept["momentum"])
        return new, {**message, "change": change}

    def apply(self, state: State, message: Message, context: Context) -> State:
        state = super().apply(state, message, context)
        return {**state, "momenta": added(state["momenta"], 1, message["change"])}

    def view(self, state: State, context: Context) -> Params:
        return moved(state["params"], context.learning_rate * self.momentum, state["momenta"])


@register("dana_slim")
@algorithm
class DanaSlim(MomentumEach):
    """DANA-Slim: DANA-Zero in other variables, so that the momentum lives on the workers and the server has none.

        worker:  v_i = gamma v_i + g;  send u = gamma v_i + g
        server:  Theta = Theta - eta u;  send Theta

    At a constant learning rate Theta is what DANA-Zero sends, in any order of arrivals (none dropped, no worker started
    afresh: the worker's momentum knows of the first, and forgets at the second). Weight decay acts on the worker, at
    the parameters it was sent. Evaluated at Theta (there is no theta), and its gap is measured from there. Server: 1
    buffer; worker: 1. Hakimi et al., arXiv 1907.11612 (rule recalled).
    """

    decay_at: Literal["worker"] = static(default="worker")

    def start(self, params: Params) -> Any:
        return {"momentum": zeros_like(params)}

    def outgoing(self, own: Any, gradient: Params, context: Context) -> tuple[Any, Message]:
        _, direction = super().outgoing(own, gradient, context)
        velocity = added(direction, self.momentum, own["momentum"])
        return {"momentum": velocity}, added(direction, self.momentum, velocity)


@register("dana_dc")
@algorithm
class DanaDC(DanaZero, DelayCompensation):
    """DANA-DC: DANA-Zero of gradients that are compensated for the delay.

    d as in ``DelayCompensation``, theta_i the look ahead that the worker was sent;  v_i = gamma v_i + d;  the rest as
    in ``DanaZero``. Server: 2 N + 2 buffers (adaptive: one more). Hakimi et al., arXiv 1907.11612 (recalled, with
    lambda = 2).
    """

    usual = {"constant": 2.0, "adaptive": 2.0, "absolute": 2.0}  # noqa: RUF012


@register("dana_ga")
@algorithm
class DanaGA(DanaZero, GapPenalty):
    """DANA-Gap-Aware: DANA-Zero of gradients that are penalised by their gap.

    d as in ``GapPenalty``, theta_i the look ahead that the worker was sent, s = v_i;  v_i = gamma v_i + d;  the rest as
    in ``DanaZero``. Server: 2 N + 3 buffers. Barkai, MSc thesis, Technion (recalled; that A averages the steps of all
    workers is derived).
    """
