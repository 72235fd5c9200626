"""Local momentum SGD and averaging of models: what WAGMA-SGD, AD-PSGD, D-PSGD and local SGD do to the numbers.

These methods differ only in who waits for whom and with which weights, which is the protocol's business.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from asyncsim.algorithms.base import Context, PeerAlgorithm, State, algorithm
from asyncsim.algorithms.parts import Nesterov
from asyncsim.errors import InputError
from asyncsim.records import register
from asyncsim.trace import Trace
from asyncsim.vocabulary import MERGE, RESET, VERBS


@register("averaging")
@algorithm
class Averaging(Nesterov, PeerAlgorithm):
    """Local SGD steps with a momentum of one's own, and averages of models.

        x, v: one step of ``Descent`` or ``Nesterov``, weight decay at the worker's own model
        message: x;    merge: x = keep x + take mix

    The momentum never travels. Peer: 2 buffers, without momentum 1. The rule of local SGD (Stich, ICLR 2019), D-PSGD
    and AD-PSGD (Lian et al., NeurIPS 2017, ICML 2018) and WAGMA-SGD (Li et al., TPDS 2020).
    """

    def check(self, trace: Trace) -> None:
        merges = np.flatnonzero((trace.verb == MERGE) | (trace.verb == RESET))  # a reset keeps 0 and takes 1
        shares = np.concatenate([[0.0], np.cumsum(trace.share)])
        total = (shares[trace.mix_start[1:]] - shares[trace.mix_start[:-1]])[trace.source[merges]]
        weight = trace.keep[merges] + trace.take[merges] * total
        bad = merges[np.abs(weight - 1) > 1e-6]
        if len(bad):
            raise InputError(
                f"weighs own and received models by {weight[merges == bad[0]][0]:.6g} in all; an average needs 1 "
                "(a method for mass under way is SGP)",
                f"row {bad[0]}, {VERBS[trace.verb[bad[0]]]}",
            )

    def init(self, params: Any) -> State:
        return self.buffers(params)

    def local(self, state: State, gradient: Any, context: Context) -> State:
        return self.descend(state, self.decayed(gradient, self.point(state)), context.learning_rate)[0]
