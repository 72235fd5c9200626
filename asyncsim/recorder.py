"""Writes a trace row by row: what a protocol, or a person, calls. Every verb returns the number of its row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from asyncsim.errors import InputError
from asyncsim.trace import Trace
from asyncsim.vocabulary import (
    APPLY,
    CANCEL,
    MERGE,
    MIX,
    PUBLISH,
    READ,
    RESET,
    SOURCES,
    STEP,
    TRANSFER_ARRAYS,
    TRANSFER_TYPES,
)
from asyncsim.workload import Costs, Workload


class Clock(Protocol):
    """Anything that knows the time: a SimPy environment, or a hand."""

    @property
    def now(self) -> float: ...


class Columns(NamedTuple):
    """What a trace is made of, as numbers: columns of its rows (8), of its spans (3) and of its transfers (8)."""

    rows: list[np.ndarray]
    spans: list[np.ndarray]
    transfers: list[np.ndarray]


class HandClock:
    """A clock set by hand."""

    now = 0.0


class Recorder:
    """A trace under way; ``kind`` is ``"server"`` or ``"peers"`` (``asyncsim.vocabulary`` explains the verbs).

    By hand: set ``log.now`` (seconds) and call the verbs; ``log.trace()`` checks all and returns the Trace::

        log = Recorder(2, "peers")
        for i in range(2):
            log.step(i, log.read(i))                      # a local gradient, at what was just read
        messages = [log.publish(i) for i in range(2)]
        mean = log.mix(messages, [0.5, 0.5])
        log.now = 1.0
        log.merge(0, mean)                                # takes the mean in place of its own model
        log.merge(1, mean, keep=0.5, take=0.5)            # averages it with its own
        trace = log.trace()

    With a server, the mean of two gradients as one update, and one that comes too late::

        log = Recorder(3, "server")
        reads = [log.read(i) for i in range(3)]
        log.apply(0, reads[0], weight=0.5, closes=False)
        log.apply(1, reads[1], weight=0.5)                # closes the update: theta moves by the mean
        log.apply(2, reads[2], accepted=False)            # arrives, and is dropped

    In a simulation ``clock`` is the SimPy environment. ``on_full`` is called once, at the row by which ``max_updates``
    or ``max_gradients`` is reached (gradients are looked at where an update closes).
    """

    def __init__(
        self,
        num_workers: int,
        kind: str,
        *,
        clock: Clock | None = None,
        workload: Workload | None = None,
        costs: Costs | None = None,
        max_updates: float = float("inf"),
        max_gradients: float = float("inf"),
        on_full: Callable[[], Any] = lambda: None,
    ):
        if kind not in SOURCES:
            raise InputError(f"expected 'server' or 'peers', got {kind!r}", "kind")
        if not isinstance(num_workers, int) or num_workers < 1:
            raise InputError(f"expected a whole number >= 1, got {num_workers!r}", "num_workers")
        self.num_workers, self.kind = num_workers, kind
        self.workload, self.costs = workload or Workload(), costs or Costs()
        self.clock: Any = clock or HandClock()
        self.updates = self.gradients = 0
        self.max_updates, self.max_gradients, self._on_full = max_updates, max_gradients, on_full
        # one flat list: a list of tuples, taken apart at the end, is three times slower
        self._rows: list[float] = []
        self._kept = [np.zeros(0)] * 8  # those rows that are columns of arrays already
        self._spans: list[float] = []
        self._transfers: list[float] = []
        # a message: when it was sent, and had arrived or was given up (infinite: neither); UP, DOWN or BETWEEN; whose
        # it is, from which host to which; its bytes, and how many of them went over the links by then
        self.transfer: Callable[[tuple[float, ...]], None] = self._transfers.extend
        self._log, self._count = self._rows.extend, 0
        self.released: set[int] = set()
        self._mixes: dict[int, tuple[Sequence[int], Sequence[float]]] = {}

    @property
    def now(self) -> float:
        """Simulated time in seconds. Can be set where the clock is not a simulation's."""
        return self.clock.now

    @now.setter
    def now(self, seconds: float) -> None:
        if not isinstance(self.clock, HandClock):
            raise InputError("the time of a simulation cannot be set")
        self.clock.now = seconds

    def _row(self, verb: int, worker: int, source: int, keep: float, take: float, accepted: bool, closes: bool) -> int:
        row = self._count
        self._count = row + 1
        self._log((self.clock.now, verb, worker, source, keep, take, accepted, closes))
        return row

    def read(self, worker: int) -> int:
        """The worker takes the server's view, or (a peer) fixes the point of its next gradient."""
        return self._row(READ, worker, -1, 1.0, 1.0, True, False)

    def step(self, worker: int, read: int) -> int:
        """One gradient at the point of the read, into the worker's own state."""
        row = self._row(STEP, worker, read, 1.0, 1.0, True, False)
        self.gradients += 1
        if self.kind == "peers":
            self.updates += 1
            self._full()
        return row

    def apply(
        self, worker: int, read: int, *, weight: float = 1.0, accepted: bool = True, closes: bool | None = None
    ) -> int:
        """One gradient at the point of the read arrives at the server.

        It is added to the update under way at ``weight``; the one that closes has the server make the update. Unless
        said otherwise each accepted gradient is an update of its own.
        """
        closes = accepted if closes is None else closes
        row = self._row(APPLY, worker, read, 1.0, weight, accepted, closes)
        self.gradients += accepted
        if closes:
            self.updates += 1
            self._full()
        return row

    def publish(self, worker: int, *, keep: float = 1.0) -> int:
        """The worker puts out a message; ``keep`` is the part of its mass that stays (push-sum; else 1)."""
        return self._row(PUBLISH, worker, -1, keep, 1.0, True, False)

    def mix(self, messages: Sequence[int], weights: Sequence[float]) -> int:
        """The weighted sum of messages, as they were published."""
        if len(messages) != len(weights):
            raise InputError(f"{len(messages)} messages and {len(weights)} weights", f"row {self._count}, mix")
        self._mixes[self._count] = (list(messages), list(weights))
        return self._row(MIX, -1, -1, 1.0, 1.0, True, False)

    def merge(self, worker: int, mix: int, *, keep: float = 0.0, take: float = 1.0) -> int:
        """The worker's model becomes keep x own + take x mix."""
        return self._row(MERGE, worker, mix, keep, take, True, False)

    def cancel(self, worker: int, read: int) -> int:
        """The gradient on this read is dropped unfinished; its mini-batch counts as drawn."""
        return self._row(CANCEL, worker, read, 1.0, 1.0, True, False)

    def reset(self, worker: int, source: int) -> int:
        """The worker's own state starts afresh from a source: a read of the server's view, or a mix of messages."""
        return self._row(RESET, worker, source, 0.0, 1.0, True, False)

    def release(self, *rows: int) -> None:
        """No later row will name these messages and mixes. Only where the learning goes along (a steered protocol):
        until then it keeps what they hold."""
        self.released.update(rows)

    def enter(self, worker: int, kind: int, since: float | None = None) -> None:
        """From now on the worker does this: COMPUTE, SEND, RECEIVE, WAIT or SERVED. ``since``: it has done so from that
        time on, which is after it entered what it did before."""
        self._spans.extend((self.clock.now if since is None else since, worker, kind))

    def _full(self) -> None:
        if self.updates >= self.max_updates or self.gradients >= self.max_gradients:
            self.max_updates = self.max_gradients = float("inf")
            self._on_full()

    @property
    def latest(self) -> float:
        """When somebody last entered something, in seconds."""
        return self._spans[-3] if self._spans else 0.0

    def doing(self) -> dict[int, int]:
        """What each worker entered last."""
        return {int(w): int(k) for w, k in zip(self._spans[1::3], self._spans[2::3], strict=True)}

    def trace(self, end: float | None = None, *, rows_only: bool = False) -> Trace:
        """The checked trace of all rows so far; the run ends at ``end`` seconds, by default now. ``rows_only``: without
        spans and transfers, for one who asks again and again."""
        new = _columns(self._rows[8 * len(self._kept[0]) :], 8, whole=(1, 2, 3))
        self._kept = [np.concatenate(pair) for pair in zip(self._kept, new, strict=True)]
        sizes = np.zeros(self._count + 1, np.int64)
        members: list[int] = []
        shares: list[float] = []
        for row, (messages, weights) in self._mixes.items():
            sizes[row + 1] = len(messages)
            members.extend(messages)
            shares.extend(weights)
        spans, sent = ([], []) if rows_only else (self._spans, self._transfers)
        (member,) = _columns(members, 1, whole=(0,))
        (share,) = _columns(shares, 1)
        return made(
            self,
            Columns(self._kept, _columns(spans, 3, whole=(1, 2)), _columns(sent, 8, whole=(2, 3, 4, 5))),
            float(self.clock.now if end is None else end),
            mix_start=np.cumsum(sizes),
            member=member.astype(np.int32),
            share=share,
        )


