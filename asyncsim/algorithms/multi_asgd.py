"""Multi-ASGD: a momentum for each worker, kept at the server."""

from __future__ import annotations

from typing import Any

from asyncsim.algorithms.base import Context, Message, Params, State, algorithm
from asyncsim.algorithms.parts import MomentumEach, added, zeros_like
from asyncsim.records import register


@register("multi_asgd")
@algorithm
class MultiASGD(MomentumEach):
    """Asynchronous SGD with a momentum for each worker, without a look ahead.

        v_i = gamma v_i + g;  theta = theta - eta v_i;  send theta

    Server: N + 1 buffers. A baseline of Hakimi et al., DANA, arXiv 1907.11612 (rule recalled). With workers in turn it
    is the shifted momentum of Giladi et al., ICLR 2020 (MSGD in their code).
    """

    def keep(self, params: Params) -> Any:
        return {"momentum": zeros_like(params)}

    def receive(self, state: State, kept: Any, message: Message, context: Context) -> tuple[Any, Message]:
        _, message = super().receive(state, kept, message, context)
        velocity = added(message["direction"], self.momentum, kept["momentum"])
        return {"momentum": velocity}, {**message, "direction": velocity}
