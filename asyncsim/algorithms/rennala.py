"""Rennala SGD: SGD on batches that are gathered from whoever is first."""

from __future__ import annotations

from asyncsim.algorithms.base import algorithm
from asyncsim.algorithms.sgd import ServerSGD
from asyncsim.records import register


@register("rennala")
@algorithm
class Rennala(ServerSGD):
    """Rennala SGD: one step along the mean of R gradients at the newest parameters; who sends them does not matter.

        x = x - eta (1/R) sum of g_r(x)

    Tyurin and Richtarik (Optimal time complexities of parallel stochastic optimization methods under a fixed
    computation model, NeurIPS 2023), as in the public code of k3nfalt/optimal-decentralized-optimization. R, and
    whether workers are stopped, are the protocol's: ``rennala`` (``gradients``, ``stop``). In the paper there is no
    momentum. Server: 2 buffers with the sum under way, one more with momentum.
    """

    protocol = "rennala"
