"""What an event does to the numbers: one published method, or one rule, per file."""

from asyncsim.algorithms.averaging import Averaging
from asyncsim.algorithms.base import (
    Algorithm,
    Context,
    PeerAlgorithm,
    ServerAlgorithm,
    algorithm,
    static,
)
from asyncsim.algorithms.parts import Descent, zeros_like
from asyncsim.algorithms.push_sum import SGP
from asyncsim.algorithms.sgd import ASGD, SGD, SSGD

__all__ = [
    "ASGD",
    "SGD",
    "SGP",
    "SSGD",
    "Algorithm",
    "Averaging",
    "Context",
    "Descent",
    "PeerAlgorithm",
    "ServerAlgorithm",
    "algorithm",
    "static",
    "zeros_like",
]
