"""The parameter server: its shards, where they are, and how long it takes to make an update."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from msgspec import Meta

from asyncsim.cluster.hosts import Bandwidth, Host
from asyncsim.cluster.step_times import StepTime
from asyncsim.errors import InputError, within
from asyncsim.records import checked
from asyncsim.workload import Workload


@checked
class Servers:
    """The parameters are dealt out evenly, by bytes, to ``shards``, to each of which every message has its part.

    ``host``: what the shards run on: a machine of its own for each (for as many as ``host.workers`` says). ``on``:
    instead, the number of a worker's host for each shard. An update takes ``update_seconds`` (a step-time model; a
    number is a constant) and, where ``update_bandwidth`` is given, the time to move its bytes at so many bytes per
    second: those of every buffer that the method reads or writes (``Costs.update``), in each shard its part. Where an
    update is made of several gradients, adding one to their sum takes the time of two buffers. ``lock``: a gradient
    waits until the one before it is done with; without, updates that are one gradient each overlap (as in Hogwild), and
    each counts when it ends. The sum of several gradients is always made one by one.
    """

    shards: Annotated[int, Meta(ge=1, le=10_000)] = 1
    host: Host = Host()
    on: tuple[Annotated[int, Meta(ge=0)], ...] = ()
    update_seconds: StepTime | None = None
    update_bandwidth: Bandwidth | None = None
    lock: bool = True

    def validate(self) -> None:
        if self.update_seconds is not None:
            within("update_seconds", self.update_seconds.check, 1)
        if self.on and len(self.on) < self.shards:
            missing = ", ".join(str(k) for k in range(len(self.on), self.shards)[:5])
            raise InputError(f"names {len(self.on)} hosts for {self.shards} shards: shard {missing} has no host", "on")
        if len(self.on) > self.shards:
            raise InputError(f"names {len(self.on)} hosts for {self.shards} shards", "on")
        if self.on and self.host != Host():
            raise InputError("give the hosts of workers that hold the shards, or a host of their own, not both", "on")

    def check(self, worker_hosts: int) -> None:
        """Raise InputError if a shard is on a host that there is not."""
        for shard, host in enumerate(self.on):
            if host >= worker_hosts:
                what = f"shard {shard} has no host: the workers' hosts are 0 to {worker_hosts - 1}, not {host}"
                raise InputError(what, f"on[{shard}]")

    def for_workload(self, workload: Workload) -> Servers:
        """The same with what depends on the work of a step filled in."""
        if self.update_seconds is None:
            return self
        return replace(self, update_seconds=within("update_seconds", self.update_seconds.for_workload, workload))
