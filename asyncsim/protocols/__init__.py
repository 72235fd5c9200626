"""Who waits for whom: one family of protocols per file."""

from asyncsim.protocols.base import Protocol
from asyncsim.protocols.server import Asynchronous, Serial, Synchronous
from asyncsim.protocols.simulation import Simulation, Turn

__all__ = ["Asynchronous", "Protocol", "Serial", "Simulation", "Synchronous", "Turn"]
