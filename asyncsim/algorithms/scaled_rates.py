"""Asynchronous SGD whose learning rate falls with staleness: three published rules for how."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from asyncsim.algorithms.base import Context, algorithm
from asyncsim.algorithms.corrections import ScaledRate
from asyncsim.records import NonNegative, register


@register("staleness_aware")
@algorithm
class StalenessAware(ScaledRate):
    """Staleness-aware ASGD: each gradient's learning rate is divided by its staleness.

        d = g / tau (tau = 0: g);  v = gamma v + d (without momentum d);  theta = theta - eta v

    Server: 1 buffer, with momentum 2, one more where an update is the mean of several gradients (the paper's
    n-softsync). Zhang et al., IJCAI 2016, arXiv 1511.05950 (rule recalled, and read in others' code).
    """

    def scale(self, context: Context) -> Any:
        return 1 / jnp.maximum(context.staleness, 1)


@register("inverse_delay")
@algorithm
class InverseDelay(ScaledRate):
    """ASGD with its learning rate divided by the delay.

        theta = theta - eta / max(1, tau) g

    tau is ``delay``, by default N - 1: the mean staleness of N workers that are always busy. Unlike
    ``staleness_aware`` the factor is the same for all gradients. Server: 1 buffer, with momentum 2. Giladi et al., ICLR
    2020, arXiv 1909.12340: for long delays this keeps the minima that SGD can settle in (from the abstract; that they
    advise against a momentum, or for one that is shifted, is recalled).
    """

    delay: NonNegative | None = None

    def scale(self, context: Context) -> Any:
        delay = context.num_workers - 1 if self.delay is None else self.delay
        return 1 / jnp.maximum(delay, 1)


@register("delay_adaptive")
@algorithm
class DelayAdaptive(ScaledRate):
    """Delay-adaptive ASGD: the learning rate falls only where a gradient is older than N updates.

        theta = theta - eta N / max(N, tau + 1) g

    The authors' code counts updates between two gradients of one worker, which is staleness tau plus one, its own
    update included; equal workers keep the full rate. Server: 1 buffer, with momentum 2. Mishchenko et al., NeurIPS
    2022 (rule from their notebook).
    """

    def scale(self, context: Context) -> Any:
        return context.num_workers / jnp.maximum(context.num_workers, context.staleness + 1)
