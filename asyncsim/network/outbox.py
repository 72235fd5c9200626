"""The pieces of one gradient, or of one reply, on their way one after another."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from typing import Any

from asyncsim.cluster.buckets import Buckets, Piece
from asyncsim.network.transfers import Message, Transfers
from asyncsim.network.turns import call
from asyncsim.vocabulary import ROUNDING


class Outbox:
    """Sends what is put into it between a worker and the server's shards, each piece in equal parts to all of these.

    The next piece goes on the links when the one before has left them; the latencies overlap. ``arrived`` is called
    with each piece when all of it is there.
    """

    def __init__(
        self,
        transfers: Transfers,
        buckets: Buckets,
        worker: int,
        kind: int,
        ways: list[tuple[int, int]],
        model_bytes: float,
        arrived: Callable[[Piece], Any],
    ):
        self._transfers, self._buckets = transfers, buckets
        self._worker, self._kind, self._ways, self._bytes = worker, kind, ways, model_bytes
        self._arrived = arrived
        self._waiting: list[tuple[float, Piece]] = []
        self._numbers = itertools.count()
        self._busy = self._closed = False
        self._messages: list[Message] = []
        self._start = transfers.env.now

    def put(self, piece: Piece) -> None:
        """A piece is ready."""
        if self._closed:
            return
        size = self._part(piece.share)
        lead = max(self._transfers.lead(*way, size) for way in self._ways)
        call(self._transfers.env, lead, self._worker, lambda: self._announced(piece))

    def drop(self) -> None:
        """Give up what has not arrived."""
        self._closed = True
        for message in self._messages:
            self._transfers.drop(message)

    def _part(self, share: float) -> float:
        return share * self._bytes / len(self._ways)

    def _announced(self, piece: Piece) -> None:
        rank = piece.begin if self._buckets.by_priority else float(next(self._numbers))
        heapq.heappush(self._waiting, (rank, piece))
        self._go_on()

    def _go_on(self) -> None:
        if self._busy or self._closed or not self._waiting:
            return
        self._busy = True
        env, cycle = self._transfers.env, self._buckets.cycle
        if cycle:  # looks again at the next whole cycle
            passed = env.now - self._start
            whole = math.ceil(passed / cycle * (1 - ROUNDING) - ROUNDING)  # at a whole cycle: now
            call(env, max(whole * cycle - passed, 0.0), self._worker, self._send)
        elif self._buckets.by_priority:  # chooses among all that get ready at this instant
            call(env, 0.0, self._worker, self._send)
        else:
            self._send()

    def _send(self) -> None:
        if self._closed:
            return
        pieces = [heapq.heappop(self._waiting)[1]]
        size = pieces[0].share * self._bytes
        while self._buckets.fuses and self._waiting:
            size += self._waiting[0][1].share * self._bytes
            if size > self._buckets.bucket_bytes:  # type: ignore[attr-defined]
                break
            pieces.append(heapq.heappop(self._waiting)[1])
        coming = leaving = len(self._ways)

        def left() -> None:
            nonlocal leaving
            leaving -= 1
            if not leaving:
                self._busy = False
                self._go_on()

        def done() -> None:
            nonlocal coming
            coming -= 1
            if not coming:
                for piece in pieces:
                    self._arrived(piece)

        part = self._part(sum(piece.share for piece in pieces))
        for way in self._ways:
            send = self._transfers.send
            self._messages.append(send(self._worker, self._kind, *way, part, done, left=left, led=True))
