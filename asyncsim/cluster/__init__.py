"""How long things take: step times, delays, workers and the network."""

from asyncsim.cluster.cluster import Cluster, Workers
from asyncsim.cluster.delays import Delay, DrawnDelays, FixedDelays, IndependentDelays
from asyncsim.cluster.hardware import GPU
from asyncsim.cluster.machines import CVB
from asyncsim.cluster.recorded import Empirical, Recorded
from asyncsim.cluster.spells import Markov
from asyncsim.cluster.step_times import (
    Constant,
    Distribution,
    Exponential,
    Gamma,
    Lognormal,
    Pareto,
    Place,
    ShiftedExponential,
    StepTime,
    Uniform,
)
from asyncsim.cluster.straggler import StragglerTrace, read_straggler_trace, straggler_stages

__all__ = [
    "CVB",
    "GPU",
    "Cluster",
    "Constant",
    "Delay",
    "Distribution",
    "DrawnDelays",
    "Empirical",
    "Exponential",
    "FixedDelays",
    "Gamma",
    "IndependentDelays",
    "Lognormal",
    "Markov",
    "Pareto",
    "Place",
    "Recorded",
    "ShiftedExponential",
    "StepTime",
    "StragglerTrace",
    "Uniform",
    "Workers",
    "read_straggler_trace",
    "straggler_stages",
]
