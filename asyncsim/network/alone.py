"""Workers that never meet: nobody waits, and nothing on the network or at the server is shared.

Then a worker's times are sums of its own, and all are added and put in order at once, many times faster than by events.
The trace is the same to the last bit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from asyncsim.network.simulation import Simulation
from asyncsim.recorder import Columns
from asyncsim.vocabulary import APPLY, COMPUTE, DOWN, READ, RECEIVE, SEND, UP

RECEIVED, COMPUTED, ARRIVED = range(3)  # what happens to a gradient, in this order
MOST = 2**20  # gradients of a worker whose times are drawn at once
NEVER = float("inf")


class Ways(NamedTuple):
    """Of each worker's messages, by ``UP`` and ``DOWN``: (N, 2) seconds of latency, hosts from where and to where, and
    (2,) bytes."""

    latency: np.ndarray
    source: np.ndarray
    target: np.ndarray
    size: np.ndarray


class Events(NamedTuple):
    """What happens, in order: when, to whose gradient, what, and when what comes before did (without latency: now)."""

    time: np.ndarray
    worker: np.ndarray
    what: np.ndarray
    since: np.ndarray

    def where(self, kept: np.ndarray) -> Events:
        """Those that are kept."""
        return Events(*(column[kept] for column in self))


def alone(sim: Simulation, gradients: float, seconds: float) -> tuple[Columns, float] | None:
    """All that workers do which read, compute and send for ever, each gradient an update: up to the last of so many, or
    up to a time, whichever comes first; and when that is. None: they meet on their way."""
    ways = _ways(sim)
    if ways is None:
        return None
    n = sim.num_workers
    times = _times(sim.steps.times, ways.latency, gradients, seconds)
    events = _in_order(times, ways.latency, seconds)
    arrivals = np.flatnonzero(events.what == ARRIVED)
    if len(arrivals) >= gradients:  # this is the end, whatever else comes at that instant
        last = int(arrivals[math.ceil(gradients) - 1])
        events, seconds = events.where(np.arange(last + 1)), float(events.time[last])
    arrived = events.where(events.what == ARRIVED)
    return Columns(_rows(arrived, n), _spans(events, ways, n), _transfers(events, ways)), seconds


def _ways(sim: Simulation) -> Ways | None:
    """None: something is shared on them, or at their end."""
    found = [[sim.round_trips.plain(worker, kind) for kind in (UP, DOWN)] for worker in range(sim.num_workers)]
    if sim.server.takes_time or sim.shares != [1.0] or any(way is None for both in found for way in both):
        return None
    latency, source, target = np.array([[way for way in both if way] for both in found]).transpose(2, 0, 1)
    sizes = np.array([sim.round_trips.sizes[kind] for kind in (UP, DOWN)])
    return Ways(latency, source.astype(int), target.astype(int), sizes)


def _times(streams: list[Iterator[float]], latency: np.ndarray, gradients: float, seconds: float) -> list[np.ndarray]:
    """Of each worker (m, 3) times at which its gradients' parameters are received, they are computed, and arrive: all
    that come before the end, and some more."""
    n = len(streams)
    known: list[list[np.ndarray]] = [[] for _ in range(n)]
    last, count = np.zeros(n), np.zeros(n, int)
    end = seconds  # at the latest
    while (behind := np.flatnonzero(last <= end)).size:
        for i in behind.tolist():
            # as many as it may need: at first, of all its share
            pace = last[i] / count[i] if count[i] else 0.0
            wanted = (end - last[i]) / pace if pace and end < NEVER else gradients / n if count[i] == 0 else count[i]
            more = int(min(max(1.1 * min(wanted, MOST), 16), MOST))
            parts = np.empty((more, 3))
            parts[:] = latency[i, DOWN], 0.0, latency[i, UP]
            parts[:, COMPUTED] = np.fromiter(itertools.islice(streams[i], more), float, more)
            if not count[i]:
                parts[0, RECEIVED] = 0.0  # it has the parameters
            # one after another, as a clock adds them up
            known[i].append(np.cumsum(np.concatenate([last[i : i + 1], parts.ravel()]))[1:].reshape(more, 3))
            last[i], count[i] = known[i][-1][-1, ARRIVED], count[i] + more
        if count.sum() >= gradients:
            arrivals = np.concatenate([block[:, ARRIVED] for mine in known for block in mine])
            k = math.ceil(gradients) - 1
            end = min(seconds, float(np.partition(arrivals, k)[k]))
    return [np.concatenate(mine) for mine in known]


def _in_order(times: list[np.ndarray], latency: np.ndarray, seconds: float) -> Events:
    """All that happens up to a time."""
    count = np.array([len(mine) for mine in times])
    owner, number = np.repeat(np.arange(len(times)), count), np.concatenate([np.arange(k) for k in count])
    time = np.concatenate(times)
    since = np.empty_like(time)
    since[1:, RECEIVED], since[0, RECEIVED] = time[:-1, ARRIVED], 0.0
    since[:, COMPUTED:] = time[:, :ARRIVED]
    happens = time <= seconds
    happens[:, RECEIVED] &= (latency[owner, DOWN] > 0) & (number > 0)  # without latency it is no event of its own
    happens[:, COMPUTED] &= latency[owner, UP] > 0
    place, what = np.nonzero(happens)
    order = np.lexsort((what, number[place], owner[place], time[place, what]))  # at one instant by worker, as turns go
    place, what = place[order], what[order]
    return Events(time[place, what], owner[place], what, since[place, what])


def _rows(arrived: Events, n: int) -> list[np.ndarray]:
    """All read at the beginning; each arrival is an update, after which its worker reads."""
    count = len(arrived.time)
    read = n + 1 + 2 * np.arange(count)  # the row of the read after each arrival
    source, by_worker = arrived.worker.copy(), np.argsort(arrived.worker, kind="stable")
    again = by_worker[1:][np.diff(arrived.worker[by_worker]) == 0]
    source[again] = read[by_worker[:-1][np.diff(arrived.worker[by_worker]) == 0]]
    pair = np.stack([source, np.full(count, -1)], 1)
    return [
        np.concatenate([np.zeros(n), np.repeat(arrived.time, 2)]),
        np.concatenate([np.full(n, READ), np.tile([APPLY, READ], count)]),
        np.concatenate([np.arange(n), np.repeat(arrived.worker, 2)]),
        np.concatenate([np.full(n, -1), pair.ravel()]),
        *(np.ones(n + 2 * count) for _ in range(3)),
        np.concatenate([np.zeros(n), np.tile([1, 0], count)]),
    ]


def _spans(events: Events, ways: Ways, n: int) -> list[np.ndarray]:
    kinds = np.where(events.what == COMPUTED, SEND, COMPUTE)
    kinds[(events.what == ARRIVED) & (ways.latency[events.worker, DOWN] > 0)] = RECEIVE
    return [
        np.concatenate([np.zeros(n), events.time]),
        np.concatenate([np.arange(n), events.worker]),
        np.concatenate([np.full(n, COMPUTE), kinds]),
    ]


def _transfers(events: Events, ways: Ways) -> list[np.ndarray]:
    """Messages as they arrive, then those that are on their way at the end, as they were sent."""
    arrived, waits = events.what == ARRIVED, ways.latency[events.worker, DOWN] > 0
    up = np.flatnonzero(arrived)
    down = np.flatnonzero((events.what == RECEIVED) | (arrived & ~waits))
    last = np.zeros(len(ways.latency), int) - 1
    last[events.worker] = np.arange(len(events.time))  # the last one stays
    last = np.sort(last[last >= 0])
    left_up = last[events.what[last] == COMPUTED]
    left_down = last[arrived[last] & waits[last]]

    def some(at: np.ndarray, kind: int, begun: np.ndarray, end: np.ndarray | None, place: np.ndarray) -> np.ndarray:
        worker, size = events.worker[at], np.full(len(at), ways.size[kind])
        moved, end = (np.zeros(len(at)), np.full(len(at), NEVER)) if end is None else (size, end)
        columns = begun, end, np.full(len(at), kind), worker, ways.source[worker, kind], ways.target[worker, kind]
        return np.stack([*columns, size, moved, place])

    after = len(events.time)
    # without latency a reply is there when it is sent, right after its gradient has arrived
    begun = np.where(arrived[down], events.time[down], events.since[down])
    columns = np.concatenate(
        [
            some(up, UP, events.since[up], events.time[up], up),
            some(down, DOWN, begun, events.time[down], down + np.where(arrived[down], 0.5, 0.0)),
            some(left_up, UP, events.time[left_up], None, after + left_up),
            some(left_down, DOWN, events.time[left_down], None, after + left_down),
        ],
        axis=1,
    )
    return list(columns[:, np.argsort(columns[-1], kind="stable")][:-1])
