"""The cluster in motion: what a protocol's processes wait for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterable
from typing import Any

import simpy

from asyncsim.cluster.buckets import Piece
from asyncsim.cluster.cluster import Cluster
from asyncsim.cluster.step_times import Place
from asyncsim.network.outbox import Outbox
from asyncsim.network.transfers import Message, Transfers
from asyncsim.network.turns import Lock, Turn, at, bury, call, countdown
from asyncsim.recorder import Recorder
from asyncsim.streams import Purpose, generator
from asyncsim.vocabulary import BETWEEN, COMPUTE, DOWN, RECEIVE, SEND, UP, WAIT

Process = Generator[simpy.Event, Any, None]
Asking = Generator[simpy.Event, Any, Any]


class Simulation:
    """What a protocol sees: the log it writes to, and the work and messages its workers wait for.

    What is a generator is waited for by ``yield from``. Times are in seconds, sizes in models (1: all parameters).
    """

    def __init__(self, env: simpy.Environment, log: Recorder, cluster: Cluster, seed: int):
        self.env = env
        self.log = log
        self.num_workers = n = cluster.num_workers
        self.seed, self.sharing = seed, cluster.sharing
        self.model_bytes = log.workload.model_bytes
        self.waits_for: dict[int, str | Callable[[], str]] = {}  # of each worker that waits, what for
        self.questions: list[tuple[int, simpy.Event]] = []  # asked and not yet answered
        self.transfers = Transfers(env, cluster, log.transfer, log.kind)
        servers, costs = cluster.servers, log.costs
        self._shards = range(n, n + servers.shards)
        self._sizes = {UP: costs.upload * self.model_bytes, DOWN: costs.download * self.model_bytes}
        self._buckets = cluster.buckets
        self._pieces = cluster.buckets.pieces(log.workload.tensor_bytes)
        self._seconds = [cluster.step_times(i, seed).__next__ for i in range(n)]
        self._parts = []  # where pieces of a step matter: step times, and delays before them
        if self._pieces is not None:
            self._parts = [cluster.step_times_and_delays(i, seed) for i in range(n)]
        self._replies: dict[int, dict[Piece, simpy.Event]] = {}  # what is still coming to a worker
        self._outboxes: dict[int, Outbox] = {}
        self._process: dict[int, simpy.Process] = {}
        self._stage = [0] * n  # of each worker's gradients, how many began and ended
        self._plain: dict[int, list[tuple[float, int, int] | None]] = {}  # see _if_plain; by worker, up and down
        self._flying: dict[int, tuple[int, int, int, float, float]] = {}  # of those, what is on its way
        # the server's turn, and what an update takes
        self.lock = Lock(env)
        self.locked = servers.lock
        self._per_buffer = 0.0  # seconds
        if servers.update_bandwidth is not None:
            self._per_buffer = self.model_bytes / servers.shards / servers.update_bandwidth
        self._moving = costs.update * self._per_buffer
        self._overhead = None
        if servers.update_seconds is not None:
            rng = generator(seed, Purpose.SERVER)
            self._overhead = servers.update_seconds.stream(rng, Place(seed)).__next__

    # ---------------------------------------------------------------- a worker

    def gradient(self, worker: int, receive: bool = True) -> Generator[simpy.Event, Any, bool]:
        """The worker receives what it has just read (unless it has it already), computes a gradient there, and sends it
        to the server. Returns whether it has arrived, or was stopped (``stop``) before. A worker's gradients are all
        made by one process."""
        if worker not in self._process:
            process = self.env.active_process
            assert process is not None
            self._process[worker] = process
        self._stage[worker] += 1  # odd: at work
        messages: list[Message] = []
        try:
            if self._pieces is None:
                seconds = self._seconds[worker]()  # one for each gradient that is begun, as there is one mini-batch
                if receive:
                    yield from self._send(worker, DOWN, messages)
                self.log.enter(worker, COMPUTE)
                yield Turn(self.env, seconds, worker)
                yield from self._send(worker, UP, messages)
            else:
                times, delays = self._parts[worker]
                seconds, late = next(times), 0.0 if delays is None else next(delays)
                if receive:
                    yield from self._receive(worker, self._pieces, messages)
                yield from self._in_pieces(worker, self._pieces, seconds, late)
        except simpy.Interrupt:
            self._give_up(worker, messages)
            return False
        finally:
            self._stage[worker] += 1
        return True

    def compute(self, worker: int) -> simpy.Event:
        """The worker computes one gradient; nothing is received or sent."""
        return self.begin(worker)[0]

    def begin(self, worker: int) -> tuple[simpy.Event, list[float]]:
        """The worker begins one gradient: its end, and the times in seconds at which its pieces will be ready, in this
        order (``shares`` of the model's bytes); the last one is its end."""
        self.log.enter(worker, COMPUTE)
        now = self.env.now
        if self._pieces is None:
            seconds = self._seconds[worker]()
            return Turn(self.env, seconds, worker), [now + seconds]
        times, delays = self._parts[worker]
        seconds, late = next(times), 0.0 if delays is None else next(delays)
        ready = [now + (late + piece.ready * seconds) for piece in self._pieces[:-1]]
        return Turn(self.env, late + seconds, worker), [*ready, now + (late + seconds)]

    @property
    def shares(self) -> list[float]:
        """Of each piece of a gradient, in the order in which they get ready, its share of the model's bytes."""
        return [1.0] if self._pieces is None else [piece.share for piece in self._pieces]

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
        stages = [(worker, self._stage[worker]) for worker in workers if self._stage[worker] % 2]
        if stages:  # after everybody's turn
            call(self.env, 0.0, self.num_workers + 1, functools.partial(self._stopped, stages))

    def _stopped(self, stages: list[tuple[int, int]]) -> None:
        still = [self._process[worker] for worker, stage in stages if self._stage[worker] == stage]
        bury(self.env, [process.target for process in still])
        for process in still:
            process.interrupt()

    # ---------------------------------------------------------------- the server

    @property
    def server_takes_time(self) -> bool:
        return self._overhead is not None or self._per_buffer > 0

    def update(self, worker: int, adds: bool, makes: bool) -> simpy.Event:
        """The server ``adds`` the worker's gradient to a sum (two buffers), ``makes`` an update, or both."""
        seconds = 2 * self._per_buffer * adds
        if makes:
            seconds += self._moving + (self._overhead() if self._overhead else 0.0)
        return Turn(self.env, seconds, worker)

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
        slowest = max([1 / link.capacity for link in route.path], default=0.0)
        return route.latency + self.model_bytes * (slowest + 1 / route.copies)

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
        for worker in list(self._flying):
            self._in_flight(worker, float("inf"))
        self.transfers.close()

    def held(self) -> list[str]:
        """Messages that wait for a receiver, in words."""
        return self.transfers.held()

    # ---------------------------------------------------------------- messages

    def _send(self, worker: int, kind: int, messages: list[Message]) -> Process:
        """One message to, or from, each shard; all travel at once."""
        if worker not in self._plain:
            self._plain[worker] = [self._if_plain(worker, UP), self._if_plain(worker, DOWN)]
        plain, size = self._plain[worker][kind], self._sizes[kind]
        if plain:  # nothing but latency: no need to follow it on its way
            latency, source, target = plain
            begun = self.env.now
            if latency:
                self.log.enter(worker, SEND if kind == UP else RECEIVE)
                self._flying[worker] = (kind, source, target, size, begun)
                yield Turn(self.env, latency, worker)
                del self._flying[worker]
            self.log.transfer((begun, self.env.now, kind, worker, source, target, size, size))
            return
        self.log.enter(worker, SEND if kind == UP else RECEIVE)
        whole = Turn(self.env, None, worker)
        done = countdown(len(self._shards), whole.start)
        for shard in self._shards:
            way = (worker, shard) if kind == UP else (shard, worker)
            messages.append(self.transfers.send(worker, kind, *way, size / len(self._shards), done))
        yield whole

    def _in_flight(self, worker: int, end: float) -> None:
        """What is on its way by latency alone does not arrive before this end."""
        if worker in self._flying:
            kind, source, target, size, begun = self._flying.pop(worker)
            self.log.transfer((begun, end, kind, worker, source, target, size, 0.0))

    def _if_plain(self, worker: int, kind: int) -> tuple[float, int, int] | None:
        """Latency and hosts of a message that meets nothing else: one shard, no limit on its way."""
        if len(self._shards) > 1:
            return None
        ends = (worker, self._shards[0])
        route = self.transfers.layout.route(*(ends if kind == UP else ends[::-1]))
        free = not route.path and route.copies == float("inf")
        lead = self.transfers.lead(*(ends if kind == UP else ends[::-1]), self._sizes[kind])
        return (lead, route.source, route.target) if free else None

    def _outbox(self, worker: int, kind: int, ways: list[tuple[int, int]], arrived: Any) -> Outbox:
        self._drop_outbox(worker)
        assert self._pieces is not None
        box = Outbox(self.transfers, self._buckets, worker, kind, ways, self._sizes[kind], self._pieces, arrived)
        self._outboxes[worker] = box
        return box

    def _drop_outbox(self, worker: int) -> None:
        if worker in self._outboxes:
            self._outboxes.pop(worker).drop()

    def _give_up(self, worker: int, messages: list[Message]) -> None:
        for message in messages:
            self.transfers.drop(message)
        self._in_flight(worker, self.env.now)
        self._drop_outbox(worker)
        self._replies.pop(worker, None)

    def _receive(self, worker: int, given: list[Piece], messages: list[Message]) -> Process:
        """The reply, whole, or slice by slice until the worker can begin."""
        if not self._buckets.by_priority:
            yield from self._send(worker, DOWN, messages)
            return
        pieces = sorted(given, key=lambda piece: piece.begin)
        coming = {piece: simpy.Event(self.env) for piece in pieces}
        ways = [(shard, worker) for shard in self._shards]
        box = self._outbox(worker, DOWN, ways, lambda piece: coming[piece].succeed())
        box.put_all([(0.0, piece) for piece in pieces])
        self._replies[worker] = coming
        self.log.enter(worker, RECEIVE)
        yield coming[pieces[0]]

    def _in_pieces(self, worker: int, pieces: list[Piece], seconds: float, late: float) -> Process:
        """One gradient whose pieces are sent while the rest is computed, and which begins with what has come back."""
        forward = self._buckets.forward * seconds
        self.log.enter(worker, COMPUTE)
        if late:
            yield Turn(self.env, late, worker)
        if worker in self._replies:
            yield from self._forward(worker, forward)
        else:
            yield Turn(self.env, forward, worker)
        whole = Turn(self.env, None, worker)
        ways, arrived = [(worker, shard) for shard in self._shards], countdown(len(pieces), whole.start)
        box = self._outbox(worker, UP, ways, arrived)
        box.put_all([(max(piece.ready * seconds - forward, 0.0), piece) for piece in pieces])
        yield Turn(self.env, seconds - forward, worker)
        self.log.enter(worker, SEND)
        yield whole

    def _forward(self, worker: int, seconds: float) -> Process:
        """The forward pass, as far and as soon as the parameters have come."""
        coming = list(self._replies[worker].items())
        begin = 0
        while begin < len(coming):
            if not coming[begin][1].triggered:
                self.log.enter(worker, RECEIVE)
                yield coming[begin][1]
            end = begin
            while end < len(coming) and coming[end][1].triggered:
                end += 1
            self.log.enter(worker, COMPUTE)
            yield Turn(self.env, seconds * sum(piece.share for piece, _ in coming[begin:end]), worker)
            begin = end
        del self._replies[worker]
