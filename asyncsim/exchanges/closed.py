"""Exchanges in closed form: when each rank is done follows from when all begin, round by round, all ranks at once.

The messages of a round share the links as if all of them were sent at once; each then takes as long whenever it is
sent, and messages of different rounds do not meet. What a rank waits for is as it is in motion.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import simpy

from asyncsim.exchanges.schedules import NOBODY, Cost, Schedule, Stage, recursive_doubling
from asyncsim.network.layout import Route
from asyncsim.network.sharing import FairSharing, Flow
from asyncsim.network.simulation import Simulation
from asyncsim.network.turns import Turn
from asyncsim.vocabulary import BETWEEN

NEVER = float("inf")
UNIT = 1e9  # bytes: of a message by which times per byte are found


class _Stage:
    """One round on this network: of each message its latency, and the seconds per byte of its way and its receiver."""

    def __init__(self, sim: Simulation, stage: Stage):
        layout, self.limit, self.size = sim.transfers.layout, sim.transfers.eager_limit, stage.size
        pairs = [(s, t) for t, row in enumerate(stage.sources.tolist()) for s in row if s != NOBODY]
        routes: dict[tuple[int, int], Route] = {(s, t): layout.route(s, t) for s, t in pairs}
        way = _seconds_per_byte(routes)
        into: dict[int, int] = {}  # ranks of one host that receive at once take turns at its processor
        for route in {t: route for (_, t), route in routes.items() if route.copies < NEVER}.values():
            into[route.target] = into.get(route.target, 0) + 1

        def table(partners: np.ndarray, inward: bool, value: Callable[[tuple[int, int]], float]) -> np.ndarray:
            out = np.zeros(partners.shape)
            for r, row in enumerate(partners.tolist()):
                for k, other in enumerate(row):
                    if other != NOBODY:
                        out[r, k] = value((other, r) if inward else (r, other))
            return out

        def copying(pair: tuple[int, int]) -> float:
            route = routes[pair]
            return into.get(route.target, 1) / route.copies

        self.sources, self.targets = stage.sources, stage.targets
        self.receives, self.sends = stage.sources != NOBODY, stage.targets != NOBODY
        self.in_latency = table(stage.sources, True, lambda pair: routes[pair].latency)
        self.in_way = table(stage.sources, True, way.__getitem__)
        self.in_copy = table(stage.sources, True, copying)
        self.out_latency = table(stage.targets, False, lambda pair: routes[pair].latency)
        self.out_way = table(stage.targets, False, way.__getitem__)
        self.copies, self.adds = bool(self.in_copy.any()), stage.reduced > 0
        self.sent = self.sends.sum(1) * stage.size  # models, by rank

    def done(self, start: np.ndarray, busy: np.ndarray, size: float, some: np.ndarray | slice) -> np.ndarray:
        """When some ranks are done with this round of ``size`` bytes in all, given when all ranks begin it.

        ``busy``: until when their processors take in what is only passed on; this round's is added there."""
        size *= self.size
        mine = start[some][:, None]
        rendezvous = size > self.limit
        out = mine + self.out_latency[some]
        come = start[self.sources[some]] + self.in_latency[some]
        if rendezvous:
            out = np.maximum(out, start[self.targets[some]]) + 2 * self.out_latency[some]
            come = np.maximum(come, mine) + 2 * self.in_latency[some]
        out += size * self.out_way[some]
        come += size * self.in_way[some]
        out = np.where(self.sends[some], out, -NEVER).max(1)
        come = np.where(self.receives[some], come, -NEVER)
        last = come.max(1)
        if self.copies:
            taken = self._taken_in(come, busy[some], size * self.in_copy[some])
            if self.adds:
                last = np.where(last > -NEVER, taken, last)
            else:
                busy[some] = taken
        return np.maximum(np.maximum(out, last), mine[:, 0])

    def _taken_in(self, come: np.ndarray, busy: np.ndarray, copy: np.ndarray) -> np.ndarray:
        """When the processor is through, which takes one after another, as they come."""
        if come.shape[1] > 1:
            order = np.argsort(come, 1, kind="stable")
            come, copy = np.take_along_axis(come, order, 1), np.take_along_axis(copy, order, 1)
        for k in range(come.shape[1]):
            busy = np.maximum(busy, come[:, k]) + copy[:, k]
        return busy


def _seconds_per_byte(routes: dict[tuple[int, int], Route]) -> dict[tuple[int, int], float]:
    """If all are sent at once, each as large as the others."""
    sharing, flows, ends = FairSharing(), dict[Flow, tuple[int, int]](), dict.fromkeys(routes, 0.0)
    for pair, route in routes.items():
        if route.path:
            flow = Flow(UNIT, route.path)
            flows[flow] = pair
            sharing.start(flow)
    while (end := sharing.settle()) < NEVER:
        for flow in sharing.advance(end):
            ends[flows[flow]] = end / UNIT
    return ends


