"""Who waits for whom: one family of protocols per file."""

from asyncsim.network.turns import Gate, Lock, Turn
from asyncsim.protocols.base import Protocol
from asyncsim.protocols.gaia import SignificantUpdates
from asyncsim.protocols.quorum import (
    BackupWorkers,
    KAsync,
    KBatchAsync,
    KBatchSync,
    KSync,
    NSoftsync,
    Quorum,
    RennalaRounds,
    Synchronous,
)
from asyncsim.protocols.server import Asynchronous, RingmasterDelays, Serial, StaleSynchronous
from asyncsim.protocols.simulation import Simulation
from asyncsim.protocols.updates import Updates

__all__ = [
    "Asynchronous",
    "BackupWorkers",
    "Gate",
    "KAsync",
    "KBatchAsync",
    "KBatchSync",
    "KSync",
    "Lock",
    "NSoftsync",
    "Protocol",
    "Quorum",
    "RennalaRounds",
    "RingmasterDelays",
    "Serial",
    "SignificantUpdates",
    "Simulation",
    "StaleSynchronous",
    "Synchronous",
    "Turn",
    "Updates",
]
