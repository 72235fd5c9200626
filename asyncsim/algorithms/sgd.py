"""SGD with and without momentum: serial, asynchronous and synchronous. One rule on three protocols."""

from __future__ import annotations

from asyncsim.algorithms.base import algorithm
from asyncsim.algorithms.parts import Nesterov, ServerDescent
from asyncsim.records import register


@algorithm
class ServerSGD(Nesterov, ServerDescent):
    """``ServerDescent`` as it is: the (mean) gradient that arrives, uncorrected. Server: 2 buffers, without momentum 1;
    one more where an update is the mean of several gradients."""


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
