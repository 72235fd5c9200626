"""What a protocol sees of an exchange: workers join it and hear when they are done. Two ways of timing it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import simpy

from asyncsim.exchanges.closed import ClosedExchange, ClosedPartialExchange
from asyncsim.exchanges.moving import MovingExchange, MovingPartialExchange
from asyncsim.exchanges.schedules import Cost, Schedule
from asyncsim.exchanges.wires import Wires
from asyncsim.network.simulation import Simulation


class Exchange(Protocol):
    """One exchange of all workers' models, piece by piece; rank and worker are the same number.

    A worker's first round of a piece begins when the piece is ready there, and all is done with the piece before; its
    next round when what it sent in this one is over the links, and what it receives is there; what it only passes on is
    taken in by its processor (``Host.copy_bandwidth``) while it travels on.
    """

    def join(self, worker: int, ready: Sequence[float]) -> simpy.Event:
        """The worker takes part; its pieces get ready at these times, in seconds, in ascending order, none before now.
        The event: it is done with all of them. To be called once for each worker."""


class PartialExchange(Exchange, Protocol):
    """An exchange that waits for nobody: its first arriver activates it, and who is late takes part with what it has.

    A worker arrives at a piece when that is ready, and it is done with the piece before. Then it begins its rounds of
    this piece, and tells all others, along the edges of a hypercube, to do the same (as in recursive doubling; a word
    that comes twice changes nothing). With an ``activator`` only that worker's arrival does so. A worker is done with a
    piece when it has arrived there and its rounds are over. ``contributes(worker)`` is called when its rounds of the
    last piece begin: what it has by then is what all others get.
    """

    def over(self, worker: int) -> bool:
        """Whether the worker's rounds of the last piece are over by now."""


class Exchanges:
    """Makes the exchanges of one simulation, in the way that its cluster says (``Cluster.sharing``).

    ``before`` and ``after``: how often the processor of a worker's host goes over each piece before its first round and
    after its last one, to scale or average it; it takes the time that ``Host.copy_bandwidth`` says, if it says any.
    (What arrives is taken in at the same rate, which comes on top.) ``whole``: all is one piece.
    """

    def __init__(self, sim: Simulation, before: float = 0.0, after: float = 0.0, whole: bool = False):
        self.sim, self._cost = sim, Cost([1.0] if whole else sim.shares, before, after)
        self._wires = Wires(sim) if sim.sharing == "rounds" else None

    def blocking(self, schedule: Schedule) -> Exchange:
        """An exchange in which a round waits for those that it receives from."""
        if self._wires is None:
            return MovingExchange(self.sim, schedule, self._cost)
        return ClosedExchange(self.sim, schedule, self._cost, self._wires)

    def partial(
        self, schedule: Schedule, contributes: Callable[[int], Any], activator: int | None = None
    ) -> PartialExchange:
        """An exchange that waits for nobody. The number of workers is a power of two."""
        if self._wires is None:
            return MovingPartialExchange(self.sim, schedule, self._cost, contributes, activator)
        return ClosedPartialExchange(self.sim, schedule, self._cost, self._wires, contributes, activator)
