"""How long things take: step times, delays, workers, the network and the server."""

from asyncsim.cluster import named_hosts  # noqa: F401 - they are registered
from asyncsim.cluster.buckets import P3, Buckets, Horovod, PyTorchDDP, Tensors, Whole
from asyncsim.cluster.cluster import Cluster, Workers
from asyncsim.cluster.delays import Bursts, Delay, DrawnDelays, FixedDelays, IndependentDelays
from asyncsim.cluster.hardware import GPU
from asyncsim.cluster.hosts import Host
from asyncsim.cluster.machines import CVB
from asyncsim.cluster.recorded import Empirical, Recorded
from asyncsim.cluster.servers import Servers
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
from asyncsim.cluster.topologies import Flat, Racks, SiteLink, Sites, Topology

__all__ = [
    "CVB",
    "GPU",
    "P3",
    "Buckets",
    "Bursts",
    "Cluster",
    "Constant",
    "Delay",
    "Distribution",
    "DrawnDelays",
    "Empirical",
    "Exponential",
    "FixedDelays",
    "Flat",
    "Gamma",
    "Horovod",
    "Host",
    "IndependentDelays",
    "Lognormal",
    "Markov",
    "Pareto",
    "Place",
    "PyTorchDDP",
    "Racks",
    "Recorded",
    "Servers",
    "ShiftedExponential",
    "SiteLink",
    "Sites",
    "StepTime",
    "StragglerTrace",
    "Tensors",
    "Topology",
    "Uniform",
    "Whole",
    "Workers",
    "read_straggler_trace",
    "straggler_stages",
]
