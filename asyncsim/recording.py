"""The timing half: runs a protocol on a cluster and returns the trace. NumPy and SimPy only."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import simpy
from simpy.core import EmptySchedule

from asyncsim.cluster import Cluster
from asyncsim.errors import Deadlock, InputError, expect, within
from asyncsim.network.alone import alone
from asyncsim.protocols import Protocol, Simulation, Turn
from asyncsim.recorder import Recorder, made
from asyncsim.records import Count, Positive, checked
from asyncsim.streams import check_seed
from asyncsim.trace import Trace
from asyncsim.vocabulary import MIX, PUBLISH, ROUNDING, SPANS
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
        cluster: the workers, how fast each is, the network, the server
        protocol: who waits for whom, such as ``Asynchronous()``
        workload: batch size, samples of an epoch, tensor sizes; ``problem.workload(batch_size)`` gives a problem's own
        costs: size of the method's messages, buffers that an update touches; ``costs_of(algorithm, problem)`` has a
            method's own
        stop: when the run ends, such as ``Stop(epochs=10)``
        seed: fixes all random draws

    Equal arguments give equal traces, whatever will be learned on them. Raises InputError if the protocol cannot run on
    the cluster, Deadlock if its workers end up waiting for each other.

    Example::

        cluster = Cluster((Workers(Gamma(mean=0.1, cv=0.5), count=8),), latency=0.002)
        trace = record(cluster, Asynchronous(), stop=Stop(updates=1000))
    """
    recording = Recording(cluster, protocol, workload, costs, stop=stop, seed=seed)
    if protocol.steered:
        what = f"{protocol.name} is steered by what is learned: asyncsim.steer(...) runs both halves in step"
        raise InputError(what, "protocol")
    if protocol.alone and (trace := recording.at_once()) is not None:
        return trace
    question = recording.go_on()
    assert question is None
    return recording.trace()


