"""Which workers there are, how fast each is, what delays them, and how far from the server."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

from msgspec import Meta

from asyncsim.cluster.delays import Delay
from asyncsim.cluster.step_times import Place, StepTime
from asyncsim.errors import InputError, within
from asyncsim.records import checked
from asyncsim.streams import Purpose, generator
from asyncsim.workload import Workload


@checked
class Workers:
    """``count`` workers with the same step-time model (each draws its own times from it)."""

    step_time: StepTime
    count: Annotated[int, Meta(ge=1, le=100_000)] = 1

    def validate(self) -> None:
        within("step_time", self.step_time.check, self.count)


@checked
class Cluster:
    """Groups of workers, numbered through in order, and the latency of the network in seconds each way.

    The latency is paid by what a worker sends to the server and again by the reply; it does not depend on the size.
    ``delays`` come on top of the step times: each is added to a step before its gradient is sent.
    """

    workers: tuple[Workers, ...]
    latency: Annotated[float, Meta(ge=0, le=1e12)] = 0.0
    delays: tuple[Delay, ...] = ()

    def validate(self) -> None:
        if not self.workers:
            raise InputError("a cluster has at least one group of workers", "workers")
        for k, delay in enumerate(self.delays):
            within(f"delays[{k}]", delay.check, self.num_workers)
            within(f"delays[{k}].seconds", delay.seconds.check, self.num_workers)

    @property
    def num_workers(self) -> int:
        return sum(group.count for group in self.workers)

    def step_time(self, worker: int) -> StepTime:
        """The step-time model of one worker."""
        return self._group(worker)[0].step_time

    def _group(self, worker: int) -> tuple[Workers, int]:
        """The group of a worker, and its position in it."""
        for group in self.workers:
            if worker < group.count:
                return group, worker
            worker -= group.count
        raise IndexError(f"the cluster has {self.num_workers} workers")

    def step_times(self, worker: int, seed: int, workload: Workload | None = None) -> Iterator[float]:
        """The endless stream of one worker's step times in seconds, with its delays.

        It depends on the seed, the worker, its model, the work of a step where the model asks for it (by default that
        of ``Workload()``), and the delays; the draws of the step times on nothing of the delays.
        """
        workload = workload or Workload()
        group, position = self._group(worker)
        place = Place(seed, worker, position)
        times = group.step_time.for_workload(workload).stream(generator(seed, Purpose.STEP_TIME, worker), place)
        for number, delay in enumerate(self.delays):
            late = delay.for_workload(workload).stream(place, number, self.num_workers)
            if late is not None:
                times = map(operator.add, times, late)
        return times

    def for_workload(self, workload: Workload) -> Cluster:
        """The same with what depends on the work of a step filled in; raises InputError where that is not known."""
        return replace(
            self,
            workers=tuple(
                replace(group, step_time=within(f"workers[{k}].step_time", group.step_time.for_workload, workload))
                for k, group in enumerate(self.workers)
            ),
            delays=tuple(within(f"delays[{k}]", delay.for_workload, workload) for k, delay in enumerate(self.delays)),
        )

    @property
    def mean_delay(self) -> float:
        """The mean of all delays of a step in seconds, over all workers."""
        return sum(delay.mean_seconds(self.num_workers) for delay in self.delays)
