"""What an event does to the numbers: one published method, or one rule, per file."""

from asyncsim.algorithms.averaging import ADPSGD, DPSGD, WAGMA, Averaging, LocalSGD
from asyncsim.algorithms.base import (
    Algorithm,
    Context,
    PeerAlgorithm,
    ServerAlgorithm,
    algorithm,
    static,
)
from asyncsim.algorithms.dana import DanaDC, DanaGA, DanaSlim, DanaZero
from asyncsim.algorithms.dc_asgd import DCASGD
from asyncsim.algorithms.gaia import Gaia
from asyncsim.algorithms.gap_aware import GapAware
from asyncsim.algorithms.gradient_averaging import AllreduceSGD, EagerSGD
from asyncsim.algorithms.multi_asgd import MultiASGD
from asyncsim.algorithms.nag_asgd import NAGASGD
from asyncsim.algorithms.parts import Descent, ServerDescent, moved, zeros_like
from asyncsim.algorithms.push_sum import SGP, OverlapSGP
from asyncsim.algorithms.rennala import Rennala
from asyncsim.algorithms.ringmaster import Ringmaster
from asyncsim.algorithms.scaled_rates import DelayAdaptive, InverseDelay, StalenessAware
from asyncsim.algorithms.sgd import ASGD, SGD, SSGD
from asyncsim.algorithms.smega2 import SMEGA2

__all__ = [
    "ADPSGD",
    "ASGD",
    "DCASGD",
    "DPSGD",
    "NAGASGD",
    "SGD",
    "SGP",
    "SMEGA2",
    "SSGD",
    "WAGMA",
    "Algorithm",
    "AllreduceSGD",
    "Averaging",
    "Context",
    "DanaDC",
    "DanaGA",
    "DanaSlim",
    "DanaZero",
    "DelayAdaptive",
    "Descent",
    "EagerSGD",
    "Gaia",
    "GapAware",
    "InverseDelay",
    "LocalSGD",
    "MultiASGD",
    "OverlapSGP",
    "PeerAlgorithm",
    "Rennala",
    "Ringmaster",
    "ServerAlgorithm",
    "ServerDescent",
    "StalenessAware",
    "algorithm",
    "moved",
    "static",
    "zeros_like",
]
