"""A worker's way to the server and back: it receives parameters, computes a gradient, sends it, and may be stopped."""

from __future__ import annotations

import functools
from collections.abc import Generator, Iterable
from typing import Any

import simpy

from asyncsim.cluster.buckets import Piece
from asyncsim.cluster.cluster import Cluster
from asyncsim.network.outbox import Outbox
from asyncsim.network.steps import Steps
from asyncsim.network.transfers import Message, Transfers
from asyncsim.network.turns import Turn, bury, call, countdown
from asyncsim.recorder import Recorder
from asyncsim.vocabulary import COMPUTE, DOWN, RECEIVE, SEND, UP

Process = Generator[simpy.Event, Any, None]


class RoundTrips:
    """All workers' ways to the server and back, as whole messages or in pieces that are sent while more is computed."""

    def __init__(self, env: simpy.Environment, log: Recorder, cluster: Cluster, transfers: Transfers, steps: Steps):
        self.env, self.log, self.transfers, self._steps = env, log, transfers, steps
        self.num_workers = n = cluster.num_workers
        model_bytes, costs = log.workload.model_bytes, log.costs
        self._shards = range(n, n + cluster.servers.shards)
        self.sizes = {UP: costs.upload * model_bytes, DOWN: costs.download * model_bytes}
        self._buckets = cluster.buckets
        self._replies: dict[int, dict[Piece, simpy.Event]] = {}  # what is still coming to a worker
        self._outboxes: dict[int, Outbox] = {}
        self._process: dict[int, simpy.Process] = {}
        self._stage = [0] * n  # of each worker's gradients, how many began and ended
        self._plain: dict[int, list[tuple[float, int, int] | None]] = {}  # see ``plain``; by worker, up and down
        self._flying: dict[int, tuple[int, int, int, float, float]] = {}  # of those, what is on its way

    def gradient(self, worker: int, receive: bool = True) -> Generator[simpy.Event, Any, bool]:
        """As ``Simulation.gradient`` says."""
        if worker not in self._process:
            process = self.env.active_process
            assert process is not None
            self._process[worker] = process
        self._stage[worker] += 1  # odd: at work
        pieces, messages = self._steps.pieces, list[Message]()
        try:
            # drawn for each gradient that is begun, as there is one mini-batch
            late, seconds = self._steps.next[worker]()
            if pieces is None:
                if receive:
                    yield from self._send(worker, DOWN, messages)
                self.log.enter(worker, COMPUTE)
                yield Turn(self.env, seconds, worker)
                yield from self._send(worker, UP, messages)
            else:
                if receive:
                    yield from self._receive(worker, pieces, messages)
                yield from self._in_pieces(worker, pieces, seconds, late)
        except simpy.Interrupt:
            self._give_up(worker, messages)
            return False
        finally:
            self._stage[worker] += 1
        return True

    def stop(self, workers: Iterable[int]) -> None:
        """As ``Simulation.stop`` says."""
        stages = [(worker, self._stage[worker]) for worker in workers if self._stage[worker] % 2]
        if stages:  # after everybody's turn
            call(self.env, 0.0, self.num_workers + 1, functools.partial(self._stopped, stages))

    def _stopped(self, stages: list[tuple[int, int]]) -> None:
        still = [self._process[worker] for worker, stage in stages if self._stage[worker] == stage]
        bury(self.env, [process.target for process in still])
        for process in still:
            process.interrupt()

    def close(self) -> None:
        """The end: write down what is on its way."""
        for worker in list(self._flying):
            self._in_flight(worker, float("inf"))

    def _send(self, worker: int, kind: int, messages: list[Message]) -> Process:
        """One message to, or from, each shard; all travel at once."""
        if worker not in self._plain:
            self._plain[worker] = [self.plain(worker, UP), self.plain(worker, DOWN)]
        plain, size = self._plain[worker][kind], self.sizes[kind]
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
        done = whole.happen if len(self._shards) == 1 else countdown(len(self._shards), whole.happen)
        for shard in self._shards:
            way = (worker, shard) if kind == UP else (shard, worker)
            messages.append(self.transfers.send(worker, kind, *way, size / len(self._shards), done))
        yield whole

    def _in_flight(self, worker: int, end: float) -> None:
        """What is on its way by latency alone does not arrive before this end."""
        if worker in self._flying:
            kind, source, target, size, begun = self._flying.pop(worker)
            self.log.transfer((begun, end, kind, worker, source, target, size, 0.0))

    def plain(self, worker: int, kind: int) -> tuple[float, int, int] | None:
        """Latency and hosts of a message that meets nothing else: one shard, no limit on its way."""
        if len(self._shards) > 1:
            return None
        ends = (worker, self._shards[0])
        route = self.transfers.layout.route(*(ends if kind == UP else ends[::-1]))
        free = not route.path and route.copies == float("inf")
        lead = self.transfers.lead(*(ends if kind == UP else ends[::-1]), self.sizes[kind])
        return (lead, route.source, route.target) if free else None

    def _outbox(self, worker: int, kind: int, ways: list[tuple[int, int]], arrived: Any) -> Outbox:
        self._drop_outbox(worker)
        pieces = self._steps.pieces
        assert pieces is not None
        box = Outbox(self.transfers, self._buckets, worker, kind, ways, self.sizes[kind], pieces, arrived)
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
