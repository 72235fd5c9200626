"""How long things take: step times, workers and the network."""

from asyncsim.cluster.cluster import Cluster, Workers
from asyncsim.cluster.step_times import Constant, Exponential, Gamma, ShiftedExponential, StepTime

__all__ = ["Cluster", "Constant", "Exponential", "Gamma", "ShiftedExponential", "StepTime", "Workers"]
