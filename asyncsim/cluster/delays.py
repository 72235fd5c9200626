"""Delays on top of the step times, as experiments inject them: before a step's gradient its worker sleeps.

A trace shows them as a part of computing.
"""

from __future__ import annotations

import functools
import itertools
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

import numpy as np
from msgspec import Meta

from asyncsim.cluster.step_times import BLOCK, Place, StepTime
from asyncsim.errors import InputError, within
from asyncsim.records import Count, Family, Probability, checked, register
from asyncsim.streams import Purpose, generator
from asyncsim.workload import Workload


class Delay(Family):
    """Who is late, when, and by how many ``seconds`` (a step-time model; a number is a constant).

    A new one is a record with the field ``seconds`` and the methods ``late`` and ``share``. Delays of a cluster are
    numbered: ``number`` keeps the draws of two alike apart.
    """

    family = "delay model"
    seconds: StepTime

    @abstractmethod
    def late(self, place: Place, number: int, num_workers: int) -> Iterator[list[bool]] | None:
        """For one worker, block after block of steps, whether it is late at each; None if it never is."""

    @abstractmethod
    def share(self, num_workers: int) -> float:
        """The share of all workers' steps that are late."""

    def check(self, num_workers: int) -> None:
        """Raise InputError if the delay does not fit so many workers."""
        return

    def stream(self, place: Place, number: int, num_workers: int) -> Iterator[float] | None:
        """The delay of each of a worker's steps in seconds, without end, as Python floats; None if it has none."""
        late = self.late(place, number, num_workers)
        if late is None:
            return None
        rng = generator(place.seed, Purpose.DELAY_SECONDS, number, place.worker)
        return _delays(late, self.seconds.stream(rng, place._replace(position=place.worker)))

    def mean_seconds(self, num_workers: int) -> float:
        """The mean delay of a step in seconds, over all workers."""
        return self.share(num_workers) * self.seconds.mean_seconds

    def for_workload(self, workload: Workload) -> Delay:
        """The same with what depends on the work of a step filled in."""
        seconds = within("seconds", self.seconds.for_workload, workload)
        return replace(self, seconds=seconds) if seconds is not self.seconds else self  # type: ignore[type-var]


def _delays(late: Iterator[list[bool]], seconds: Iterator[float]) -> Iterator[float]:
    for block in late:
        for now in block:
            yield next(seconds) if now else 0.0


@register("fixed")
@checked
class FixedDelays(Delay):
    """Always the same workers: those of these numbers (from 0, over the whole cluster) are late at every step."""

    workers: tuple[Annotated[int, Meta(ge=0)], ...]
    seconds: StepTime

    def check(self, num_workers: int) -> None:
        for k, worker in enumerate(self.workers):
            if worker >= num_workers:
                raise InputError(f"the workers are 0 to {num_workers - 1}, not {worker}", f"workers[{k}]")
        if len(set(self.workers)) < len(self.workers):
            raise InputError("names a worker twice", "workers")

    def late(self, place: Place, number: int, num_workers: int) -> Iterator[list[bool]] | None:
        return _always() if place.worker in self.workers else None

    def share(self, num_workers: int) -> float:
        return len(self.workers) / num_workers


def _always() -> Iterator[list[bool]]:
    while True:
        yield [True] * BLOCK


@register("drawn")
@checked
class DrawnDelays(Delay):
    """At each step number, ``count`` different workers drawn at random: in everybody's k-th step so many are late.

    The draw belongs to the number of the step, not to the time, as when every process of a job draws from the same
    seed: asynchronous workers come to their k-th steps at different times.
    """

    count: Count
    seconds: StepTime

    def check(self, num_workers: int) -> None:
        if self.count > num_workers:
            raise InputError(f"expected at most the number of workers, {num_workers}, got {self.count}", "count")

    def late(self, place: Place, number: int, num_workers: int) -> Iterator[list[bool]]:
        # few steps at a time where many workers are late, so that a block stays small
        steps, block = max(1, min(BLOCK, 2**18 // self.count)), 0
        while True:
            whose, when = _drawn(place.seed, number, num_workers, self.count, steps, block)
            first, last = np.searchsorted(whose, [place.worker, place.worker + 1])
            late = np.zeros(steps, bool)
            late[when[first:last]] = True
            yield late.tolist()
            block += 1

    def share(self, num_workers: int) -> float:
        return self.count / num_workers


@functools.lru_cache(maxsize=32)
def _drawn(
    seed: int, number: int, num_workers: int, count: int, steps: int, block: int
) -> tuple[np.ndarray, np.ndarray]:
    """Who is late in a block of steps, in ascending order, and at which of the steps; drawn once for all workers."""
    rng = generator(seed, Purpose.DELAYED, number, block)
    draws = [rng.choice(num_workers, count, replace=False, shuffle=False) for _ in range(steps)]
    workers = np.concatenate(draws).astype(np.int32)
    order = np.argsort(workers, kind="stable").astype(np.int32)
    return workers[order], order // count


@register("independent")
@checked
class IndependentDelays(Delay):
    """Each step of each worker is late with this ``probability``, independently of all others.

    So are the delays of WAGMA-SGD's released code, which are described as two of P processes a step: every process
    tests ``rank == randint(P) or rank == randint(P)`` by itself, with probability 1 - (1 - 1/P)^2; 1.98 of 64 are late
    on average, none in 13 % of steps if all is independent. For exactly two see ``drawn``.
    """

    probability: Probability
    seconds: StepTime

    def late(self, place: Place, number: int, num_workers: int) -> Iterator[list[bool]]:
        rng = generator(place.seed, Purpose.DELAYED, number, place.worker)
        while True:
            yield (rng.random(BLOCK) < self.probability).tolist()

    def share(self, num_workers: int) -> float:
        return self.probability


@register("bursts")
@checked
class Bursts(Delay):
    """Delays that come together: how many workers are late differs from step number to step number, for all alike.

    At each step number a probability is drawn from a beta distribution with mean ``probability`` and first parameter
    ``concentration``; then each worker is late with it, independently. The smaller the concentration, the more the late
    ones come at the same steps: towards 0 all are late, or nobody; towards infinity it is ``independent``.
    """

    probability: Annotated[float, Meta(gt=0, lt=1)]
    concentration: Annotated[float, Meta(ge=1e-6, le=1e9)]
    seconds: StepTime

    def late(self, place: Place, number: int, num_workers: int) -> Iterator[list[bool]]:
        rng = generator(place.seed, Purpose.DELAYED, number, place.worker + 1)
        mean, first = self.probability, self.concentration
        for block in itertools.count():
            together = generator(place.seed, Purpose.DELAYED, number, 0, block)
            yield (rng.random(BLOCK) < together.beta(first, first * (1 - mean) / mean, BLOCK)).tolist()

    def share(self, num_workers: int) -> float:
        return self.probability
