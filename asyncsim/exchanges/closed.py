"""Exchanges in closed form: when each rank is done follows from when all begin, round by round, all ranks at once.

Messages of different rounds do not meet, unless a rank passes them on (``wires``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import simpy

from asyncsim.errors import InputError
from asyncsim.exchanges.schedules import Cost, Schedule
from asyncsim.exchanges.wires import NEVER, Wire, Wires
from asyncsim.network.simulation import Simulation
from asyncsim.network.turns import Turn, at
from asyncsim.vocabulary import BETWEEN

SLOW = (
    "a round's activation reached worker {} later than a piece of its own was ready, which has no closed form; "
    "fair, fifo or none have the messages in motion"
)


class ClosedExchange:
    """A blocking exchange in closed form."""

    def __init__(self, sim: Simulation, schedule: Schedule, cost: Cost, wires: Wires):
        self._sim, self._stages, self._groups, self._cost = sim, wires.of(schedule), schedule.groups, cost
        self._before, self._after = cost.before * wires.processing, cost.after * wires.processing
        self._sizes = [share * sim.model_bytes for share in cost.shares]
        self._ready = np.full((len(self._sizes), sim.num_workers), NEVER)
        self._waiting: dict[int, Turn] = {}
        self._missing = np.zeros(0, int) if schedule.groups is None else np.bincount(schedule.groups)  # by group
        self._news, self._next = False, NEVER  # joined since the last look; when the next look is

    def join(self, worker: int, ready: Sequence[float]) -> simpy.Event:
        self._cost.check(worker, ready, self._sim.env.now)
        self._ready[:, worker] = ready
        self._waiting[worker] = done = self._sim.after_all(worker)
        if self._groups is None:
            # nobody is done before the first piece of all that it depends on is ready, so it is early enough to look
            self._news = True
            if ready[0] < self._next:
                self._next = ready[0]
                _at(self._sim, ready[0], self._look)
        else:
            group = self._groups[worker]
            self._missing[group] -= 1
            if not self._missing[group]:
                one = len(self._missing) == 1
                self._settle(slice(None) if one else np.flatnonzero(self._groups == group))
        return done

    def _look(self) -> None:
        if self._next <= self._sim.env.now:
            self._next = NEVER
        if self._news and self._waiting:
            self._news = False
            self._settle(slice(None))

    def _settle(self, some: np.ndarray | slice) -> None:
        time = np.full(self._sim.num_workers, NEVER)
        time[some] = -NEVER
        for size, ready in zip(self._sizes, self._ready, strict=True):
            time[some] = np.maximum(time[some], ready[some]) + size * self._before[some]
            busy = np.full_like(time, -NEVER)
            for stage in self._stages:
                time[some] = stage.done(time, busy, size, some)
            time[some] = np.maximum(time[some], busy[some]) + size * self._after[some]
        known = [worker for worker in self._waiting if time[worker] < NEVER]
        for worker in known:
            turn = self._waiting.pop(worker)
            assert turn.callbacks is not None
            turn.callbacks.append(functools.partial(self._log, worker, float(time[worker])))
            turn.start_at(float(time[worker]))

    def _log(self, worker: int, end: float, _: simpy.Event) -> None:
        _log(self._sim, worker, float(self._ready[0, worker]), end, self._stages)


class ClosedPartialExchange:
    """A partial exchange in closed form: looks at each piece when the first worker arrives there.

    So it must not come to who has not begun its gradient by then, and is there before the activation is; where that
    happens, ``join`` raises InputError.
    """

    def __init__(
        self,
        sim: Simulation,
        schedule: Schedule,
        cost: Cost,
        wires: Wires,
        contributes: Callable[[int], Any],
        activator: int | None = None,
    ):
        n, self._cost = sim.num_workers, cost
        self._before, self._after = cost.before * wires.processing, cost.after * wires.processing
        self._sim, self._stages, self._contributes, self._activator = sim, wires.of(schedule), contributes, activator
        edges = wires.of(wires.hypercube)
        self._edges = [(stage.sources[:, 0], stage.in_latency[:, 0]) for stage in edges if stage.receives.all()]
        self._sizes = [share * sim.model_bytes for share in cost.shares]
        self._ready = np.full((len(self._sizes), n), NEVER)
        self._arrives = np.full(n, NEVER)  # of each that joined, when it arrives at the next piece
        # of each piece that was activated, when each worker's rounds begin and are over
        self._rounds: list[tuple[np.ndarray, np.ndarray]] = []
        self._first = NEVER  # when the first of all began
        self._waiting: dict[int, Turn] = {}
        self._next = NEVER  # when the next piece is looked at

    def join(self, worker: int, ready: Sequence[float]) -> simpy.Event:
        self._cost.check(worker, ready, self._sim.env.now)
        done = self._sim.after_all(worker)
        self._ready[:, worker] = ready
        time, before, after = -NEVER, self._before[worker], self._after[worker]
        for piece, (begin, over) in enumerate(self._rounds):
            size = self._sizes[piece]
            arrives = max(time, ready[piece]) + size * before
            if arrives < begin[worker] and self._activator in (None, worker):
                raise InputError(SLOW.format(worker), "cluster.sharing")
            time = float(max(arrives, over[worker]) + size * after)
        if len(self._rounds) == len(self._sizes):
            done.start_at(time)
            return done
        self._waiting[worker] = done
        piece = len(self._rounds)
        self._arrives[worker] = time = float(max(time, ready[piece]) + self._sizes[piece] * before)
        if self._activator in (None, worker):
            self._look_at(time)
        return done

    def over(self, worker: int) -> bool:
        return len(self._rounds) == len(self._sizes) and bool(self._rounds[-1][1][worker] <= self._sim.env.now)

    def _look_at(self, time: float) -> None:
        if time < self._next:
            self._next = time
            _at(self._sim, time, self._look)

    def _look(self) -> None:
        """Somebody arrives at the next piece now, after everybody's turn at this instant."""
        now = self._sim.env.now
        if self._next > now or len(self._rounds) == len(self._sizes):
            return  # there was an earlier one
        self._next = NEVER
        begin = self._activated()
        time, size, ready = begin, self._sizes[len(self._rounds)], self._ready
        busy = np.full_like(time, -NEVER)
        for stage in self._stages:
            time = stage.done(time, busy, size, slice(None))
        time = np.maximum(time, busy)
        self._rounds.append((begin, time))
        self._first = min(self._first, now)
        done = np.maximum(self._arrives, time) + size * self._after
        if len(self._rounds) < len(self._sizes):
            piece = len(self._rounds)
            self._arrives = np.maximum(done, ready[piece]) + self._sizes[piece] * self._before
            whose = slice(None) if self._activator is None else self._activator
            self._look_at(float(np.min(self._arrives[whose])))
            return
        for worker, begins in enumerate(begin.tolist()):
            if begins <= now:
                self._contributes(worker)
            else:
                _at(self._sim, begins, functools.partial(self._contributes, worker))
        for worker, turn in self._waiting.items():
            turn.start_at(float(done[worker]))
        self._waiting.clear()
        _at(self._sim, float(time.max()), self._log)

    def _activated(self) -> np.ndarray:
        """When each worker's rounds of the next piece begin."""
        begin = self._arrives
        if self._activator is not None:
            begin = np.full_like(begin, NEVER)
            begin[self._activator] = self._arrives[self._activator]
        while True:
            before = begin
            for sources, latency in self._edges:
                begin = np.minimum(begin, begin[sources] + latency)
            if np.array_equal(begin, before):
                return begin

    def _log(self) -> None:
        for worker, end in enumerate(self._rounds[-1][1].tolist()):
            _log(self._sim, worker, self._first, end, self._stages)


def _log(sim: Simulation, worker: int, begin: float, end: float, stages: list[Wire]) -> None:
    """All that a worker sent in one exchange, as one transfer from its host to itself: it went to several."""
    size = sum(stage.sent[worker] for stage in stages) * sim.model_bytes
    if size:
        host = sim.transfers.layout.host_of(worker)
        sim.log.transfer((begin, end, BETWEEN, worker, host, host, size, size))


def _at(sim: Simulation, time: float, what: Callable[[], Any]) -> None:
    """At this time, after everybody's turn."""
    turn = at(sim.env, time, sim.num_workers)
    assert turn.callbacks is not None
    turn.callbacks.append(lambda _: what())