def made(log: Recorder, columns: Columns, end: float, **mixes: np.ndarray) -> Trace:
    """The checked trace of these columns, of the kind, workers and costs that a recorder is for."""
    time, verb, worker, source, keep, take, accepted, closes = columns.rows
    span_time, span_worker, span_kind = columns.spans
    transfers = [c.astype(kind) for c, kind in zip(columns.transfers, TRANSFER_TYPES, strict=True)]
    return Trace(
        log.kind,
        log.num_workers,
        end,
        time,
        verb.astype(np.int8),
        worker.astype(np.int32),
        source.astype(np.int32),
        keep,
        take,
        accepted.astype(bool),
        closes.astype(bool),
        span_time=span_time,
        span_worker=span_worker.astype(np.int32),
        span_kind=span_kind.astype(np.int8),
        workload=log.workload,
        costs=log.costs,
        **mixes,
        **dict(zip(TRANSFER_ARRAYS, transfers, strict=True)),
    )


def _columns(flat: list[Any], width: int, whole: tuple[int, ...] = ()) -> list[np.ndarray]:
    """A flat list of rows as columns of numbers, some of which must be whole."""
    try:
        columns = list(np.array(flat, float).reshape(-1, width).T.copy())
    except (TypeError, ValueError) as error:
        raise InputError(f"something written to the trace is no number: {error}") from None
    for k in whole:
        odd = columns[k][(columns[k] != np.floor(columns[k])) | (np.abs(columns[k]) >= 2**31)]
        if len(odd):
            raise InputError(f"workers, rows and kinds of span are whole numbers, not {odd[0]}")
    return columns