class Recording:
    """A simulation under way, which halts where a protocol asks for what the learning alone can tell."""

    def __init__(
        self,
        cluster: Cluster,
        protocol: Protocol,
        workload: Workload | None = None,
        costs: Costs | None = None,
        *,
        stop: Stop,
        seed: int = 0,
    ):
        workload, costs = workload or Workload(), costs or Costs()
        expect(cluster, Cluster, "cluster")
        name = type(protocol).__name__
        known = getattr(protocol, "family", None) == "algorithm"  # it is named without its home: JAX stays out of here
        hint = f"; {name} is an algorithm: asyncsim list {protocol.name} shows what it runs on" if known else ""
        expect(protocol, Protocol, "protocol", hint)
        expect(workload, Workload, "workload", "; of a problem it is problem.workload(batch_size)")
        expect(costs, Costs, "costs")
        expect(stop, Stop, "stop")
        check_seed(seed)
        cluster = within("cluster", cluster.for_workload, workload)
        workload = replace(workload, sample_flops=None)  # the step times have it in them, if they ask for it at all
        protocol.check(cluster.num_workers)
        within("cluster.topology", cluster.check_reach, protocol.kind)
        within("cluster.buckets", cluster.buckets.check, protocol.kind)
        within("cluster.buckets", cluster.buckets.pieces, workload.tensor_bytes)
        updates, gradients, seconds = _limits(cluster, protocol, workload, costs, stop)
        self._steered = protocol.steered
        self._env, self._seconds = simpy.Environment(), seconds
        self._end, self._stuck = self._env.event(), False
        self._log = Recorder(
            cluster.num_workers,
            protocol.kind,
            clock=self._env,
            workload=workload,
            costs=costs,
            max_updates=updates,
            max_gradients=gradients,
            on_full=self._finish,
        )
        if stop.seconds is not None:
            # after everything else at that instant (exchanges end after all workers' turns)
            limit = Turn(self._env, stop.seconds * (1 + ROUNDING), 2 * cluster.num_workers + 2)
            assert limit.callbacks is not None
            limit.callbacks.append(self._time_is_up)
        self._sim = Simulation(self._env, self._log, cluster, seed)
        self._protocol, self._started = protocol, False
        self._limits = min(updates, gradients), seconds * (1 + ROUNDING)

    def at_once(self) -> Trace | None:
        """The whole trace of a protocol whose workers are ``alone``, without events; None: they meet on their way."""
        found = alone(self._sim, *self._limits)
        return None if found is None else made(self._log, found[0], min(found[1], self._seconds))

    def _time_is_up(self, _: object) -> None:
        # nothing else to come, to anybody: it was over before (of what was interrupted, delays are left in the queue)
        self._stuck = not any(event.callbacks for *_, event in self._env._queue)
        self._finish()

    def _finish(self, _: object = None) -> None:
        if not self._end.triggered:
            self._end.succeed()

    def go_on(self) -> tuple[int, simpy.Event] | None:
        """Run to the end (None), or to the next question: whose it is, and the event that takes the answer."""
        questions = self._sim.questions
        if not self._started:
            self._started = True
            self._protocol.start(self._sim)
        try:
            if not self._steered:
                self._env.run(self._end)
            while not self._end.processed:
                self._env.step()
                if questions:
                    return questions.pop(0)
        except (RuntimeError, EmptySchedule) as error:
            if not isinstance(error, EmptySchedule) and not isinstance(error.__context__, EmptySchedule):
                raise  # a protocol's own
            raise Deadlock(f"at {self._env.now} s nothing is left to happen; {self._who_waits()}") from None
        if self._stuck:
            raise Deadlock(f"at {self._log.latest} s nothing is left to happen; {self._who_waits()}")
        self._sim.close()
        return None

    def _who_waits(self) -> str:
        reasons = {i: what if isinstance(what, str) else what() for i, what in self._sim.waits_for.items()}
        doing = self._log.doing()
        waiting = [
            f"worker {i} waits for {reasons[i]}" if i in reasons else f"worker {i} in {SPANS[kind]}"
            for i, kind in sorted(doing.items())
        ]
        more = [f"and {len(waiting) - 10} more"] if len(waiting) > 10 else []
        return ", ".join([*waiting[:10], *more, *self._sim.held()[:10]]) or "no worker ever started"

    def live(self, trace: Trace) -> np.ndarray:
        """(R,) of the trace so far, the rows that later ones may still name."""
        live = (trace.verb == PUBLISH) | (trace.verb == MIX)
        live[list(self._log.released)] = False
        live[trace.latest_reads] = True
        return live

    def trace(self, rows_only: bool = False) -> Trace:
        """All so far; at the end, without the hair that was added to the limit of seconds."""
        return self._log.trace(min(float(self._env.now), self._seconds), rows_only=rows_only)


def _limits(
    cluster: Cluster, protocol: Protocol, workload: Workload, costs: Costs, stop: Stop
) -> tuple[float, float, float]:
    """At most so many updates, gradients and seconds. Raises InputError if that takes too many gradients."""
    if stop.epochs is not None and workload.num_samples is None:
        raise InputError("needs a workload with num_samples, such as problem.workload(batch_size)", "stop.epochs")
    samples = min(
        stop.samples if stop.samples is not None else float("inf"),
        stop.epochs * (workload.num_samples or 0) if stop.epochs is not None else float("inf"),
    )
    # a hair less, as 0.07 epochs of 100 samples are 7.000000000000001 samples
    max_gradients = samples / workload.batch_size * (1 - ROUNDING)
    rate = 0.0  # gradients per second, if nobody waited
    for group in cluster.workers:
        host, model = group.host, workload.model_bytes
        added = cluster.mean_delay + 2 * (cluster.latency + host.latency)
        added += costs.upload * model / host.sends + costs.download * model / host.receives
        rate += group.count / (group.step_time.mean_seconds + added)
    updates, seconds = stop.updates or float("inf"), stop.seconds or float("inf")
    at_least = min(max_gradients, updates * protocol.size(cluster.num_workers), seconds * rate)
    if at_least > MAX_GRADIENTS:
        raise InputError(
            f"about {at_least:.3g} gradients or more come before the end; {MAX_GRADIENTS:.0e} is the limit", "stop"
        )
    return updates, max_gradients, seconds
