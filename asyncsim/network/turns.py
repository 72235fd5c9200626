"""What happens at one instant goes in a fixed order, by worker: a delay, a line to stand in, a gate to wait at."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from heapq import heapify, heappush
from typing import Any

import simpy

MANY = 2000  # events in the queue, before it is worth looking for dead ones


class Turn(simpy.Event):
    """A delay after which workers that finish at the same instant go on in the order of their numbers.

    SimPy orders equal times by when each event was scheduled; then a fast worker would sometimes come before and
    sometimes after a slow one. The priority makes it one rule: everything SimPy does by itself at an instant comes
    first (priorities 0 and 1), then worker 0, 1, 2, ... With ``seconds`` None it is scheduled later, by ``start``.
    """

    __slots__ = ("_worker", "dead")

    def __init__(self, env: simpy.Environment, seconds: float | None, worker: int):
        # there is one for each gradient and message: simpy.Event.__init__ and Environment.schedule would be calls
        self.env, self.callbacks = env, []
        self._worker, self.dead = worker, False
        if seconds is not None:
            self._ok, self._value = True, None
            heappush(env._queue, (env._now + seconds, 2 + worker, next(env._eid), self))  # type: ignore[misc]

    def start(self, seconds: float = 0.0) -> None:
        """Happen so many seconds from now."""
        env, self._ok, self._value = self.env, True, None
        heappush(env._queue, (env._now + seconds, 2 + self._worker, next(env._eid), self))  # type: ignore[misc]

    def start_at(self, time: float) -> None:
        """Happen at this very time (now, if that is past): now + (time - now) would miss it by a hair."""
        env, self._ok, self._value = self.env, True, None
        heappush(env._queue, (max(time, env._now), 2 + self._worker, next(env._eid), self))  # type: ignore[misc]

    def happen(self) -> None:
        """Happen within the worker's turn that it is. Where nobody waits for it yet: at the next."""
        if not self.callbacks:
            self.start()
            return
        self._ok, self._value = True, None
        callbacks = self.callbacks
        self.callbacks = None  # type: ignore[assignment]
        for callback in callbacks:
            callback(self)


def call(env: simpy.Environment, seconds: float, worker: int, what: Callable[[], Any]) -> Turn:
    """Do something so many seconds from now, at the worker's turn."""
    turn = Turn(env, seconds, worker)
    turn.callbacks.append(lambda _: what())
    return turn


def at(env: simpy.Environment, time: float, worker: int) -> Turn:
    """The worker's turn at this very time."""
    turn = Turn(env, None, worker)
    turn.start_at(time)
    return turn


def countdown(times: int, what: Callable[[], Any]) -> Callable[..., None]:
    """A function that does something when it is called for the ``times``-th time, with whatever."""

    def once(*_: Any) -> None:
        nonlocal times
        times -= 1
        if not times:
            what()

    return once


def bury(env: simpy.Environment, turns: Iterable[simpy.Event | None]) -> None:
    """Nobody waits for these turns any more: they may leave the queue, where they would stay until their time."""
    for turn in turns:
        if isinstance(turn, Turn):
            turn.dead = True
    queue = env._queue
    if len(queue) > getattr(env, "_sweep_at", MANY):
        queue[:] = [entry for entry in queue if not getattr(entry[-1], "dead", False)]
        heapify(queue)
        env._sweep_at = 2 * len(queue) + MANY  # type: ignore[attr-defined]


class Lock:
    """One at a time, in order of arrival (at one instant: of their numbers, as turns go)."""

    def __init__(self, env: simpy.Environment):
        self._env, self._held, self._line = env, False, deque[Turn]()

    def enter(self, worker: int) -> Generator[simpy.Event, Any, None]:
        """Wait until it is this worker's turn."""
        if self._held:
            turn = Turn(self._env, None, worker)
            self._line.append(turn)
            yield turn
        self._held = True

    def leave(self) -> None:
        """The next one's turn."""
        if self._line:
            self._line.popleft().start()
        else:
            self._held = False


class Gate:
    """Workers wait in front of it until it opens, and go on in the order of their numbers."""

    def __init__(self, env: simpy.Environment):
        self._env, self._waiting = env, dict[int, Turn]()

    def event(self, worker: int) -> simpy.Event:
        """The next opening, for this worker."""
        self._waiting[worker] = turn = Turn(self._env, None, worker)
        return turn

    def open(self) -> None:
        """All who wait go on."""
        if not self._waiting:
            return
        for _, turn in sorted(self._waiting.items()):
            turn.start()
        self._waiting.clear()
