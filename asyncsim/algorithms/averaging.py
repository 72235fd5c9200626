"""Local momentum SGD and averaging of models: what WAGMA-SGD, AD-PSGD, D-PSGD and local SGD do to the numbers.

These methods differ only in who waits for whom and with which weights, which is the protocol's business.
"""

from __future__ import annotations

from typing import Any, ClassVar

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
    and AD-PSGD (Lian et al., NeurIPS 2017, ICML 2018) and WAGMA-SGD (Li et al., TPDS 32(7), 2021).
    """

    takes: ClassVar[tuple[str, ...]] = ("models",)

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


@register("wagma")
@algorithm
class WAGMA(Averaging):
    """WAGMA-SGD: local momentum SGD, and averages of models in groups that wait for nobody.

    Algorithm 2 of Li et al. (TPDS 32(7), 2021): W' = W + U(g); of a worker in time W = W_sum / S, of a late one
    (W_sum + W') / (S + 1); the weights and who is late are the protocol's. In the paper a worker keeps a buffer to send
    and one to receive, and log2 S + log2 P while it does.
    """

    protocol = "wagma"


@register("local_sgd")
@algorithm
class LocalSGD(Averaging):
    """Local SGD: some steps of one's own, then the mean of all models (Stich, ICLR 2019)."""

    protocol = "local_sgd"


@register("d_psgd")
@algorithm
class DPSGD(Averaging):
    """D-PSGD: the mean with one's neighbours on a ring, then a step along the gradient at the model before it.

    x_i = mean(x_(i-1), x_i, x_(i+1)) - eta v_i,  v_i = gamma v_i + g_i(x_i). Lian et al. (NeurIPS 2017).
    """

    protocol = "d_psgd"


@register("ad_psgd")
@algorithm
class ADPSGD(Averaging):
    """AD-PSGD: pairs average while gradients are computed, which are then applied to the model as it is.

    x_i = x_i - eta v_i,  v_i = gamma v_i + g_i at an older x_i. Lian et al. (ICML 2018). A pair moves by half of the
    difference between what both sent, so that the mean of all models stays (the matrix form of the paper); released
    codes take the mean of what came and of what their own model is by then.
    """

    protocol = "ad_psgd"
