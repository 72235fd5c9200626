"""Gap-Aware: gradients are divided by the gap."""

from __future__ import annotations

from asyncsim.algorithms.base import algorithm
from asyncsim.algorithms.corrections import GapPenalty
from asyncsim.records import register


@register("gap_aware")
@algorithm
class GapAware(GapPenalty):
    """Gap-Aware: the penalised gradient goes into one momentum for all workers.

    d as in ``GapPenalty``;  v = gamma v + d;  theta = theta - eta v;  send theta. Server: N + 3 buffers (theta, v, A, N
    copies of what was sent; layer and global: N + 2). Barkai et al., ICLR 2020, arXiv 1909.10802; order of operations
    and eps from public code for pipelines (FTPipe). The forms layer and global are derived: root mean squares in place
    of elements.
    """
