"""Exchanges as messages on the simulated network: a late rank delays exactly whom it should, and messages meet."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np
import simpy

from asyncsim.exchanges.schedules import NOBODY, Schedule
from asyncsim.network.simulation import Process, Simulation
from asyncsim.network.turns import Turn, call, countdown

Key = tuple[int, int, int]  # rank, piece, number of the round


class _Rounds:
    """The rounds of all ranks for all pieces, whoever begins them and when."""

    def __init__(self, sim: Simulation, schedule: Schedule):
        self.sim, self._shares = sim, sim.shares
        self._sources = [[_some(row) for row in stage.sources] for stage in schedule.stages]
        self._targets = [[_some(row) for row in stage.targets] for stage in schedule.stages]
        self._sizes = [stage.size for stage in schedule.stages]
        # by receiver, made by whoever is there first
        self._ready: defaultdict[Key, simpy.Event] = defaultdict(sim.env.event)
        self._arrivals: dict[Key, Turn] = {}
        self._missing: dict[Key, Callable[..., None]] = {}

    def run(self, rank: int, piece: int) -> Generator[simpy.Event, Any, None]:
        """All rounds of one rank for one piece, from now on."""
        env = self.sim.env
        for number, size in enumerate(self._sizes):
            sources, targets = self._sources[number][rank], self._targets[number][rank]
            if sources:
                self._ready[rank, piece, number].succeed()
            left = Turn(env, None, rank)
            count = countdown(len(targets), left.start)
            for target in targets:
                key = target, piece, number
                sent = self.sim.send(rank, target, size * self._shares[piece], self._ready[key], count)
                assert sent.callbacks is not None
                sent.callbacks.append(functools.partial(self._arrived, key))
            if targets:
                yield left
            if sources:
                yield self._arrival((rank, piece, number))
                for store in (self._ready, self._arrivals, self._missing):
                    del store[rank, piece, number]

    def _arrived(self, key: Key, _: simpy.Event) -> None:
        self._arrival(key)
        self._missing[key]()

    def _arrival(self, key: Key) -> Turn:
        """All that this rank receives in this round is there, at its worker's turn."""
        if key not in self._arrivals:
            rank, _, number = key
            self._arrivals[key] = turn = Turn(self.sim.env, None, rank)
            self._missing[key] = countdown(len(self._sources[number][rank]), turn.start)
        return self._arrivals[key]


class MovingExchange:
    """A blocking exchange in motion."""

    def __init__(self, sim: Simulation, schedule: Schedule):
        self._rounds = _Rounds(sim, schedule)

    def join(self, worker: int, ready: Sequence[float]) -> simpy.Event:
        env, done = self._rounds.sim.env, self._rounds.sim.after_all(worker)

        def chain() -> Process:
            for piece, time in enumerate(ready):
                if time > env.now:
                    yield _at(env, time, worker)
                yield from self._rounds.run(worker, piece)
            done.start()

        env.process(chain())
        return done


class MovingPartialExchange:
    """A partial exchange in motion: the words that activate it are messages as well."""

    def __init__(
        self, sim: Simulation, schedule: Schedule, contributes: Callable[[int], Any], activator: int | None = None
    ):
        self._sim, self._rounds, self._contributes = sim, _Rounds(sim, schedule), contributes
        self._activator, self._last = activator, len(sim.shares) - 1
        self._begun: set[tuple[int, int]] = set()  # worker, piece
        self._over: defaultdict[tuple[int, int], simpy.Event] = defaultdict(sim.env.event)

    def join(self, worker: int, ready: Sequence[float]) -> simpy.Event:
        env, done = self._sim.env, self._sim.after_all(worker)

        def chain() -> Process:
            for piece, time in enumerate(ready):
                # after everybody's turn at that instant: all who arrive then are in time
                yield _at(env, time, self._sim.num_workers)
                if self._activator in (None, worker):
                    self._begin(worker, piece)
                over = self._over[worker, piece]
                if not over.processed:
                    yield over
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


def _at(env: simpy.Environment, time: float, worker: int) -> Turn:
    turn = Turn(env, None, worker)
    turn.start_at(time)
    return turn


def _some(row: np.ndarray) -> list[int]:
    return [int(rank) for rank in row if rank != NOBODY]
