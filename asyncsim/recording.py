"""The timing half: runs a protocol on a cluster and returns the trace. NumPy and SimPy only."""

from __future__ import annotations

import simpy
from simpy.core import EmptySchedule

from asyncsim.cluster import Cluster
from asyncsim.errors import InputError
from asyncsim.protocols import Protocol, Simulation
from asyncsim.recorder import Recorder
from asyncsim.records import Count, Positive, checked
from asyncsim.trace import Trace
from asyncsim.vocabulary import SPANS
from asyncsim.workload import Costs, Workload


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

    Equal arguments give equal traces, whatever will be learned on them. Raises InputError if the protocol cannot run on
    the cluster, Deadlock if its workers end up waiting for each other.
    """
    protocol.check(cluster.num_workers)
    workload, costs = workload or Workload(), costs or Costs()
    env = simpy.Environment()
    end = env.event()

    def finish(_: object = None) -> None:
        if not end.triggered:
            end.succeed()

    samples = min(
        stop.samples if stop.samples is not None else float("inf"),
        stop.epochs * workload.num_samples if stop.epochs is not None else float("inf"),
    )
    log = Recorder(
        cluster.num_workers,
        protocol.kind,
        clock=env,
        workload=workload,
        costs=costs,
        max_updates=stop.updates or float("inf"),
        max_gradients=samples / workload.batch_size,
        on_full=finish,
    )
    if stop.seconds is not None:
        limit = simpy.Event(env)
        limit._ok, limit._value = True, None
        assert limit.callbacks is not None
        limit.callbacks.append(finish)
        # after everything else at that instant
        env.schedule(limit, 3 + cluster.num_workers, stop.seconds)  # type: ignore[arg-type]
    protocol.start(Simulation(env, log, cluster, seed))
    try:
        env.run(end)
    except RuntimeError as error:
        if not isinstance(error.__context__, EmptySchedule):
            raise  # a protocol's own
        waiting = ", ".join(f"worker {i} in {SPANS[kind]}" for i, kind in sorted(log.doing().items())[:10])
        raise Deadlock(f"at {env.now} s nothing is left to happen; {waiting or 'no worker ever started'}") from None
    return log.trace()
