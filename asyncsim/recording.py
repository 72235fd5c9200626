"""The timing half: runs a protocol on a cluster and returns the trace. NumPy and SimPy only."""

from __future__ import annotations

from dataclasses import replace

import simpy
from simpy.core import EmptySchedule

from asyncsim.cluster import Cluster
from asyncsim.errors import InputError, expect, within
from asyncsim.protocols import Protocol, Simulation, Turn
from asyncsim.recorder import Recorder
from asyncsim.records import Count, Positive, checked
from asyncsim.streams import check_seed
from asyncsim.trace import Trace
from asyncsim.vocabulary import ROUNDING, SPANS
from asyncsim.workload import Costs, Workload

MAX_GRADIENTS = 2e8


@checked
class Stop:
    """When a run ends, at the latest: whichever of these comes first. At least one is given.

    ``updates`` of the server (between peers: local steps of all workers); ``samples`` or ``epochs`` of processed data,
    looked at when an update is done; ``seconds`` of simulated time (what happens at that instant still happens).
    """

    updates: Count | None = None
    samples: Count | None = None
    epochs: Positive | None = None
    seconds: Positive | None = None

    def validate(self) -> None:
        if self.updates is self.samples is self.epochs is self.seconds is None:
            raise InputError("give at least one of: updates, samples, epochs, seconds")


class Deadlock(RuntimeError):
    """Nothing is going to happen any more, and the run is not at its end: the protocol waits for itself."""


def record(
    cluster: Cluster,
    protocol: Protocol,
    workload: Workload | None = None,
    costs: Costs | None = None,
    *,
    stop: Stop,
    seed: int = 0,
) -> Trace:
    """Simulate when things happen, and return the trace.

    Arguments:
        cluster: the workers, how fast each is, and the network
        protocol: who waits for whom, such as ``Asynchronous()``
        workload: batch size, samples of an epoch, tensor sizes; ``problem.workload(batch_size)`` gives a problem's own
        costs: size of the method's messages; ``ASGD.costs`` are a method's own
        stop: when the run ends, such as ``Stop(epochs=10)``
        seed: fixes all random draws

    Equal arguments give equal traces, whatever will be learned on them. Raises InputError if the protocol cannot run on
    the cluster, Deadlock if its workers end up waiting for each other.

    Example::

        cluster = Cluster((Workers(Gamma(mean=0.1, cv=0.5), count=8),), latency=0.002)
        trace = record(cluster, Asynchronous(), stop=Stop(updates=1000))
    """
    workload, costs = workload or Workload(), costs or Costs()
    expect(cluster, Cluster, "cluster")
    expect(protocol, Protocol, "protocol")
    expect(workload, Workload, "workload", "; of a problem it is problem.workload(batch_size)")
    expect(costs, Costs, "costs")
    expect(stop, Stop, "stop")
    check_seed(seed)
    cluster = within("cluster", cluster.for_workload, workload)
    workload = replace(workload, sample_flops=None)  # the step times have it in them, if they ask for it at all
    protocol.check(cluster.num_workers)
    if stop.epochs is not None and workload.num_samples is None:
        raise InputError("needs a workload with num_samples, such as problem.workload(batch_size)", "stop.epochs")
    env = simpy.Environment()
    end = env.event()

    def finish(_: object = None) -> None:
        if not end.triggered:
            end.succeed()

    samples = min(
        stop.samples if stop.samples is not None else float("inf"),
        stop.epochs * (workload.num_samples or 0) if stop.epochs is not None else float("inf"),
    )
    # a hair less, as 0.07 epochs of 100 samples are 7.000000000000001 samples
    max_gradients = samples / workload.batch_size * (1 - ROUNDING)
    added = cluster.mean_delay + 2 * cluster.latency
    rate = sum(group.count / (group.step_time.mean_seconds + added) for group in cluster.workers)
    updates, seconds = stop.updates or float("inf"), stop.seconds or float("inf")
    at_least = min(max_gradients, updates, seconds * rate)  # a round of a barrier is an update of several
    if at_least > MAX_GRADIENTS:
        raise InputError(
            f"about {at_least:.3g} gradients or more come before the end; {MAX_GRADIENTS:.0e} is the limit", "stop"
        )
    log = Recorder(
        cluster.num_workers,
        protocol.kind,
        clock=env,
        workload=workload,
        costs=costs,
        max_updates=updates,
        max_gradients=max_gradients,
        on_full=finish,
    )
    if stop.seconds is not None:
        # after everything else at that instant
        limit = Turn(env, stop.seconds * (1 + ROUNDING), cluster.num_workers + 1)
        assert limit.callbacks is not None
        limit.callbacks.append(finish)
    protocol.start(Simulation(env, log, cluster, seed))
    try:
        env.run(end)
    except RuntimeError as error:
        if not isinstance(error.__context__, EmptySchedule):
            raise  # a protocol's own
        waiting = ", ".join(f"worker {i} in {SPANS[kind]}" for i, kind in sorted(log.doing().items())[:10])
        raise Deadlock(f"at {env.now} s nothing is left to happen; {waiting or 'no worker ever started'}") from None
    return log.trace(min(float(env.now), seconds))  # without the hair that was added to the limit
