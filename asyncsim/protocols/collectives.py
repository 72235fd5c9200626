"""All-reduce among ranks 0 to P - 1: who sends how much to whom in each round, how long it takes, and all in motion.

The algorithms and the cost model are those of Thakur, Rabenseifner and Gropp (Optimization of collective communication
operations in MPICH, 2005). The ring sends as little as any all-reduce can, 2 (P - 1)/P of the vector per rank
(Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009).
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import simpy

from asyncsim.errors import InputError, nearest
from asyncsim.network.turns import Turn
from asyncsim.protocols.simulation import Simulation


class Round(NamedTuple):
    """What one rank does in one round; a receiver's round has the same number as its sender's."""

    target: int | None  # the rank that it sends to, or None
    source: int | None  # the rank that it receives from, or None
    size: float  # what it sends, in the unit in which the vector's size was given
    reduced: float  # of what it receives, how much it adds to what it has


Schedule = list[list[Round]]  # of each rank its rounds, as many for all


def ring(ranks: int, size: float) -> Schedule:
    """Reduce-scatter, then all-gather, around a ring: 2 (P - 1) rounds of size/P."""
    _log2(ranks)
    part = size / ranks
    first = [Round((r + 1) % ranks, (r - 1) % ranks, part, part) for r in range(ranks)]
    return [[each] * (ranks - 1) + [each._replace(reduced=0.0)] * (ranks - 1) for each in first]


def recursive_doubling(ranks: int, size: float) -> Schedule:
    """Pairs at distance 1, 2, 4, ... exchange the whole vector: log2 P rounds."""
    steps = [1 << k for k in range(_log2(ranks, whole=True))]
    return [[Round(r ^ step, r ^ step, size, size) for step in steps] for r in range(ranks)]


def rabenseifner(ranks: int, size: float) -> Schedule:
    """Reduce-scatter by recursive halving, then all-gather: rounds of size/2, size/4, ..., size/P, and back.

    As in MPICH (and Open MPI) the halves go to the nearest, at distance 1, and the smallest parts farthest.
    """
    steps = [(1 << k, size / (2 << k)) for k in range(_log2(ranks, whole=True))]
    there = [[Round(r ^ step, r ^ step, part, part) for step, part in steps] for r in range(ranks)]
    return [mine + [each._replace(reduced=0.0) for each in mine[::-1]] for mine in there]


def binomial_tree(ranks: int, size: float) -> Schedule:
    """The whole vector up a binomial tree to rank 0, which adds, and down again: 2 log2 P rounds (rounded up)."""

    def up(rank: int, step: int) -> Round:
        if rank % (2 * step) == step:
            return Round(rank - step, None, size, 0.0)
        if rank % (2 * step) == 0 and rank + step < ranks:
            return Round(None, rank + step, 0.0, size)
        return Round(None, None, 0.0, 0.0)

    steps = [1 << k for k in range(_log2(ranks))]
    there = [[up(r, step) for step in steps] for r in range(ranks)]
    # down each edge goes what came up it: what was received is sent, in the opposite order
    return [mine + [Round(each.source, each.target, each.reduced, 0.0) for each in mine[::-1]] for mine in there]


KINDS: dict[str, Callable[[int, float], Schedule]] = {
    **{"ring": ring, "recursive_doubling": recursive_doubling},
    **{"rabenseifner": rabenseifner, "binomial_tree": binomial_tree},
}


def schedule(kind: str, ranks: int, size: float) -> Schedule:
    """The rounds of every rank for a vector of this size. Raises InputError if there is no such kind, or not for so
    many ranks."""
    _check(kind)
    return KINDS[kind](ranks, size)


def seconds(
    kind: str, ranks: int, size: float, latency: float, bandwidth: float, reduce_bandwidth: float = float("inf")
) -> float:
    """How long an all-reduce of ``size`` bytes takes among equal ranks that begin together: the alpha-beta model.

    A message takes ``latency`` seconds and its bytes over ``bandwidth``, sending and receiving at once; a rank adds
    ``reduce_bandwidth`` bytes per second. Of a binomial tree of no power of two this is the most that it takes: some
    ranks have nothing to wait for, and send early.
    """
    _check(kind)
    depth = _log2(ranks, whole=kind in ("recursive_doubling", "rabenseifner"))
    share = (ranks - 1) / ranks
    rounds, sent, reduced = {  # the latter two in vectors
        "ring": (2 * (ranks - 1), 2 * share, share),
        "recursive_doubling": (depth, depth, depth),
        "rabenseifner": (2 * depth, 2 * share, share),
        "binomial_tree": (2 * depth, 2 * depth, depth),
    }[kind]
    return rounds * latency + sent * size / bandwidth + reduced * size / reduce_bandwidth


class AllReduce:
    """One all-reduce under way among some workers of a simulation, rank by rank; its schedule is in models.

    Each worker joins when it likes, by ``yield from all_reduce.join(worker)``, or is joined by a process of its own
    (passive participation) while it does something else. It goes on to its next round when what it sent and what it
    receives in this one have arrived, and what is to be added is added, at ``reduce_bandwidth`` bytes per second. (The
    ``copy_bandwidth`` of a host comes on top: it takes in every message from another host, whether it is added or not.)
    """

    def __init__(
        self, sim: Simulation, schedule: Schedule, workers: Sequence[int], reduce_bandwidth: float = float("inf")
    ):
        if len(workers) != len(schedule) or len(set(workers)) != len(workers):
            raise InputError(f"expected {len(schedule)} different workers, one a rank, got {list(workers)}", "workers")
        self._sim, self._schedule, self._workers = sim, schedule, list(workers)
        self._ranks = {worker: rank for rank, worker in enumerate(workers)}
        self._seconds_per_model = sim.model_bytes / reduce_bandwidth
        # by receiver's rank and round, made by whoever is there first
        self._ready: defaultdict[tuple[int, int], simpy.Event] = defaultdict(lambda: simpy.Event(sim.env))
        self._arrivals: dict[tuple[int, int], Turn] = {}

    def join(self, worker: int) -> Generator[simpy.Event, Any, None]:
        """All rounds of one worker, from now on; to be called once for each."""
        sim, rank = self._sim, self._ranks[worker]
        for number, (target, source, size, reduced) in enumerate(self._schedule[rank]):
            if source is not None:
                self._ready[rank, number].succeed()
            if target is not None:
                sent = sim.send(worker, self._workers[target], size, self._ready[target, number])
                assert sent.callbacks is not None
                sent.callbacks.append(functools.partial(self._arrived, target, number))
                yield sent
            if source is not None:
                yield self._arrival(rank, number)
            if reduced and self._seconds_per_model:
                yield Turn(sim.env, reduced * self._seconds_per_model, worker)

    def _arrived(self, rank: int, number: int, _: simpy.Event) -> None:
        self._arrival(rank, number).start()

    def _arrival(self, rank: int, number: int) -> Turn:
        """What this rank receives in this round is there, at its worker's turn."""
        if (rank, number) not in self._arrivals:
            self._arrivals[rank, number] = Turn(self._sim.env, None, self._workers[rank])
        return self._arrivals[rank, number]


def _check(kind: str) -> None:
    if kind not in KINDS:
        hint = nearest(kind, KINDS)
        raise InputError(f"no all-reduce is called {kind!r}; there are: {', '.join(KINDS)}{hint}", "kind")


def _log2(ranks: int, whole: bool = False) -> int:
    """The logarithm, rounded up; ``whole``: refuse what is no power of two."""
    if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
        raise InputError(f"expected a whole number >= 1, got {ranks!r}", "ranks")
    if whole and ranks & (ranks - 1):
        raise InputError(f"this all-reduce needs a power of two, not {ranks} ranks", "ranks")
    return (ranks - 1).bit_length()
