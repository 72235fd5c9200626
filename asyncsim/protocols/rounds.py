"""What protocols in iterations share: the rounds that all workers go through, each in its own time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, Literal, TypeVar

import simpy

from asyncsim.errors import InputError
from asyncsim.exchanges import Exchange, Exchanges, Schedule
from asyncsim.exchanges.schedules import schedule
from asyncsim.network.simulation import Process, Simulation
from asyncsim.vocabulary import SEND

AllReduce = Literal["rabenseifner", "ring", "recursive_doubling", "binomial_tree"]
POWERS = ("rabenseifner", "recursive_doubling")  # those that need a power of two
R = TypeVar("R")


def all_reduce(kind: AllReduce | None, num_workers: int) -> Schedule:
    """The rounds of an all-reduce of this kind; None: Rabenseifner's, as MPI's for large messages, or a ring
    where the number of workers is no power of two."""
    kind = kind or ("ring" if num_workers & (num_workers - 1) else "rabenseifner")
    if kind in POWERS and num_workers & (num_workers - 1):
        raise InputError(f"{kind} needs a power of two of workers, not {num_workers}", "all_reduce")
    return schedule(kind, num_workers)


class Round:
    """One exchange, and what is mixed in it."""

    def __init__(self, sim: Simulation, exchange: Exchange):
        self.exchange = exchange
        self.messages: dict[int, int] = {}  # rows, by worker
        self._sim, self._mixes = sim, dict[tuple[int, ...], int]()
        self._came: dict[int, float] = {}  # when each worker's step was done
        self._latest = 0.0

    def finish(self, worker: int, done: simpy.Event, what: str, partners: Iterable[int] | None = None) -> Process:
        """The worker's step is done: it waits until those of its ``partners`` (None: of all) are, then it exchanges
        with them until ``done``."""
        self._came[worker] = self._latest = now = self._sim.env.now
        yield from self._sim.wait(worker, done, what)
        since = self._latest if partners is None else max((self._came.get(j, now) for j in partners), default=now)
        self._sim.log.enter(worker, SEND, max(since, now))

    def mix(self, members: Sequence[int], weights: Sequence[float]) -> int:
        """The weighted sum of these workers' messages; once for all who take it."""
        key = tuple(members)
        if key not in self._mixes:
            self._mixes[key] = self._sim.log.mix([self.messages[j] for j in members], weights)
        return self._mixes[key]


class Rounds(Generic[R]):
    """Rounds by number: each is made when the first worker comes to it, and forgotten when all have left it."""

    def __init__(self, num_workers: int, make: Callable[[int], R]):
        self._num_workers, self._make = num_workers, make
        self._open: dict[int, R] = {}
        self._left: dict[int, int] = {}

    def __getitem__(self, number: int) -> R:
        if number not in self._open:
            self._open[number], self._left[number] = self._make(number), 0
        return self._open[number]

    def leave(self, number: int) -> None:
        """A worker is through with this round."""
        self._left[number] += 1
        if self._left[number] == self._num_workers:
            del self._open[number], self._left[number]


def blocking(exchanges: Exchanges, schedules: Callable[[int], Schedule]) -> Rounds[Round]:
    """Rounds that wait for those that they need; ``schedules``: by number."""
    sim = exchanges.sim
    return Rounds(sim.num_workers, lambda t: Round(sim, exchanges.blocking(schedules(t))))
