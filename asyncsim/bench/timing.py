"""Two sides against each other, in turn, in one process: what else the machine does meets both alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

ROUNDS = 5
Figures = Iterator[tuple[str, float]]  # name and value, as they are measured


class Spent(NamedTuple):
    """Seconds that something took."""

    cpu: float  # of all threads of this process
    wall: float


def spent(work: Callable[[], Any]) -> Spent:
    """What one call takes."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return Spent(time.process_time() - cpu, time.perf_counter() - wall)


def ratio(ours: Callable[[], Any], theirs: Callable[[], Any], rounds: int = ROUNDS) -> Spent:
    """How often ``ours`` would be done while ``theirs`` is done once: the median over rounds of theirs / ours, after
    one of each that is not counted (it compiles)."""
    ours(), theirs()
    pairs = []
    for k in range(rounds):
        both = [spent(work) for work in ((ours, theirs) if k % 2 else (theirs, ours))]
        pairs.append(both if k % 2 else both[::-1])
    return Spent(*(statistics.median(them[k] / us[k] for us, them in pairs) for k in range(2)))
