"""Storage, assigned as a compiler assigns registers: a slot for each thing that a later row still uses, and no more."""

from __future__ import annotations

import heapq

import numpy as np


def assign_slots(made: np.ndarray, used: np.ndarray) -> tuple[np.ndarray, int]:
    """A slot for each thing, and how many slots there are.

    ``made[k]`` and ``used[k]`` are the first and last row of thing k, in order of ``made``. A thing may take the slot
    of one last used in the row that makes it: rows read before they write.
    """
    slot, free, held, count = np.zeros(len(made), np.int32), list[int](), list[tuple[int, int]](), 0
    for k, (first, last) in enumerate(zip(made.tolist(), used.tolist(), strict=True)):
        while held and held[0][0] <= first:
            heapq.heappush(free, heapq.heappop(held)[1])
        if free:
            slot[k] = heapq.heappop(free)
        else:
            slot[k], count = count, count + 1
        heapq.heappush(held, (last, int(slot[k])))
    return slot, count


def roomy(slots: int) -> int:
    """A pool size that another trace of the same kind is likely to share, so that it need not compile anew: a multiple
    of 4, for larger pools of an eighth of their size."""
    unit = 4 if slots < 32 else 1 << (slots.bit_length() - 4)
    return -(-slots // unit) * unit


def allot(made: dict[int, int], used: dict[int, int]) -> tuple[dict[int, int], int]:
    """Slots by thing for things made and used at some rows; those that are never used are left out."""
    things = sorted((t for t in made if t in used), key=made.__getitem__)
    slot, count = assign_slots(np.array([made[t] for t in things], int), np.array([used[t] for t in things], int))
    return dict(zip(things, slot.tolist(), strict=True)), count
