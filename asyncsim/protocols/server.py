"""Workers and a parameter server where every gradient is an update: nobody waits, or only who is too far ahead."""

from __future__ import annotations

import functools
from typing import Annotated, ClassVar

from msgspec import Meta

from asyncsim.errors import InputError
from asyncsim.network.simulation import Process, Simulation
from asyncsim.network.turns import Gate
from asyncsim.protocols.base import Protocol
from asyncsim.protocols.updates import Updates
from asyncsim.records import checked, register


@register("async")
@checked
class Asynchronous(Protocol):
    """Nobody waits: each gradient is an update when it arrives, and its worker reads right after it."""

    kind: ClassVar[str] = "server"
    alone: ClassVar[bool] = True

    def start(self, sim: Simulation) -> None:
        updates = Updates(sim, 1)

        def worker(i: int) -> Process:
            read, new = sim.log.read(i), False
            while True:
                yield from sim.gradient(i, receive=new)
                yield from updates.take(i, read)
                read, new = sim.log.read(i), True

        for i in range(sim.num_workers):
            sim.env.process(worker(i))


@register("serial")
@checked
class Serial(Asynchronous):
    """One worker, one gradient after another: the baseline without any staleness."""

    def check(self, num_workers: int) -> None:
        if num_workers != 1:
            raise InputError(f"the serial protocol runs on 1 worker, not {num_workers}; with several use async or sync")


@register("ssp")
@checked
class StaleSynchronous(Protocol):
    """Nobody may be more than ``slack`` iterations ahead of the slowest (stale synchronous parallel, SSP).

    Each gradient is an update when it arrives. A worker that has done c iterations begins its next one when every
    worker has done at least c - slack of them, and reads then. Slack 0 is BSP: all compute at the same parameters, and
    their gradients are added one by one (N times the mean). Ho et al. (More effective distributed ML via a stale
    synchronous parallel parameter server, NIPS 2013).
    """

    kind: ClassVar[str] = "server"
    slack: Annotated[int, Meta(ge=0, le=10**9)]

    def start(self, sim: Simulation) -> None:
        updates = Updates(sim, 1)
        done, front = [0] * sim.num_workers, _Front(sim.num_workers)
        moved = Gate(sim.env)  # opens when the slowest has done one more

        def missing(i: int) -> str:
            return f"all to have done {done[i] - self.slack} iterations; worker {done.index(front.slowest)} has not"

        def worker(i: int) -> Process:
            read, new = sim.log.read(i), False
            while True:
                yield from sim.gradient(i, receive=new)
                yield from updates.take(i, read)
                done[i] += 1
                if front.move(done[i]):
                    moved.open()
                while done[i] > front.slowest + self.slack:
                    yield from sim.wait(i, moved.event(i), functools.partial(missing, i))
                read, new = sim.log.read(i), True

        for i in range(sim.num_workers):
            sim.env.process(worker(i))


class _Front:
    """How many iterations the slowest has done, without looking at everybody each time."""

    def __init__(self, num_workers: int):
        self.slowest = 0
        self._at = {0: num_workers}  # how many workers have done so many

    def move(self, done: int) -> bool:
        """A worker has done one more, ``done`` in all; whether the slowest has moved."""
        self._at[done] = self._at.get(done, 0) + 1
        self._at[done - 1] -= 1
        if self._at[done - 1]:
            return False
        del self._at[done - 1]
        if done - 1 > self.slowest:
            return False
        self.slowest = done
        return True


@register("ringmaster")
@checked
class RingmasterDelays(Protocol):
    """Asynchronous, but a gradient that is ``max_delay`` (R) updates old, or more, is dropped when it arrives.

    With ``stop``, its worker is stopped as soon as its gradient is that old, and begins anew. Left out, R is the number
    of workers. R = 1: every accepted gradient is fresh; R infinite: ``async``. Ringmaster ASGD: Maranjyan, Tyurin and
    Richtarik (2025), algorithm 4 (without) and 5 (with stops); the steps are recalled, not checked with the paper.
    """

    kind: ClassVar[str] = "server"
    max_delay: Annotated[int, Meta(ge=1, le=10**9)] | None = None
    stop: bool = False

    def start(self, sim: Simulation) -> None:
        updates = Updates(sim, 1)
        limit = self.max_delay or sim.num_workers
        versions = [0] * sim.num_workers  # that each worker has read

        def age(i: int) -> int:
            return updates.version - versions[i]

        def worker(i: int) -> Process:
            read, new = sim.log.read(i), False
            while True:
                if (yield from sim.gradient(i, receive=new)):
                    part = yield from updates.take(i, read, lambda: age(i) < limit)
                    if self.stop and part is not None:
                        sim.stop(j for j in range(sim.num_workers) if age(j) >= limit)
                else:
                    sim.log.cancel(i, read)
                known, versions[i] = versions[i], updates.version
                read, new = sim.log.read(i), versions[i] > known

        for i in range(sim.num_workers):
            sim.env.process(worker(i))
