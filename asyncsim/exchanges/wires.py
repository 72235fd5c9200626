"""One round in closed form: when each rank is done with it, given when all begin.

The messages of a round share the links as if all of them were sent at once; each then takes as long whenever it is
sent. What a rank waits for is as it is in motion.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from asyncsim.exchanges.schedules import NOBODY, Schedule, Stage, recursive_doubling
from asyncsim.network.layout import Route
from asyncsim.network.sharing import FairSharing, Flow
from asyncsim.network.simulation import Simulation

NEVER = float("inf")
UNIT = 1e9  # bytes: of a message by which times per byte are found


class Wire:
    """One round on this network: of each message its latency, and the seconds per byte of its way and its receiver."""

    def __init__(self, sim: Simulation, stage: Stage):
        layout, self.limit, self.size = sim.transfers.layout, sim.transfers.eager_limit, stage.size
        pairs = [(s, t) for t, row in enumerate(stage.sources.tolist()) for s in row if s != NOBODY]
        routes: dict[tuple[int, int], Route] = {(s, t): layout.route(s, t) for s, t in pairs}
        way = _seconds_per_byte(routes)
        into: dict[int, int] = {}  # ranks of one host that receive at once take turns at its processor
        for route in {t: route for (_, t), route in routes.items() if route.copies < NEVER}.values():
            into[route.target] = into.get(route.target, 0) + 1

        def table(partners: np.ndarray, inward: bool, value: Callable[[tuple[int, int]], float]) -> np.ndarray:
            out = np.zeros(partners.shape)
            for r, row in enumerate(partners.tolist()):
                for k, other in enumerate(row):
                    if other != NOBODY:
                        out[r, k] = value((other, r) if inward else (r, other))
            return out

        def copying(pair: tuple[int, int]) -> float:
            route = routes[pair]
            return into.get(route.target, 1) / route.copies

        self.sources, self.targets = stage.sources, stage.targets
        self.receives, self.sends = stage.sources != NOBODY, stage.targets != NOBODY
        self.in_latency = table(stage.sources, True, lambda pair: routes[pair].latency)
        self.in_way = table(stage.sources, True, way.__getitem__)
        self.in_copy = table(stage.sources, True, copying)
        self.out_latency = table(stage.targets, False, lambda pair: routes[pair].latency)
        self.out_way = table(stage.targets, False, way.__getitem__)
        self.copies, self.adds = bool(self.in_copy.any()), stage.reduced > 0
        self.sent = self.sends.sum(1) * stage.size  # models, by rank

    def done(self, start: np.ndarray, busy: np.ndarray, size: float, some: np.ndarray | slice) -> np.ndarray:
        """When some ranks are done with this round of ``size`` bytes in all, given when all ranks begin it.

        ``busy``: until when their processors take in what is only passed on; this round's is added there."""
        size *= self.size
        mine = start[some][:, None]
        rendezvous = size > self.limit
        out = mine + self.out_latency[some]
        come = start[self.sources[some]] + self.in_latency[some]
        if rendezvous:
            out = np.maximum(out, start[self.targets[some]]) + 2 * self.out_latency[some]
            come = np.maximum(come, mine) + 2 * self.in_latency[some]
        out += size * self.out_way[some]
        come += size * self.in_way[some]
        out = np.where(self.sends[some], out, -NEVER).max(1)
        come = np.where(self.receives[some], come, -NEVER)
        last = come.max(1)
        if self.copies:
            taken = self._taken_in(come, busy[some], size * self.in_copy[some])
            if self.adds:
                last = np.where(last > -NEVER, taken, last)
            else:
                busy[some] = taken
        return np.maximum(np.maximum(out, last), mine[:, 0])

    def _taken_in(self, come: np.ndarray, busy: np.ndarray, copy: np.ndarray) -> np.ndarray:
        """When the processor is through, which takes one after another, as they come."""
        if come.shape[1] > 1:
            order = np.argsort(come, 1, kind="stable")
            come, copy = np.take_along_axis(come, order, 1), np.take_along_axis(copy, order, 1)
        for k in range(come.shape[1]):
            busy = np.maximum(busy, come[:, k]) + copy[:, k]
        return busy


def _seconds_per_byte(routes: dict[tuple[int, int], Route]) -> dict[tuple[int, int], float]:
    """If all are sent at once, each as large as the others."""
    sharing, flows, ends = FairSharing(), dict[Flow, tuple[int, int]](), dict.fromkeys(routes, 0.0)
    for pair, route in routes.items():
        if route.path:
            flow = Flow(UNIT, route.path)
            flows[flow] = pair
            sharing.start(flow)
    while (end := sharing.settle()) < NEVER:
        for flow in sharing.advance(end):
            ends[flows[flow]] = end / UNIT
    return ends


class Wires:
    """All rounds that a simulation's exchanges have met, on its network."""

    def __init__(self, sim: Simulation):
        self._sim, self._stages = sim, dict[Stage, Wire]()
        layout = sim.transfers.layout
        hosts = [layout.host_of(i) for i in range(sim.num_workers)]
        rates = [layout.hosts[host].copy_bandwidth for host in hosts]
        # seconds per byte, by worker, if all of a host go over theirs at once
        self.processing = np.array(
            [hosts.count(h) / rate if rate else 0.0 for h, rate in zip(hosts, rates, strict=True)]
        )

    @functools.cached_property
    def hypercube(self) -> Schedule:
        """The edges along which a word goes to all."""
        return recursive_doubling(self._sim.num_workers)

    def of(self, schedule: Schedule) -> list[Wire]:
        """The rounds of this schedule."""
        for stage in schedule.stages:
            if stage not in self._stages:
                self._stages[stage] = Wire(self._sim, stage)
        return [self._stages[stage] for stage in schedule.stages]
