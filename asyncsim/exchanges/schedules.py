"""Who receives from whom in each round of an exchange, and how much; how long an all-reduce takes in closed form.

The all-reduce algorithms and their cost model are those of Thakur, Rabenseifner and Gropp (Optimization of collective
communication operations in MPICH, 2005). The ring sends as little as any all-reduce can, 2 (P - 1)/P of the vector per
rank (Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from asyncsim.errors import InputError, nearest

NOBODY = -1


@dataclass(frozen=True, eq=False)
class Stage:
    """One round. Sizes are shares of the vector (the model, or a piece of it)."""

    sources: np.ndarray  # (P, m) the ranks that each rank receives from; NOBODY where there are fewer than m
    size: float  # of each message
    reduced: float  # of each message, how much its receiver adds to what it has

    @functools.cached_property
    def targets(self) -> np.ndarray:
        """(P, n) the ranks that each rank sends to, in ascending order; NOBODY where there are fewer than n."""
        ranks, _ = self.sources.shape
        receiver = np.repeat(np.arange(ranks), self.sources.shape[1])
        sender = self.sources.ravel()
        receiver, sender = receiver[sender != NOBODY], sender[sender != NOBODY]
        order = np.lexsort((receiver, sender))
        receiver, sender = receiver[order], sender[order]
        counts = np.bincount(sender, minlength=ranks)
        out = np.full((ranks, max(counts.max(initial=0), 1)), NOBODY)
        out[sender, np.arange(len(sender)) - np.repeat(np.cumsum(counts) - counts, counts)] = receiver
        return out


class Cost(NamedTuple):
    """What travels besides the rounds: of each piece its share of the model, and passes of a processor over it."""

    shares: list[float]
    before: float  # passes before the first round
    after: float  # and after the last one

    def check(self, worker: int, ready: Sequence[float], now: float) -> None:
        """Raise InputError unless a worker may join with pieces that get ``ready`` at these times."""
        if len(ready) != len(self.shares):
            raise InputError(f"expected {len(self.shares)} times, got {len(ready)}", f"join({worker}), ready")
        if not all(map(operator.le, (now, *ready), ready)):
            raise InputError(f"expected ascending times from {now} s on, got {list(ready)}", f"join({worker}), ready")


@dataclass(frozen=True, eq=False)
class Schedule:
    """The rounds of all ranks, one after another."""

    stages: tuple[Stage, ...]
    groups: np.ndarray | None = None  # (P,) the number of each rank's group, of which nobody is done before all have
    # begun; None: a rank depends on its neighbours alone, and on theirs by way of earlier pieces

    @property
    def ranks(self) -> int:
        return len(self.stages[0].sources)


def ring(ranks: int) -> Schedule:
    """Reduce-scatter, then all-gather, around a ring: 2 (P - 1) rounds of 1/P."""
    _log2(ranks)
    sources, part = (np.arange(ranks)[:, None] - 1) % ranks, 1 / ranks
    there, back = Stage(sources, part, part), Stage(sources, part, 0.0)
    return _together([there] * (ranks - 1) + [back] * (ranks - 1), ranks)


def recursive_doubling(ranks: int) -> Schedule:
    """Pairs at distance 1, 2, 4, ... exchange the whole vector: log2 P rounds."""
    return butterfly(ranks, range(_log2(ranks, whole=True)))


def butterfly(ranks: int, bits: Sequence[int]) -> Schedule:
    """Recursive doubling along some bits of the ranks' numbers, in this order: in groups of 2^len(bits) ranks."""
    _log2(ranks, whole=True)
    everybody = np.arange(ranks)
    stages = [Stage((everybody ^ 1 << bit)[:, None], 1.0, 1.0) for bit in bits]
    fixed = ~sum(1 << bit for bit in bits)
    return Schedule(tuple(stages or [_silence(ranks)]), everybody & fixed)


def rabenseifner(ranks: int) -> Schedule:
    """Reduce-scatter by recursive halving, then all-gather: rounds of 1/2, 1/4, ..., 1/P of the vector, and back.

    As in MPICH (and Open MPI) the halves go to the nearest, at distance 1, and the smallest parts farthest.
    """
    everybody = np.arange(ranks)
    steps = [((everybody ^ 1 << k)[:, None], 1 / (2 << k)) for k in range(_log2(ranks, whole=True))]
    there = [Stage(sources, part, part) for sources, part in steps]
    return _together(there + [Stage(sources, part, 0.0) for sources, part in steps[::-1]], ranks)


def binomial_tree(ranks: int) -> Schedule:
    """The whole vector up a binomial tree to rank 0, which adds, and down again: 2 log2 P rounds (rounded up)."""
    up, down = [], []
    for step in (1 << k for k in range(_log2(ranks))):
        child = np.arange(step, ranks, 2 * step)
        sources = np.full((2, ranks, 1), NOBODY)
        sources[0, child - step, 0], sources[1, child, 0] = child, child - step
        up.append(Stage(sources[0], 1.0, 1.0))
        down.append(Stage(sources[1], 1.0, 0.0))
    return _together(up + down[::-1], ranks)


def gather(ranks: int, size: float) -> Schedule:
    """All-gather of ``size`` from each rank around a ring: P - 1 rounds."""
    return _together([Stage((np.arange(ranks)[:, None] - 1) % ranks, size, 0.0)] * (ranks - 1), ranks)


def neighbours(sources: Sequence[Sequence[int]]) -> Schedule:
    """One round, in which each rank receives the whole vector from all of its sources at once."""
    width = max(max((len(mine) for mine in sources), default=0), 1)
    table = np.full((len(sources), width), NOBODY)
    for rank, mine in enumerate(sources):
        table[rank, : len(mine)] = mine
    return Schedule((Stage(table, 1.0, 1.0),))


def _together(stages: list[Stage], ranks: int) -> Schedule:
    return Schedule(tuple(stages or [_silence(ranks)]), np.zeros(ranks, int))


def _silence(ranks: int) -> Stage:
    return Stage(np.full((ranks, 1), NOBODY), 0.0, 0.0)


KINDS: dict[str, Callable[[int], Schedule]] = {
    **{"ring": ring, "recursive_doubling": recursive_doubling},
    **{"rabenseifner": rabenseifner, "binomial_tree": binomial_tree},
}


def schedule(kind: str, ranks: int) -> Schedule:
    """The rounds of an all-reduce. Raises InputError if there is no such kind, or not for so many ranks."""
    _check(kind)
    return KINDS[kind](ranks)


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
