"""Which workers there are, how fast each is, what delays them, and how far from the server."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Literal

from msgspec import Meta

from asyncsim.cluster.buckets import Buckets, Whole
from asyncsim.cluster.delays import Delay
from asyncsim.cluster.hosts import Host, Latency
from asyncsim.cluster.servers import Servers
from asyncsim.cluster.step_times import Place, StepTime
from asyncsim.cluster.topologies import Flat, Topology
from asyncsim.errors import InputError, within
from asyncsim.records import checked
from asyncsim.streams import Purpose, generator
from asyncsim.workload import Workload


@checked
class Workers:
    """``count`` workers with the same step-time model (each draws its own times from it), on hosts of one kind.

    The group begins on a host of its own; each host holds as many of its workers as ``host.workers`` says.
    """

    step_time: StepTime
    count: Annotated[int, Meta(ge=1, le=100_000)] = 1
    host: Host = Host()

    def validate(self) -> None:
        within("step_time", self.step_time.check, self.count)


@checked
class Cluster:
    """Groups of workers, numbered through in order, the network between their hosts, and the parameter server.

    ``latency``: seconds that every message between two hosts pays, each way, whatever its size; the hosts and the
    topology add theirs. Then its bytes share what is on their way, the NICs and the topology's links, as ``sharing``
    says. fair: max-min fairly with all others, anew whenever one begins or ends. fifo: on each link one after another,
    in order of arrival. none: as if it were alone (latency + bytes / bandwidth: alpha-beta). rounds: exchanges between
    peers in closed form, many times faster: the messages of one round of an exchange share fairly as if all of them
    were sent at once; all other messages as if alone. Where no host has a bandwidth, there is latency alone.

    ``eager_limit``: a message of more bytes is announced first, and sent when the receiver has answered that it is
    ready: two more latencies, and a late receiver holds its sender (rendezvous). Left out, all are sent at once.
    ``buckets``: the pieces in which gradients are sent, while the rest is computed. ``delays`` come on top of the step
    times: each is added to a step before its gradient is sent.
    """

    workers: tuple[Workers, ...]
    latency: Latency = 0.0
    delays: tuple[Delay, ...] = ()
    servers: Servers = Servers()
    topology: Topology = Flat()
    sharing: Literal["fair", "fifo", "none", "rounds"] = "fair"
    eager_limit: Annotated[float, Meta(ge=0, le=1e15)] | None = None
    buckets: Buckets = Whole()

    def validate(self) -> None:
        if not self.workers:
            raise InputError("a cluster has at least one group of workers", "workers")
        for k, delay in enumerate(self.delays):
            within(f"delays[{k}]", delay.check, self.num_workers)
            within(f"delays[{k}].seconds", delay.seconds.check, self.num_workers)
        within("servers", self.servers.check, self._worker_hosts)
        within("topology", self.topology.check, self.hosts[: self._worker_hosts], self.hosts)

    def check_reach(self, kind: str) -> None:
        """Raise InputError if, with a server, the topology does not fit its hosts."""
        if kind == "server":
            self.topology.check(self.hosts, self.hosts)

    @property
    def _worker_hosts(self) -> int:
        return sum(_hosts(group.count, group.host) for group in self.workers)

    @functools.cached_property
    def hosts(self) -> list[Host]:
        """All hosts by number: those of the workers in order, then those of the server's shards."""
        groups = [(group.count, group.host) for group in self.workers]
        if not self.servers.on:
            groups.append((self.servers.shards, self.servers.host))
        return [host for count, host in groups for _ in range(_hosts(count, host))]

    @functools.cached_property
    def host_of(self) -> list[int]:
        """The number of the host of each worker, then of each shard."""
        out: list[int] = []
        begin = 0
        for group in self.workers:
            out += [begin + k // group.host.workers for k in range(group.count)]
            begin += _hosts(group.count, group.host)
        shards, host = self.servers.shards, self.servers.host
        return out + (list(self.servers.on) or [begin + k // host.workers for k in range(shards)])

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
        times, late = self.step_times_and_delays(worker, seed, workload)
        return times if late is None else map(operator.add, times, late)

    def step_times_and_delays(
        self, worker: int, seed: int, workload: Workload | None = None
    ) -> tuple[Iterator[float], Iterator[float] | None]:
        """The same apart: of each step, its time, and the sum of its delays (None: there are none)."""
        workload = workload or Workload()
        group, position = self._group(worker)
        place = Place(seed, worker, position)
        times = group.step_time.for_workload(workload).stream(generator(seed, Purpose.STEP_TIME, worker), place)
        late: Iterator[float] | None = None
        for number, delay in enumerate(self.delays):
            more = delay.for_workload(workload).stream(place, number, self.num_workers)
            if more is not None:
                late = more if late is None else map(operator.add, late, more)
        return times, late

    def for_workload(self, workload: Workload) -> Cluster:
        """The same with what depends on the work of a step filled in; raises InputError where that is not known."""
        return replace(
            self,
            workers=tuple(
                replace(group, step_time=within(f"workers[{k}].step_time", group.step_time.for_workload, workload))
                for k, group in enumerate(self.workers)
            ),
            delays=tuple(within(f"delays[{k}]", delay.for_workload, workload) for k, delay in enumerate(self.delays)),
            servers=within("servers", self.servers.for_workload, workload),
        )

    @property
    def mean_delay(self) -> float:
        """The mean of all delays of a step in seconds, over all workers."""
        return sum(delay.mean_seconds(self.num_workers) for delay in self.delays)


def _hosts(count: int, host: Host) -> int:
    """How many hosts so many workers, or shards, take."""
    return -(-count // host.workers)
