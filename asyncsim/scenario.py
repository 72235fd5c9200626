"""A whole simulation as one frozen record."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from typing import Any

from asyncsim.algorithms import Algorithm
from asyncsim.cluster import Cluster
from asyncsim.cluster.buckets import Bytes
from asyncsim.data import Sampling
from asyncsim.errors import InputError, within
from asyncsim.problems import Problem
from asyncsim.protocols import Protocol
from asyncsim.recording import Stop, record
from asyncsim.records import Seed, build, checked, table
from asyncsim.replaying import Every, Target, costs_of, replay
from asyncsim.replaying.walk import EngineName, Precision, Statistics
from asyncsim.runs import Run
from asyncsim.schedules import Schedule
from asyncsim.steering import check_steered, steer
from asyncsim.trace import Trace
from asyncsim.workload import BatchSize, Costs, Workload

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,79}")  # it becomes the name of a folder
BAD_NAME = "a name has at most 80 plain letters, digits, _ and -, a letter or digit first"


@checked
class Scenario:
    """One simulation: a cluster, who waits for whom, what is learned and how, and when it ends.

    ``protocol`` may be left out: then it is the one that the algorithm normally runs on; ``evaluate`` too: then there
    are about 50 evaluations. A table that has nothing but a name may be written as that name. ``name`` labels the run,
    and is the name of its folder: letters, digits, _ and -.

    ``statistics``: whose is what a model keeps besides parameters (BatchNorm's); mean: each worker's own, evaluated by
    their mean; first: each its own, evaluated by worker 0's; shared: one for all, changed by every gradient.
    ``measures``: gap and norms of each gradient (false: faster). ``engine``: scan, a compiled loop, or rows, one call a
    gradient, for models with ``lax.conv``. ``precision``: of all arithmetic. ``tensor_bytes``: of each tensor
    that travels, in forward order, in place of the problem's own: a small model learns at the pace of a large one.
    """

    cluster: Cluster
    algorithm: Algorithm
    problem: Problem
    stop: Stop
    protocol: Protocol | None = None
    name: str = "scenario"
    seed: Seed = 0
    batch_size: BatchSize = 32
    sampling: Sampling = Sampling()
    statistics: Statistics = "mean"
    schedule: Schedule = Schedule()
    evaluate: Every | None = None
    target: Target | None = None
    measures: bool = True
    engine: EngineName = "scan"
    precision: Precision = "float32"
    tensor_bytes: tuple[Bytes, ...] | None = None

    def validate(self) -> None:
        if not NAME.fullmatch(self.name):
            raise InputError(f"{BAD_NAME}, got {self.name!r}", "name")
        protocol, kind = self.runs_on, self.algorithm.kind
        if protocol.kind != kind:
            raise InputError(
                f"{protocol.name} is for a method of kind {protocol.kind}, {self.algorithm.name} is of kind {kind}; "
                f"protocols for those: {self._fitting() or 'none yet'}",
                "protocol.name",
            )
        carried, taken = protocol.carries, self.algorithm.takes
        if carried and taken and carried not in taken:
            raise InputError(
                f"{protocol.name} carries {carried}, {self.algorithm.name} takes {' or '.join(taken)}; "
                f"protocols that carry these: {self._fitting()}",
                "protocol.name",
            )
        within("protocol", protocol.check, self.cluster.num_workers)
        within("cluster.topology", self.cluster.check_reach, protocol.kind)
        within("cluster.buckets", self.cluster.buckets.check, protocol.kind)
        if protocol.steered:
            check_steered(protocol, self.algorithm)

    @property
    def runs_on(self) -> Protocol:
        """The protocol: the one chosen, or else the algorithm's normal one."""
        if self.protocol is not None:
            return self.protocol
        normal = getattr(self.algorithm, "protocol", None)
        if normal is None:
            fitting = self._fitting()
            there = f"those that fit: {fitting}" if fitting else "there is none for it yet: see asyncsim.replay"
            what = f"is missing, and {self.algorithm.name} names none that it normally runs on; {there}"
            raise InputError(what, "protocol")
        return build(Protocol, normal)  # type: ignore[type-abstract]

    def _fitting(self) -> str:
        kind, taken = self.algorithm.kind, self.algorithm.takes
        members: dict[str, Any] = Protocol.members
        fitting = [
            k for k, p in members.items() if p.kind == kind and (not p.carries or not taken or p.carries in taken)
        ]
        return ", ".join(fitting)

    def resolved(self) -> Scenario:
        """The same with the protocol filled in."""
        return replace(self, protocol=self.runs_on)

    @property
    def workload(self) -> Workload:
        """What one gradient costs, as the timing sees it."""
        own = _workload(self.problem, self.batch_size)
        return own if self.tensor_bytes is None else replace(own, tensor_bytes=self.tensor_bytes)

    @property
    def costs(self) -> Costs:
        """The size of the method's messages and, where the server's time depends on them, the buffers that an update
        touches (so that methods share a trace where it does not)."""
        if self.cluster.servers.update_bandwidth is None:
            return type(self.algorithm).costs
        summed = self.runs_on.size(self.cluster.num_workers) > 1
        return costs_of(self.algorithm, self.problem, summed=summed)

    def record(self) -> Trace:
        """The timing alone; with a protocol that values steer, the learning goes along."""
        if not self.runs_on.steered:
            return record(self.cluster, self.runs_on, self.workload, self.costs, stop=self.stop, seed=self.seed)
        return steer(
            self.cluster,
            self.runs_on,
            self.algorithm,
            self.problem,
            batch_size=self.batch_size,
            costs=self.costs,
            stop=self.stop,
            seed=self.seed,
            sampling=self.sampling,
            statistics=self.statistics,
            schedule=self.schedule,
            precision=self.precision,
            tensor_bytes=self.tensor_bytes,
        )

    def to_table(self) -> dict[str, Any]:
        """The resolved scenario as plain tables, as a TOML file has them."""
        return table(self)


@functools.lru_cache(maxsize=64)  # a sweep asks it of each of its runs
def _workload(problem: Problem, batch_size: int) -> Workload:
    return problem.workload(batch_size)


def run(scenario: Scenario, *, trace: Trace | None = None, progress: bool = False) -> Run:
    """Simulate a scenario: record its timing (unless a trace is given), then learn along it."""
    trace = scenario.record() if trace is None else trace
    done = replay(
        trace,
        scenario.algorithm,
        scenario.problem,
        seed=scenario.seed,
        sampling=scenario.sampling,
        statistics=scenario.statistics,
        schedule=scenario.schedule,
        every=scenario.evaluate,
        target=scenario.target,
        measures=scenario.measures,
        engine=scenario.engine,
        precision=scenario.precision,
        progress=progress,
        label=scenario.name,
    )
    try:
        resolved = scenario.to_table()
    except InputError:
        resolved = None  # the user's own objects have no place in a file
    return replace(done, scenario=resolved)
