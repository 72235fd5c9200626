"""Between asynchronous and synchronous: an update is the mean of K gradients, and the variants differ in who waits.

K-sync, K-batch-sync, K-async and K-batch-async as Dutta, Joshi, Ghosh, Dube and Nagpurkar define them (Slow and stale
gradients can win the race, AISTATS 2018, section 2); backup workers: Chen et al. (Revisiting distributed synchronous
SGD, 2016); n-softsync: Zhang, Gupta, Lian and Liu (Staleness-aware async-SGD, IJCAI 2016) and Gupta et al. (2016).
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from typing import Annotated, ClassVar

from msgspec import Meta

from asyncsim.errors import InputError
from asyncsim.network.simulation import Process, Simulation
from asyncsim.protocols.base import Protocol
from asyncsim.protocols.updates import Updates
from asyncsim.records import Count, checked, register

Gradients = Annotated[int, Meta(ge=1, le=10_000_000)]


class Quorum(Protocol):
    """An update is the mean of ``size`` gradients; a worker reads after its gradient, if there is something new.

    ``waits``: a worker that has sent one waits for the next update. ``stops``: an update stops those who are at one
    (who receive, compute or send), and they begin anew with it. ``fresh``: a gradient counts only if it was computed on
    the newest version; else it is dropped.
    """

    kind: ClassVar[str] = "server"
    waits: ClassVar[bool] = False
    stops: ClassVar[bool] = False
    fresh: ClassVar[bool] = False

    @abstractmethod
    def size(self, num_workers: int) -> int:
        """Gradients of one update."""

    def start(self, sim: Simulation) -> None:
        updates = Updates(sim, self.size(sim.num_workers))
        everyone = range(sim.num_workers)

        def fits(version: int) -> bool:
            return not self.fresh or version == updates.version

        def worker(i: int) -> Process:
            read, version, new = sim.log.read(i), updates.version, False
            while True:
                if (yield from sim.gradient(i, receive=new)):
                    part = yield from updates.take(i, read, functools.partial(fits, version))
                    if self.stops and part is not None and updates.version > part:
                        sim.stop(everyone)
                    if self.waits and part is not None:
                        yield from updates.wait(i, part)
                else:
                    sim.log.cancel(i, read)
                known = version
                read, version = sim.log.read(i), updates.version
                new = version > known

        for i in everyone:
            sim.env.process(worker(i))


class _Of(Quorum):
    """An update of ``gradients`` gradients (K)."""

    gradients: Gradients

    def size(self, num_workers: int) -> int:
        return self.gradients

    def check(self, num_workers: int) -> None:
        if self.gradients > num_workers:
            what = f"expected at most the number of workers, {num_workers}, got {self.gradients}"
            raise InputError(what, "gradients")


@register("sync")
@checked
class Synchronous(Quorum):
    """Everybody waits: the mean of one gradient from each worker is one update, then all read (BSP, a barrier)."""

    waits: ClassVar[bool] = True

    def size(self, num_workers: int) -> int:
        return num_workers


@register("k_sync")
@checked
class KSync(_Of):
    """The first ``gradients`` (K) of N workers make an update; the others are stopped, and all begin anew.

    A round takes the K-th smallest of N step times. A gradient that arrives when its update is closed, at that very
    instant too, is dropped; what is stopped earlier is cancelled. K = N: ``sync``.
    """

    gradients: Gradients
    waits: ClassVar[bool] = True
    stops: ClassVar[bool] = True
    fresh: ClassVar[bool] = True


@register("k_batch_sync")
@checked
class KBatchSync(_Of):
    """The first ``gradients`` (K) mini-batches at the same parameters make an update, whoever they are from.

    A worker that is done takes its next mini-batch at once; the update stops those under way, and all begin anew.
    """

    gradients: Gradients
    stops: ClassVar[bool] = True
    fresh: ClassVar[bool] = True


@register("k_async")
@checked
class KAsync(_Of):
    """The first ``gradients`` (K) workers to arrive make an update and read; the others go on, and get stale.

    A worker that has arrived waits for the update. K = 1: ``async``; K = N: ``sync``.
    """

    gradients: Gradients
    waits: ClassVar[bool] = True


@register("k_batch_async")
@checked
class KBatchAsync(_Of):
    """Any ``gradients`` (K) gradients make an update; nobody ever waits.

    A worker reads as soon as it has sent; while there is nothing new it goes on with what it has. K = 1: ``async``.
    """

    gradients: Gradients


@register("backup")
@checked
class BackupWorkers(Quorum):
    """Synchronous with ``spare`` workers (b): the first N - b gradients of a round make the update.

    Nobody is stopped: the late gradients are dropped when they arrive, and their workers go on with what is new by then
    (Chen et al. 2016; TensorFlow's SyncReplicasOptimizer).
    """

    spare: Annotated[int, Meta(ge=0, le=100_000)] = 1
    waits: ClassVar[bool] = True
    fresh: ClassVar[bool] = True

    def size(self, num_workers: int) -> int:
        return num_workers - self.spare

    def check(self, num_workers: int) -> None:
        if self.spare >= num_workers:
            raise InputError(f"leaves none of the {num_workers} workers", "spare")


@register("n_softsync")
@checked
class NSoftsync(Quorum):
    """An update after each floor(N / ``parts``) gradients from whomever; nobody waits (n-softsync, parts being n).

    Mean staleness is about n, so the papers divide the learning rate by n. parts = N: ``async``.
    """

    parts: Count = 1

    def size(self, num_workers: int) -> int:
        return num_workers // self.parts

    def check(self, num_workers: int) -> None:
        if self.parts > num_workers:
            raise InputError(f"expected at most the number of workers, {num_workers}, got {self.parts}", "parts")


@register("rennala")
@checked
class RennalaRounds(Quorum):
    """An update is the mean of ``gradients`` gradients at the newest parameters, from whoever is first.

    Without ``stop``, a gradient at older parameters is dropped when it arrives, and its worker goes on with the newest;
    with it, workers are stopped at each update (then it is ``k_batch_sync``, with no limit on the number). Left out,
    there are as many gradients as workers. Rennala SGD: Tyurin and Richtarik (2023), as in the authors' public code.
    """

    gradients: Gradients | None = None
    stop: bool = False
    fresh: ClassVar[bool] = True

    @property
    def stops(self) -> bool:  # type: ignore[override]
        return self.stop

    def size(self, num_workers: int) -> int:
        return self.gradients or num_workers
