"""The cluster in motion: what a protocol's processes wait for."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any

import simpy

from asyncsim.cluster.cluster import Cluster
from asyncsim.network.round_trips import Process, RoundTrips
from asyncsim.network.server import Server
from asyncsim.network.steps import Steps
from asyncsim.network.transfers import Transfers
from asyncsim.network.turns import Turn, at
from asyncsim.recorder import Recorder
from asyncsim.vocabulary import BETWEEN, COMPUTE, WAIT

Asking = Generator[simpy.Event, Any, Any]
__all__ = ["Asking", "Process", "Simulation"]


class Simulation:
    """What a protocol sees: the log it writes to, and the work and messages its workers wait for.

    What is a generator is waited for by ``yield from``. Times are in seconds, sizes in models (1: all parameters).
    """

    def __init__(self, env: simpy.Environment, log: Recorder, cluster: Cluster, seed: int):
        self.env = env
        self.log = log
        self.num_workers = cluster.num_workers
        self.seed, self.sharing = seed, cluster.sharing
        self.model_bytes = log.workload.model_bytes
        self.waits_for: dict[int, str | Callable[[], str]] = {}  # of each worker that waits, what for
        self.questions: list[tuple[int, simpy.Event]] = []  # asked and not yet answered
        self.transfers = Transfers(env, cluster, log.transfer, log.kind)
        self.steps = Steps(cluster, seed, log.workload.tensor_bytes)
        self.shares = self.steps.shares  # of each piece of a gradient, in the order in which they get ready
        self.server = Server(env, log, cluster, seed)
        self.round_trips = RoundTrips(env, log, cluster, self.transfers, self.steps)

    # ---------------------------------------------------------------- a worker

    def gradient(self, worker: int, receive: bool = True) -> Generator[simpy.Event, Any, bool]:
        """The worker receives what it has just read (unless it has it already), computes a gradient there, and sends it
        to the server. Returns whether it has arrived, or was stopped (``stop``) before. A worker's gradients are all
        made by one process."""
        return self.round_trips.gradient(worker, receive)

    def compute(self, worker: int) -> simpy.Event:
        """The worker computes one gradient; nothing is received or sent."""
        return self.begin(worker)[0]

    def begin(self, worker: int) -> tuple[simpy.Event, list[float]]:
        """The worker begins one gradient: its end, and the times in seconds at which its pieces will be ready, in this
        order (``shares`` of the model's bytes); the last one is its end."""
        self.log.enter(worker, COMPUTE)
        late, seconds = self.steps.next[worker]()
        now, whole = self.env.now, late + seconds
        ready = [now + (late + piece.ready * seconds) for piece in (self.steps.pieces or ())[:-1]]
        return Turn(self.env, whole, worker), [*ready, now + whole]

    def wait(self, worker: int, event: simpy.Event, what: str | Callable[[], str]) -> Asking:
        """The worker waits for something; ``what`` it is, or a function that says it when it is asked why nobody goes
        on."""
        self.log.enter(worker, WAIT)
        self.waits_for[worker] = what
        value = yield event
        del self.waits_for[worker]
        return value

    def process(self, worker: int, models: float) -> simpy.Event:
        """The processor of the worker's host goes over so many models (``Host.copy_bandwidth``), in its turn."""
        host = self.transfers.layout.host_of(worker)
        bandwidth = self.transfers.layout.hosts[host].copy_bandwidth
        size = models * self.model_bytes
        return Turn(self.env, self.transfers.processed(host, size, bandwidth) if bandwidth else 0.0, worker)

    def pass_over(self, worker: int, ready: list[float], passes: float, shared: bool) -> simpy.Event | None:
        """The end of so many passes over each piece of the worker's model, one piece after another as they get
        ``ready`` (seconds), apart from its processor's other work; None: that takes no time. ``shared``: with a thread
        that sends and averages models all the time, three passes and a model on its way again and again."""
        layout = self.transfers.layout
        host = layout.hosts[layout.host_of(worker)]
        if not host.copy_bandwidth:
            return None
        each = passes * self.model_bytes / host.copy_bandwidth
        if shared:
            busy = 3 / host.copy_bandwidth
            each *= 1 + busy / (busy + 1 / host.sends)
        time = 0.0
        for when, share in zip(ready, self.shares, strict=True):
            time = max(time, when) + share * each
        return at(self.env, time, worker)

    def after_all(self, worker: int) -> Turn:
        """To be started: at its instant it comes after all workers' turns and messages, by worker."""
        return Turn(self.env, None, self.num_workers + 1 + worker)

    def stop(self, workers: Iterable[int]) -> None:
        """These workers give up the gradients that they are at: their ``gradient`` returns False.

        That is at the end of this instant: what arrives at this very time has arrived; completion wins. The word
        travels with the new parameters; what a worker would compute until it hears of it is of no use.
        """
        self.round_trips.stop(workers)

    # ---------------------------------------------------------------- between peers, and values

    def send(
        self,
        worker: int,
        peer: int,
        models: float = 1.0,
        ready: simpy.Event | None = None,
        left: Callable[[], Any] = lambda: None,
    ) -> simpy.Event:
        """A message of so many models goes to a peer; the event is its arrival. ``ready``: a late receiver holds a
        large one (``Cluster.eager_limit``) until this has happened. ``left`` is called when its last byte is over the
        links; then the receiver's processor takes it in."""
        arrival = Turn(self.env, None, worker)
        size = models * self.model_bytes
        self.transfers.send(worker, BETWEEN, worker, peer, size, arrival.start, ready=ready, left=left)
        return arrival

    def seconds_between(self, worker: int, peer: int) -> float:
        """How long a model takes from one peer to another, if it is alone."""
        route = self.transfers.layout.route(worker, peer)
        return route.latency + self.model_bytes * (1 / route.rate + 1 / route.copies)

    def mean_seconds(self, worker: int) -> float:
        """Of its steps, without delays."""
        return self.transfers.layout.cluster.step_time(worker).mean_seconds

    def ask(self, worker: int) -> Asking:
        """What the algorithm decides for the worker at this point (``Algorithm.decide``): the learning goes on up to
        here. Only for a protocol that is ``steered``."""
        answer = simpy.Event(self.env)
        self.questions.append((worker, answer))
        return (yield answer)

    def close(self) -> None:
        """The end: write down what is on its way."""
        self.round_trips.close()
        self.transfers.close()

    def held(self) -> list[str]:
        """Messages that wait for a receiver, in words."""
        return self.transfers.held()
