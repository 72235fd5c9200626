"""Step times of which a part belongs to the machine: drawn once for each worker, not at every step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np
from msgspec import Meta

from asyncsim.cluster.step_times import BLOCK, Place, Seconds, StepTime, gamma_draws
from asyncsim.records import Seed, checked, register
from asyncsim.streams import Purpose, generator

# at 1 the machine's mean is exponential; beyond, some machines would take next to no time
Spread = Annotated[float, Meta(ge=0, le=1)]


@register("cvb")
@checked
class CVB(StepTime):
    """Gamma times with a coefficient of variation for tasks and one for machines (CVB: Ali et al., HCW 2000).

    With machine_cv > task_cv each worker draws its own mean once, p ~ Gamma(1/machine_cv^2, mean machine_cv^2), and
    then each step t ~ Gamma(1/task_cv^2, p task_cv^2). Otherwise both levels are drawn at every step, the task's mean
    first, and workers are alike. Either way the mean is ``mean``, and over machines and steps the squared coefficient
    of variation task_cv^2 + machine_cv^2 + task_cv^2 machine_cv^2.

    The SMEGA², Gap-Aware and DANA papers: homogeneous is ``gamma`` with cv 0.1 (one level, or machine_cv = 0 here: 0.94
    % of steps take more than 1.25 times the mean; two levels of 0.1 each would make it 4.8 %); heterogeneous is task_cv
    = 0.1, machine_cv = 0.6 (27.9 % over machines). What a heterogeneous cluster does depends strongly on the machines
    drawn: look at several. ``machine_seed`` holds them fixed while the run's seed varies, or varies them while the
    run's seed stays (left out, they follow the run's seed).
    """

    mean: Seconds
    task_cv: Spread
    machine_cv: Spread
    machine_seed: Seed | None = None

    def stream(self, rng: np.random.Generator, place: Place) -> Iterator[float]:
        if self.machine_cv > self.task_cv:
            seed = place.seed if self.machine_seed is None else self.machine_seed
            machines = generator(seed, Purpose.MACHINES, place.worker)
            p = float(gamma_draws(machines, self.mean, self.machine_cv, 1)[0])
            while True:
                yield from gamma_draws(rng, p, self.task_cv, BLOCK).tolist()
        while True:
            q = gamma_draws(rng, self.mean, self.task_cv, BLOCK)
            yield from gamma_draws(rng, q, self.machine_cv, BLOCK).tolist()

    @property
    def mean_seconds(self) -> float:
        return self.mean
