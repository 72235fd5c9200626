"""Workers and a parameter server: fully asynchronous, fully synchronous, or one worker alone."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, ClassVar

import simpy

from asyncsim.errors import InputError
from asyncsim.protocols.base import Protocol
from asyncsim.protocols.simulation import Simulation
from asyncsim.records import checked, register
from asyncsim.vocabulary import WAIT

Process = Generator[simpy.Event, Any, None]


@register("async")
@checked
class Asynchronous(Protocol):
    """Nobody waits: each gradient is an update when it arrives, and its worker reads right after it."""

    kind: ClassVar[str] = "server"

    def start(self, sim: Simulation) -> None:
        def worker(i: int) -> Process:
            read = sim.log.read(i)
            while True:
                yield sim.compute(i)
                yield from sim.upload(i)
                sim.log.apply(i, read)
                read = sim.log.read(i)
                yield from sim.download(i)

        for i in range(sim.num_workers):
            sim.env.process(worker(i))


@register("serial")
@checked
class Serial(Asynchronous):
    """One worker, one gradient after another: the baseline without any staleness."""

    def check(self, num_workers: int) -> None:
        if num_workers != 1:
            raise InputError(f"the serial protocol runs on 1 worker, not {num_workers}; with several use async or sync")


@register("sync")
@checked
class Synchronous(Protocol):
    """Everybody waits: the mean of one gradient from each worker is one update, then all read (a barrier)."""

    kind: ClassVar[str] = "server"

    def start(self, sim: Simulation) -> None:
        everyone = range(sim.num_workers)
        reads = [sim.log.read(i) for i in everyone]
        arrived = 0
        opened = sim.env.event()

        def worker(i: int) -> Process:
            nonlocal arrived, opened
            while True:
                yield sim.compute(i)
                yield from sim.upload(i)
                arrived += 1
                last = arrived == sim.num_workers
                sim.log.apply(i, reads[i], weight=1 / sim.num_workers, closes=last)
                sim.log.enter(i, WAIT)
                barrier = opened
                if last:
                    reads[:] = [sim.log.read(j) for j in everyone]
                    arrived, opened = 0, sim.env.event()
                    barrier.succeed()
                yield barrier
                yield from sim.download(i)

        for i in everyone:
            sim.env.process(worker(i))