class Wires:
    """All rounds that a simulation's exchanges have met, on its network."""

    def __init__(self, sim: Simulation):
        self._sim, self._stages = sim, dict[Stage, _Stage]()
        layout = sim.transfers.layout
        rates = [layout.hosts[layout.host_of(i)].copy_bandwidth for i in range(sim.num_workers)]
        self.processing = np.array([1 / rate if rate else 0.0 for rate in rates])  # seconds per byte, by worker

    @functools.cached_property
    def hypercube(self) -> Schedule:
        """The edges along which a word goes to all."""
        return recursive_doubling(self._sim.num_workers)

    def of(self, schedule: Schedule) -> list[_Stage]:
        """The rounds of this schedule."""
        for stage in schedule.stages:
            if stage not in self._stages:
                self._stages[stage] = _Stage(self._sim, stage)
        return [self._stages[stage] for stage in schedule.stages]


class ClosedExchange:
    """A blocking exchange in closed form."""

    def __init__(self, sim: Simulation, schedule: Schedule, cost: Cost, wires: Wires):
        self._sim, self._stages, self._groups = sim, wires.of(schedule), schedule.groups
        self._before, self._after = cost.before * wires.processing, cost.after * wires.processing
        self._sizes = [share * sim.model_bytes for share in cost.shares]
        self._ready = np.full((len(self._sizes), sim.num_workers), NEVER)
        self._waiting: dict[int, Turn] = {}
        if schedule.groups is None:
            self._missing = np.zeros(0, int)
        else:
            self._missing = np.bincount(schedule.groups)
        self._news, self._next = False, NEVER  # joined since the last look; when the next look is

    def join(self, worker: int, ready: Sequence[float]) -> simpy.Event:
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
                alone = self._missing.sum() == 0 and len(np.unique(self._groups)) == 1
                self._settle(slice(None) if alone else np.flatnonzero(self._groups == group))
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

    Who has not begun its gradient by then arrives later than that by far more than the activation takes.
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
        n = sim.num_workers
        self._before, self._after = cost.before * wires.processing, cost.after * wires.processing
        self._sim, self._stages, self._contributes, self._activator = sim, wires.of(schedule), contributes, activator
        edges = wires.of(wires.hypercube)
        self._edges = [(stage.sources[:, 0], stage.in_latency[:, 0]) for stage in edges if stage.receives.all()]
        self._sizes = [share * sim.model_bytes for share in cost.shares]
        self._ready = np.full((len(self._sizes), n), NEVER)
        self._arrives = np.full(n, NEVER)  # of each that joined, when it arrives at the next piece
        self._over: list[np.ndarray] = []  # of each piece that was activated, when each worker's rounds are over
        self._begun = NEVER
        self._waiting: dict[int, Turn] = {}
        self._next = NEVER  # when the next piece is looked at

    def join(self, worker: int, ready: Sequence[float]) -> simpy.Event:
        done = self._sim.after_all(worker)
        self._ready[:, worker] = ready
        time, before, after = -NEVER, self._before[worker], self._after[worker]
        for piece, over in enumerate(self._over):
            size = self._sizes[piece]
            time = float(max(max(time, ready[piece]) + size * before, over[worker]) + size * after)
        if len(self._over) == len(self._sizes):
            done.start_at(time)
            return done
        self._waiting[worker] = done
        piece = len(self._over)
        self._arrives[worker] = time = float(max(time, ready[piece]) + self._sizes[piece] * before)
        if self._activator in (None, worker):
            self._look_at(time)
        return done

    def over(self, worker: int) -> bool:
        return len(self._over) == len(self._sizes) and bool(self._over[-1][worker] <= self._sim.env.now)

    def _look_at(self, time: float) -> None:
        if time < self._next:
            self._next = time
            _at(self._sim, time, self._look)

    def _look(self) -> None:
        """Somebody arrives at the next piece now, after everybody's turn at this instant."""
        now = self._sim.env.now
        if self._next > now or len(self._over) == len(self._sizes):
            return  # there was an earlier one
        self._next = NEVER
        begin = self._activated()
        time, size, ready = begin, self._sizes[len(self._over)], self._ready
        busy = np.full_like(time, -NEVER)
        for stage in self._stages:
            time = stage.done(time, busy, size, slice(None))
        time = np.maximum(time, busy)
        self._over.append(time)
        self._begun = min(self._begun, now)
        done = np.maximum(self._arrives, time) + size * self._after
        if len(self._over) < len(self._sizes):
            piece = len(self._over)
            self._arrives = np.maximum(done, ready[piece]) + self._sizes[piece] * self._before
            whose = slice(None) if self._activator is None else self._activator
            self._look_at(float(np.min(self._arrives[whose])))
            return
        for worker, at in enumerate(begin.tolist()):
            if at <= now:
                self._contributes(worker)
            else:
                _at(self._sim, at, functools.partial(self._contributes, worker))
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
        for worker, end in enumerate(self._over[-1].tolist()):
            _log(self._sim, worker, self._begun, end, self._stages)


def _log(sim: Simulation, worker: int, begin: float, end: float, stages: list[_Stage]) -> None:
    """All that a worker sent in one exchange, as one transfer from its host to itself: it went to several."""
    size = sum(stage.sent[worker] for stage in stages) * sim.model_bytes
    if size:
        host = sim.transfers.layout.host_of(worker)
        sim.log.transfer((begin, end, BETWEEN, worker, host, host, size, size))


def _at(sim: Simulation, time: float, what: Callable[[], Any]) -> None:
    """At this time, after everybody's turn."""
    turn = Turn(sim.env, None, sim.num_workers)
    assert turn.callbacks is not None
    turn.callbacks.append(lambda _: what())
    turn.start_at(time)
