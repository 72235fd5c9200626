"""The server's side of a protocol: gradients come in one by one, and make updates."""

from __future__ import annotations

from collections.abc import Callable

from asyncsim.network.simulation import Asking, Process, Simulation
from asyncsim.network.turns import Gate
from asyncsim.vocabulary import SERVED


class Updates:
    """Each ``size`` gradients that are accepted make an update, of their mean.

    ``version``: how many there were. A gradient waits for its turn at the server, and for the time that its update
    takes, where this cluster's server takes any.
    """

    def __init__(self, sim: Simulation, size: int):
        self._sim, self.size, self.version = sim, size, 0
        self._arrived = 0
        self._made = Gate(sim.env)
        self._takes_time = sim.server.takes_time
        self._locks = self._takes_time and (sim.server.locked or size > 1)

    def take(self, worker: int, read: int, fits: Callable[[], bool] = lambda: True) -> Asking:
        """A gradient on this read has arrived. Returns which update it is a part of (from 0), or None if it is dropped,
        as it is unless it ``fits`` when its turn comes (without a lock: also when its update is made)."""
        sim = self._sim
        if self._takes_time:
            sim.log.enter(worker, SERVED)
            if self._locks:
                yield from sim.server.lock.enter(worker)
            if fits():
                yield sim.server.update(worker, adds=self.size > 1, makes=self._arrived + 1 == self.size)
        accepted = fits()
        part, closes = self.version, accepted and self._arrived + 1 == self.size
        sim.log.apply(worker, read, weight=1 / self.size, accepted=accepted, closes=closes)
        if closes:
            self.version += 1
            self._arrived = 0
            self._made.open()
        else:
            self._arrived += accepted
        if self._locks:
            sim.server.lock.leave()
        return part if accepted else None

    def wait(self, worker: int, part: int) -> Process:
        """The worker waits until this update is made."""
        if self.version <= part:
            yield from self._sim.wait(worker, self._made.event(worker), self._missing)

    def _missing(self) -> str:
        return f"an update of {self.size} gradients, of which {self._arrived} have arrived"
