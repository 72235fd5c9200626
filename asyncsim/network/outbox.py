"""The pieces of one gradient, or of one reply, on their way one after another."""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections.abc import Callable
from typing import Any

from asyncsim.cluster.buckets import Buckets, Piece
from asyncsim.network.transfers import Message, Transfers
from asyncsim.network.turns import Turn, bury, call, countdown
from asyncsim.vocabulary import ROUNDING


class Outbox:
    """Sends what is put into it between a worker and the server's shards, each piece in equal parts to all of these.

    The next piece goes on the links when the one before has left them; their latencies overlap. Where pieces are fused,
    what is ready is gathered into one message when the one before has left. ``arrived`` is called with each piece when
    all of it is there.
    """

    def __init__(
        self,
        transfers: Transfers,
        buckets: Buckets,
        worker: int,
        kind: int,
        ways: list[tuple[int, int]],
        model_bytes: float,
        pieces: list[Piece],
        arrived: Callable[[Piece], Any],
    ):
        self._transfers, self._buckets = transfers, buckets
        self._worker, self._kind, self._ways, self._bytes = worker, kind, ways, model_bytes
        self._arrived = arrived
        # all are announced, or none: a small one must not overtake those before it
        self._largest = max(piece.share for piece in pieces) * model_bytes / len(ways)
        self._numbers = itertools.count()
        # by their rank: what is ready (to be fused), or what could be on the links
        self._waiting: list[tuple[float, int, Piece, list[Message]]] = []
        self._busy = self._closed = False
        self._messages: list[Message] = []
        self._alarm: Turn | None = None
        self._start = transfers.env.now

    def put_all(self, pieces: list[tuple[float, Piece]]) -> None:
        """Pieces get ready, each so many seconds from now, in this order."""
        begun, env = self._transfers.env.now, self._transfers.env
        coming = iter(pieces)

        def go_on(piece: Piece | None = None) -> None:
            # one at a time in the queue of events: what is given up leaves little there
            while piece is not None and not self._closed:
                self._put(piece)
                after, piece = next(coming, (0.0, None))
                if piece is not None and begun + after > env.now:
                    self._alarm = call(env, begun + after - env.now, self._worker, functools.partial(go_on, piece))
                    return

        after, first = pieces[0]
        next(coming)
        self._alarm = call(env, after, self._worker, functools.partial(go_on, first))

    def _put(self, piece: Piece) -> None:
        rank = piece.begin if self._buckets.by_priority else 0.0
        entry = (rank, next(self._numbers), piece, list[Message]())
        if self._buckets.fuses:
            self._push(entry)
            return
        entry[3].extend(self._send([piece], countdown(len(self._ways), lambda: self._push(entry))))

    def drop(self) -> None:
        """Give up what has not arrived."""
        self._closed = True
        bury(self._transfers.env, [self._alarm])
        for message in self._messages:
            self._transfers.drop(message)

    def _push(self, entry: tuple[float, int, Piece, list[Message]]) -> None:
        heapq.heappush(self._waiting, entry)
        self._go_on()

    def _go_on(self) -> None:
        if self._busy or self._closed or not self._waiting:
            return
        self._busy = True
        env = self._transfers.env
        if self._buckets.fuses:  # looks again at the next whole cycle
            cycle, passed = self._buckets.cycle, env.now - self._start
            whole = math.ceil(passed / cycle * (1 - ROUNDING) - ROUNDING)  # at a whole cycle: now
            call(env, max(whole * cycle - passed, 0.0), self._worker, self._fuse)
        elif self._buckets.by_priority:  # chooses among all that get ready at this instant
            call(env, 0.0, self._worker, self._next)
        else:
            self._next()

    def _next(self) -> None:
        if not self._closed:
            for message in heapq.heappop(self._waiting)[3]:
                self._transfers.begin(message)

    def _fuse(self) -> None:
        if self._closed:
            return
        pieces = [heapq.heappop(self._waiting)[2]]
        size = pieces[0].share * self._bytes
        while self._waiting:
            size += self._waiting[0][2].share * self._bytes
            if size > self._buckets.bucket_bytes:
                break
            pieces.append(heapq.heappop(self._waiting)[2])
        self._send(pieces)

    def _send(self, pieces: list[Piece], hold: Callable[[Message], Any] | None = None) -> list[Message]:
        """One message to or from each shard; what was sent is one piece, or several."""

        def all_left() -> None:
            self._busy = False
            self._go_on()

        def all_there() -> None:
            for piece in pieces:
                self._arrived(piece)

        left, done = countdown(len(self._ways), all_left), countdown(len(self._ways), all_there)
        part = sum(piece.share for piece in pieces) * self._bytes / len(self._ways)
        more: dict[str, Any] = {"left": left, "hold": hold, "as_large_as": self._largest}
        sent = [self._transfers.send(self._worker, self._kind, *way, part, done, **more) for way in self._ways]
        self._messages += sent
        return sent
