"""Which workers there are, how fast each is, and how far from the server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from asyncsim.cluster.step_times import StepTime
from asyncsim.errors import InputError
from asyncsim.records import checked
from asyncsim.streams import Purpose, generator


@checked
class Workers:
    """``count`` workers with the same step-time distribution (each draws its own times from it)."""

    step_time: StepTime
    count: Annotated[int, Meta(ge=1, le=100_000)] = 1


@checked
class Cluster:
    """Groups of workers, numbered through in order, and the latency of the network in seconds each way.

    The latency is paid by what a worker sends to the server and again by the reply; it does not depend on the size.
    """

    workers: tuple[Workers, ...]
    latency: Annotated[float, Meta(ge=0, le=1e12)] = 0.0

    def validate(self) -> None:
        if not self.workers:
            raise InputError("a cluster has at least one group of workers", "workers")

    @property
    def num_workers(self) -> int:
        return sum(group.count for group in self.workers)

    def step_time(self, worker: int) -> StepTime:
        """The step-time model of one worker."""
        for group in self.workers:
            if worker < group.count:
                return group.step_time
            worker -= group.count
        raise IndexError(f"the cluster has {self.num_workers} workers")

    def step_times(self, worker: int, seed: int) -> Iterator[float]:
        """The endless stream of one worker's step times in seconds; it depends on (seed, worker, model) alone."""
        return self.step_time(worker).stream(generator(seed, Purpose.STEP_TIME, worker))
