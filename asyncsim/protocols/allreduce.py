"""Everybody waits for everybody: all-reduce of gradients at every step, or of models now and then."""

from __future__ import annotations

import itertools
from typing import Annotated, ClassVar

from msgspec import Meta

from asyncsim.errors import InputError
from asyncsim.exchanges import Exchanges
from asyncsim.exchanges.schedules import gather
from asyncsim.network.simulation import Process, Simulation
from asyncsim.protocols.base import Protocol
from asyncsim.protocols.rounds import AllReduce, all_reduce, blocking
from asyncsim.records import Count, checked, register


class _Everybody(Protocol):
    """Local steps, then an all-reduce of what they made."""

    kind: ClassVar[str] = "peers"
    carries: ClassVar[str] = "models"
    keeps: ClassVar[float] = 0.0  # of its own model, when it takes the mean; of a gradient, when it is sent, nothing
    passes: ClassVar[float] = 1.0  # over the sum, to divide it
    period: int = 1
    gathered_bytes: float = 0.0
    all_reduce: AllReduce | None

    def check(self, num_workers: int) -> None:
        all_reduce(self.all_reduce, num_workers)

    def start(self, sim: Simulation) -> None:
        schedule, everybody = all_reduce(self.all_reduce, sim.num_workers), range(sim.num_workers)
        rounds = blocking(Exchanges(sim, after=self.passes), lambda _: schedule)
        if self.gathered_bytes and not sim.model_bytes:
            raise InputError("needs the sizes of the tensors: a workload with tensor_bytes", "gathered_bytes")
        rows = gather(sim.num_workers, self.gathered_bytes / (sim.model_bytes or 1))
        gathers = blocking(Exchanges(sim, whole=True), lambda _: rows)
        mean = [1 / sim.num_workers] * sim.num_workers

        def worker(i: int) -> Process:
            for t in itertools.count(1):
                read = sim.log.read(i)
                if t % self.period:
                    yield sim.compute(i)
                    sim.log.step(i, read)
                    continue
                here = rounds[t]
                end, ready = sim.begin(i)
                done = here.exchange.join(i, ready)
                yield end
                sim.log.step(i, read)
                here.messages[i] = sim.log.publish(i, keep=1.0 - self.keeps)
                yield from here.finish(i, done, f"the all-reduce of step {t}")
                if self.gathered_bytes:
                    done = gathers[t].exchange.join(i, [sim.env.now])
                    yield from gathers[t].finish(i, done, f"the sparse rows of step {t}")
                    gathers.leave(t)
                sim.log.merge(i, here.mix(everybody, mean), keep=self.keeps)
                rounds.leave(t)

        for i in everybody:
            sim.env.process(worker(i))


@register("allreduce")
@checked
class GradientAllreduce(_Everybody):
    """At every step all workers add up their gradients by an all-reduce, and take the mean.

    Pieces are reduced one after another, as they get ready in the backward pass (``cluster.buckets``).
    ``all_reduce``: rabenseifner, ring, recursive_doubling or binomial_tree; left out, Rabenseifner's, as
    MPI's for large messages, or a ring where the number of workers is no power of two.

    ``gathered_bytes``: each worker's sparse gradients (rows of an embedding, with their numbers). They cannot be added
    up as they are: after the others they are gathered from all, by a ring, so that every worker gets P - 1 times as
    many. So Horovod does with TensorFlow's IndexedSlices unless it is told to make them dense (Cavdar et al.,
    Densifying assumed-sparse tensors, ISC 2019).
    """

    all_reduce: AllReduce | None = None
    gathered_bytes: Annotated[float, Meta(ge=0, le=1e15)] = 0.0

    keeps: ClassVar[float] = 1.0  # it is a gradient that it takes
    passes: ClassVar[float] = 0.0  # divided as it is applied
    carries: ClassVar[str] = "gradients"


@register("local_sgd")
@checked
class PeriodicAveraging(_Everybody):
    """All workers take ``period`` local steps, then the mean of their models by an all-reduce (local SGD).

    With period 1 it is synchronous SGD in another order. In the last step of a period each piece is exchanged as soon
    as its gradient is ready, and it has made its step (``cluster.buckets``). ``all_reduce``: as for ``allreduce``.
    Stich (ICLR 2019).
    """

    period: Count = 1
    all_reduce: AllReduce | None = None
