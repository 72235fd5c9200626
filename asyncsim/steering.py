"""Both halves in lockstep, for protocols that values steer: the timing runs ahead to its next decision, and is told."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from asyncsim.algorithms import Algorithm
from asyncsim.cluster import Cluster
from asyncsim.data import Sampling
from asyncsim.errors import InputError, expect
from asyncsim.problems import Problem
from asyncsim.protocols import Protocol
from asyncsim.recording import Recording, Stop
from asyncsim.records import check_field
from asyncsim.replaying import costs_of
from asyncsim.replaying.preparing import check_fit, prepare
from asyncsim.replaying.walk import ENGINES, Precision, Statistics, check_choices
from asyncsim.schedules import Schedule
from asyncsim.trace import Trace
from asyncsim.vocabulary import APPLY, CANCEL, STEP
from asyncsim.workload import Costs, Workload


def steer(
    cluster: Cluster,
    protocol: Protocol,
    algorithm: Algorithm,
    problem: Problem,
    *,
    batch_size: int = 32,
    costs: Costs | None = None,
    stop: Stop,
    seed: int = 0,
    sampling: Sampling | None = None,
    statistics: Statistics = "mean",
    schedule: Schedule | None = None,
    precision: Precision = "float32",
    tensor_bytes: tuple[int, ...] | None = None,
) -> Trace:
    """Record a protocol whose timing depends on what is learned (``Protocol.steered``), and return the trace.

    The cluster runs to the protocol's next question (``Simulation.ask``); the learning goes along, row by row, to the
    same point; ``algorithm.decide`` answers, and the cluster goes on. A replay of the trace with the same algorithm,
    problem, seed and settings learns the same. The arguments are those of ``record`` and ``replay``; ``tensor_bytes``
    take the place of the problem's own in the timing.

    Each decision looks at the trace so far, so the time grows with its square: some ten thousand rows are well within
    a minute. Raises InputError where the parts do not fit together.
    """
    check_steered(protocol, algorithm)
    expect(problem, Problem, "problem")
    check_choices(statistics=statistics, precision=precision)
    schedule = Schedule() if schedule is None else schedule
    sampling = Sampling() if sampling is None else sampling
    expect(schedule, Schedule, "schedule")
    expect(sampling, Sampling, "sampling")
    workload = problem.workload(check_field(Workload, "batch_size", batch_size))
    if tensor_bytes is not None:
        workload = dataclasses.replace(workload, tensor_bytes=tensor_bytes)
    if costs is None:
        moves = cluster.servers.update_bandwidth is not None
        costs = costs_of(algorithm, problem) if moves else type(algorithm).costs
    recording = Recording(cluster, protocol, workload, costs, stop=stop, seed=seed)
    with jax.enable_x64(precision == "float64"):
        engine = None
        while (question := recording.go_on()) is not None:
            worker, answer = question
            trace = recording.trace(rows_only=True)
            factor = schedule.factor(trace.clock / problem.num_samples)
            uses = (trace.verb == STEP) | (trace.verb == APPLY) | (trace.verb == CANCEL)
            mine = trace.worker == worker
            step = np.int32(np.sum(uses & mine))  # as a row of this worker's would have it
            own = (
                np.sum(mine & (trace.verb == STEP)) * trace.num_workers
                if trace.kind == "peers"
                else trace.counted.sum()
            )
            now = schedule.factor(np.array([own * trace.batch_size / problem.num_samples]))[0]
            if engine is None:
                check_fit(trace, algorithm, problem, seed)
                setting, _ = prepare(
                    trace,
                    algorithm,
                    problem,
                    seed=seed,
                    schedule=schedule,
                    cuts=[],
                    measures=False,
                    sampling=sampling,
                    statistics=statistics,
                )
                engine = ENGINES["rows", trace.kind](setting)
            _check_whole(trace)
            engine.grow(trace, factor, recording.live(trace))
            engine.advance(len(trace))
            row = {"worker": np.int32(worker), "step": step, "draw": step, "staleness": np.int32(0)}
            row["factor"] = now.astype(jnp.zeros(()).dtype)
            answer.succeed(engine.decide(worker, row))
    return recording.trace()


def check_steered(protocol: Protocol, algorithm: Algorithm) -> None:
    """Raise InputError unless the protocol is steered, and the algorithm can steer it."""
    expect(protocol, Protocol, "protocol")
    expect(algorithm, Algorithm, "algorithm")
    if not protocol.steered:
        raise InputError(f"{protocol.name} is not steered by values: asyncsim.record(...) is enough", "protocol")
    if type(algorithm).decide is Algorithm.decide:
        what = f"the protocol {protocol.name} asks the algorithm to decide; {algorithm.name} has no decide(...)"
        raise InputError(what, "algorithm")


def _check_whole(trace: Trace) -> None:
    applied = np.flatnonzero((trace.verb == APPLY) & trace.accepted)
    if len(applied) and not trace.closes[applied[-1]]:
        raise InputError("asks for values while an update of several gradients is half made", "protocol")
