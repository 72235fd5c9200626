"""SGD with and without momentum: serial, asynchronous and synchronous. One rule on three protocols."""

from __future__ import annotations

from typing import Any

from asyncsim.algorithms.base import Context, Message, ServerAlgorithm, State, algorithm
from asyncsim.algorithms.parts import Descent
from asyncsim.records import register


@algorithm
class ServerSGD(Descent, ServerAlgorithm):
    """``Descent`` at the server, on the (mean) gradient that arrives; weight decay acts on the server's parameters when
    the update is made. Workers are sent the parameters. Server: 2 buffers, without momentum 1. Worker: none."""

    def init(self, params: Any, num_workers: int) -> State:
        return self.buffers(params)

    def apply(self, state: State, message: Message, context: Context) -> State:
        return self.descend(state, message, state["params"], context.learning_rate)


@register("sgd")
@algorithm
class SGD(ServerSGD):
    """Serial SGD on one worker, with Polyak's or Nesterov's momentum or none: the baseline of all."""

    protocol = "serial"


@register("asgd")
@algorithm
class ASGD(ServerSGD):
    """Asynchronous SGD: every stale gradient is applied as it arrives; one momentum buffer for all, or none."""

    protocol = "async"


@register("ssgd")
@algorithm
class SSGD(ServerSGD):
    """Synchronous SGD: the mean of one gradient from each worker makes an update, with momentum or without."""

    protocol = "sync"
