"""Who waits for whom: one family of protocols per file."""

from asyncsim.network.simulation import Simulation
from asyncsim.network.turns import Gate, Lock, Turn
from asyncsim.protocols.allreduce import GradientAllreduce, PeriodicAveraging
from asyncsim.protocols.base import Protocol
from asyncsim.protocols.eager import EagerAllreduce
from asyncsim.protocols.gaia import SignificantUpdates
from asyncsim.protocols.gossip import OverlapPush, Push, RingAveraging
from asyncsim.protocols.pairwise import PairwiseAveraging
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
from asyncsim.protocols.updates import Updates
from asyncsim.protocols.wagma import WaitAvoidingGroups

__all__ = [
    "Asynchronous",
    "BackupWorkers",
    "EagerAllreduce",
    "Gate",
    "GradientAllreduce",
    "KAsync",
    "KBatchAsync",
    "KBatchSync",
    "KSync",
    "Lock",
    "NSoftsync",
    "OverlapPush",
    "PairwiseAveraging",
    "PeriodicAveraging",
    "Protocol",
    "Push",
    "Quorum",
    "RennalaRounds",
    "RingAveraging",
    "RingmasterDelays",
    "Serial",
    "SignificantUpdates",
    "Simulation",
    "StaleSynchronous",
    "Synchronous",
    "Turn",
    "Updates",
    "WaitAvoidingGroups",
]
