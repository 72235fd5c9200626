"""Flows that share links max-min fairly: who gets which rate, and who ends when. Nothing here knows of a simulation.

Max-min fair: no flow could be faster without making a slower one slower still. It is found by progressive filling:
all rates grow together until a link is full, its flows stop growing, the others go on (Bertsekas and Gallager, Data
Networks, 1992, section 6.5.2).

A thousand flows into one link change their rates at every start and end of one of them. So nothing is kept per flow
that changes with time: flows with the same shared links and the same limit elsewhere go at one rate, and form a class
with a clock of its own, the bytes that each of its flows was served (a virtual time, as in fair queueing). A flow ends
when this clock has gone on by its size, whatever the rates were in between.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable

SAME_TIME = 1e-12  # ends that are this close, as a share of the time, are one instant


class Link:
    """One direction of something that carries ``capacity`` bytes per second."""

    __slots__ = ("capacity", "flows", "free")

    def __init__(self, capacity: float):
        self.capacity = capacity
        self.flows: dict[Flow, None] = {}  # an ordered set: the same order in every run
        self.free = 0.0  # where messages queue: the time at which it has sent all that it was given


class Flow:
    """``size`` bytes on their way over some links (at least one)."""

    __slots__ = ("end", "entry", "group", "path", "size")

    def __init__(self, size: float, path: tuple[Link, ...]):
        self.size, self.path = size, path
        self.group: _Class | None = None
        self.end = self.entry = 0.0  # on its class's clock; its entry in the class's queue


class _Class:
    """Flows that share the same links with others, and are limited alike where they are alone."""

    __slots__ = ("count", "limit", "links", "queue", "rate", "served")

    def __init__(self, links: tuple[Link, ...], limit: float):
        self.links, self.limit = links, limit
        self.count, self.rate, self.served = 0, 0.0, 0.0
        self.queue: list[tuple[float, int, Flow]] = []  # by end; entries that their flow has left are stale

    def first(self) -> Flow:
        while self.queue[0][1] != self.queue[0][2].entry:
            heapq.heappop(self.queue)
        return self.queue[0][2]


class FairSharing:
    """Flows under way. Call ``advance`` before any change at a later time, and ``settle`` after the changes."""

    def __init__(self) -> None:
        self.now = 0.0
        self._classes: dict[tuple[tuple[Link, ...], float], _Class] = {}
        self._numbers = itertools.count(1)

    def advance(self, now: float) -> list[Flow]:
        """Let time go on to ``now``, at most to the next end; the flows that end there, in order of their start."""
        passed, self.now = now - self.now, now
        ended: list[Flow] = []
        for group in list(self._classes.values()):
            group.served += group.rate * passed
            slack = group.rate * now * SAME_TIME
            while group.count and (flow := group.first()).end <= group.served + slack:
                ended.append(flow)
                self._leave(flow)
        ended.sort(key=lambda flow: flow.entry)
        for flow in ended:
            self._unlink(flow)
        return ended

    @property
    def busy(self) -> bool:
        """Whether any flow is under way."""
        return bool(self._classes)

    def start(self, flow: Flow, left: float | None = None) -> None:
        """A flow begins now, with all of its bytes or with so many ``left``. Its rate is known after ``settle``."""
        for link in flow.path:
            link.flows[flow] = None
            if len(link.flows) == 2:  # the one that had it for itself shares it now
                self._move(next(iter(link.flows)))
        self._join(flow, flow.size if left is None else left)

    def stop(self, flow: Flow) -> float:
        """A flow is given up now; the bytes that it has moved."""
        left = self._leave(flow)
        self._unlink(flow)
        return flow.size - left

    def left(self, flow: Flow) -> float:
        """The bytes that a flow has still to move, at the time of the last ``advance``."""
        assert flow.group is not None
        return min(max(flow.end - flow.group.served, 0.0), flow.size)

    def settle(self) -> float:
        """Find all rates; the time of the next end in seconds (infinite if nothing is under way)."""
        fill(list(self._classes.values()))
        ends = (self.now + max(group.first().end - group.served, 0.0) / group.rate for group in self._classes.values())
        return min(ends, default=float("inf"))

    def _join(self, flow: Flow, left: float) -> None:
        shared = tuple(link for link in flow.path if len(link.flows) > 1)
        limit = min((link.capacity for link in flow.path if len(link.flows) == 1), default=float("inf"))
        group = self._classes.get((shared, limit))
        if group is None:
            group = self._classes[shared, limit] = _Class(shared, limit)
        flow.group, flow.end, flow.entry = group, group.served + left, next(self._numbers)
        heapq.heappush(group.queue, (flow.end, flow.entry, flow))
        group.count += 1

    def _leave(self, flow: Flow) -> float:
        group, left = flow.group, self.left(flow)
        assert group is not None
        group.count -= 1
        if not group.count:
            del self._classes[group.links, group.limit]
        flow.group, entry = None, flow.entry
        flow.entry = -entry  # what is in the queue is stale; the order of starts stays known
        return left

    def _unlink(self, flow: Flow) -> None:
        for link in flow.path:
            del link.flows[flow]
            if len(link.flows) == 1:  # the last one has it for itself
                last = next(iter(link.flows))
                if last.group is not None:
                    self._move(last)

    def _move(self, flow: Flow) -> None:
        if flow.group is not None:
            self._join(flow, self._leave(flow))


def fill(classes: Iterable[_Class]) -> None:
    """Progressive filling: set the rate of each class's flows."""
    waiting = dict.fromkeys(classes)
    room: dict[Link, float] = {}
    load: dict[Link, int] = {}
    for group in waiting:
        for link in group.links:
            room.setdefault(link, link.capacity)
            load[link] = load.get(link, 0) + group.count
    by_link: dict[Link, list[_Class]] = {link: [] for link in room}
    for group in waiting:
        for link in group.links:
            by_link[link].append(group)
    slowest = iter(sorted(waiting, key=lambda group: group.limit))
    limited = next(slowest, None)
    while waiting:
        while limited is not None and limited not in waiting:
            limited = next(slowest, None)
        full = min(load, key=lambda link: room[link] / load[link], default=None)
        level = room[full] / load[full] if full is not None else float("inf")
        if limited is not None and limited.limit <= level:
            stopping, level = [limited], limited.limit
        else:
            assert full is not None
            stopping = [group for group in by_link[full] if group in waiting]
        for group in stopping:
            del waiting[group]
            group.rate = level
            for link in group.links:
                room[link] = max(room[link] - level * group.count, 0.0)
                load[link] -= group.count
                if not load[link]:
                    del load[link]
