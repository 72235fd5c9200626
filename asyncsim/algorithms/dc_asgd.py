"""DC-ASGD: gradients are compensated for the delay."""

from __future__ import annotations

from asyncsim.algorithms.base import algorithm
from asyncsim.algorithms.corrections import DelayCompensation
from asyncsim.records import register


@register("dc_asgd")
@algorithm
class DCASGD(DelayCompensation):
    """Delay-compensated asynchronous SGD, with the compensation of ``DelayCompensation``.

    d as there;  v = gamma v + d (without momentum d);  theta = theta - eta v;  send theta. Server: N + 1 buffers
    (adaptive: N + 2), with momentum one more. Zheng et al., ICML 2017, arXiv 1609.08326. Order of operations and
    lambda = .04 (constant) as in MXNet, the form absolute as in the authors' Multiverso; lambda = 2 and m = .95
    (adaptive) recalled.
    """
