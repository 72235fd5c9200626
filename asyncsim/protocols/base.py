"""Who waits for whom: the family of protocols."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from asyncsim.network.simulation import Simulation
from asyncsim.records import Family


class Protocol(Family):
    """A protocol is a record with one method, ``start``, that sets SimPy processes going.

    ``kind`` says who takes part: ``'server'`` (workers and a parameter server) or ``'peers'``. One that is ``steered``
    asks for values (``Simulation.ask``), so that its timing cannot be recorded before the learning. ``carries``:
    between peers, what its messages must be, as ``PeerAlgorithm.takes`` says (empty: anything). ``alone``: each worker
    reads, sends a gradient that is an update, and reads again, whatever the others do.
    """

    family = "protocol"
    kind: ClassVar[str]
    steered: ClassVar[bool] = False
    alone: ClassVar[bool] = False
    carries: ClassVar[str] = ""

    def check(self, num_workers: int) -> None:
        """Raise InputError if the protocol cannot run on so many workers."""
        return

    def size(self, num_workers: int) -> int:
        """Of how many gradients an update of the server is made."""
        return 1

    @abstractmethod
    def start(self, sim: Simulation) -> None:
        """Start the processes of all workers on this simulation."""
