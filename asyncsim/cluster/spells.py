"""Workers that are slow for a while, then fast again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Annotated

import numpy as np
from msgspec import Meta

from asyncsim.cluster.step_times import Place, StepTime
from asyncsim.errors import within
from asyncsim.records import checked, register
from asyncsim.workload import Workload

Steps = Annotated[float, Meta(ge=1, le=1e9)]


@register("markov")
@checked
class Markov(StepTime):
    """Fast and slow spells: a hidden two-state Markov chain that moves once a step.

    A spell lasts a geometric number of steps, ``fast_steps`` or ``slow_steps`` on average, in which the times come from
    ``fast`` or ``slow``. A worker starts in the stationary state: slow with probability slow_steps / (fast_steps +
    slow_steps). Successive times are correlated, which independent draws never are: a shared host, a thermal limit.
    Two ``cvb`` models are of one machine: as fast in the one as in the other, for its kind.
    """

    fast: StepTime
    slow: StepTime
    fast_steps: Steps
    slow_steps: Steps

    def stream(self, rng: np.random.Generator, place: Place) -> Iterator[float]:
        spells, *parts = rng.spawn(3)  # so that the length of a spell leaves the times as they were
        fast, slow = (model.stream(part, place) for model, part in zip((self.fast, self.slow), parts, strict=True))
        # the rest of a geometric spell is as long as a new one
        if spells.random() < self._slow_share:
            yield from islice(slow, int(spells.geometric(1 / self.slow_steps)))
        while True:
            yield from islice(fast, int(spells.geometric(1 / self.fast_steps)))
            yield from islice(slow, int(spells.geometric(1 / self.slow_steps)))

    @property
    def _slow_share(self) -> float:
        return self.slow_steps / (self.fast_steps + self.slow_steps)

    @property
    def mean_seconds(self) -> float:
        return self.fast.mean_seconds + self._slow_share * (self.slow.mean_seconds - self.fast.mean_seconds)

    def for_workload(self, workload: Workload) -> StepTime:
        fast = within("fast", self.fast.for_workload, workload)
        return replace(self, fast=fast, slow=within("slow", self.slow.for_workload, workload))

    def check(self, count: int) -> None:
        within("fast", self.fast.check, count)
        within("slow", self.slow.check, count)
