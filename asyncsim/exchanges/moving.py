"""Exchanges as messages on the simulated network: a late rank delays exactly whom it should, and messages meet."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np
import simpy

from asyncsim.exchanges.schedules import NOBODY, Cost, Schedule
from asyncsim.network.simulation import Process, Simulation
from asyncsim.network.turns import Turn, at, call, countdown

Key = tuple[int, int, int]  # rank, piece, number of the round


class _Rounds:
    """The rounds of all ranks for all pieces, whoever begins them and when."""

    def __init__(self, sim: Simulation, schedule: Schedule, cost: Cost):
        self.sim = sim
        self.cost, (self._shares, self._before, self._after) = cost, cost
        self._sources = [[_some(row) for row in stage.sources] for stage in schedule.stages]
        self._targets = [[_some(row) for row in stage.targets] for stage in schedule.stages]
        self._sizes = [stage.size for stage in schedule.stages]
        self._adds = [stage.reduced > 0 for stage in schedule.stages]
        # by receiver, made by whoever is there first: it is ready; all is over the links; all is taken in
        self._ready: defaultdict[Key, simpy.Event] = defaultdict(sim.env.event)
        self._over, self._taken = dict[Key, _All](), dict[Key, _All]()

    def before(self, worker: int, piece: int) -> Process:
        """What its processor does before the first round."""
        if self._before:
            yield self.sim.process(worker, self._before * self._shares[piece])

    def after(self, worker: int, piece: int) -> Process:
        """What its processor does after the last one."""
        if self._after:
            yield self.sim.process(worker, self._after * self._shares[piece])

    def run(self, rank: int, piece: int) -> Generator[simpy.Event, Any, None]:
        """All rounds of one rank for one piece, from now on."""
        env, taking = self.sim.env, list[Turn]()
        for number, size in enumerate(self._sizes):
            key, targets = (rank, piece, number), self._targets[number][rank]
            left = _All(Turn(env, None, rank), len(targets))
            if self._sources[number][rank]:
                self._ready[key].succeed()
            for target in targets:
                self._send(rank, (target, piece, number), size * self._shares[piece], left)
            if targets:
                yield left.turn
            if self._sources[number][rank]:
                over, taken = self._all(self._over, key).turn, self._all(self._taken, key).turn
                if self._adds[number]:
                    yield taken
                else:  # what is only passed on is taken in while it travels on
                    yield over
                    taking.append(taken)
                del self._ready[key], self._over[key], self._taken[key]
        for taken in taking:
            if not taken.processed:
                yield taken

    def _send(self, rank: int, key: Key, size: float, left: _All) -> None:
        over, taken = self._all(self._over, key), self._all(self._taken, key)

        def leaves() -> None:
            left.one()
            over.one()

        sent = self.sim.send(rank, key[0], size, self._ready[key], leaves)
        assert sent.callbacks is not None
        sent.callbacks.append(lambda _: taken.one())

    def _all(self, store: dict[Key, _All], key: Key) -> _All:
        if key not in store:
            rank, _, number = key
            store[key] = _All(Turn(self.sim.env, None, rank), len(self._sources[number][rank]))
        return store[key]


class _All:
    """A turn that starts when something has happened so many times."""

    __slots__ = ("one", "turn")

    def __init__(self, turn: Turn, times: int):
        self.turn, self.one = turn, countdown(times, turn.start)


class MovingExchange:
    """A blocking exchange in motion."""

    def __init__(self, sim: Simulation, schedule: Schedule, cost: Cost):
        self._rounds = _Rounds(sim, schedule, cost)

    def join(self, worker: int, ready: Sequence[float]) -> simpy.Event:
        env, done = self._rounds.sim.env, self._rounds.sim.after_all(worker)
        self._rounds.cost.check(worker, ready, env.now)

        def chain() -> Process:
            for piece, time in enumerate(ready):
                if time > env.now:
                    yield at(env, time, worker)
                yield from self._rounds.before(worker, piece)
                yield from self._rounds.run(worker, piece)
                yield from self._rounds.after(worker, piece)
            done.start()

        env.process(chain())
        return done


class MovingPartialExchange:
    """A partial exchange in motion: the words that activate it are messages as well."""

    def __init__(
        self,
        sim: Simulation,
        schedule: Schedule,
        cost: Cost,
        contributes: Callable[[int], Any],
        activator: int | None = None,
    ):
        self._sim, self._rounds, self._contributes = sim, _Rounds(sim, schedule, cost), contributes
        self._activator, self._last = activator, len(cost.shares) - 1
        self._begun: set[tuple[int, int]] = set()  # worker, piece
        self._over: defaultdict[tuple[int, int], simpy.Event] = defaultdict(sim.env.event)

    def join(self, worker: int, ready: Sequence[float]) -> simpy.Event:
        env, done = self._sim.env, self._sim.after_all(worker)
        self._rounds.cost.check(worker, ready, env.now)

        def chain() -> Process:
            for piece, time in enumerate(ready):
                if time > env.now:
                    yield at(env, time, worker)
                yield from self._rounds.before(worker, piece)
                # after everybody's turn at that instant: all who arrive then are in time
                yield Turn(env, 0.0, self._sim.num_workers)
                if self._activator in (None, worker):
                    self._begin(worker, piece)
                over = self._over[worker, piece]
                if not over.processed:
                    yield over
                yield from self._rounds.after(worker, piece)
            done.start()

        env.process(chain())
        return done

    def over(self, worker: int) -> bool:
        return self._over[worker, self._last].triggered

    def _begin(self, worker: int, piece: int) -> None:
        if (worker, piece) in self._begun:
            return
        self._begun.add((worker, piece))
        if piece == self._last:
            self._contributes(worker)
        self._sim.env.process(self._part(worker, piece))
        for bit in range((self._sim.num_workers - 1).bit_length()):
            word = self._sim.send(worker, worker ^ 1 << bit, 0.0)
            assert word.callbacks is not None
            word.callbacks.append(functools.partial(self._told, worker ^ 1 << bit, piece))

    def _told(self, worker: int, piece: int, _: simpy.Event) -> None:
        # after everybody's turn: who arrives at this instant does so before it is told
        call(self._sim.env, 0.0, self._sim.num_workers, lambda: self._begin(worker, piece))

    def _part(self, worker: int, piece: int) -> Process:
        yield from self._rounds.run(worker, piece)
        self._over[worker, piece].succeed()


def _some(row: np.ndarray) -> list[int]:
    return [int(rank) for rank in row if rank != NOBODY]
