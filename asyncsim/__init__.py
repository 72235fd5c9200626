"""Simulate asynchronous distributed training.

A SimPy model of a cluster decides *when* each gradient is computed, on which stale parameters, and when it is applied;
real JAX gradients decide *what* is learned::

    trace = asyncsim.record(cluster, protocol, workload, stop=asyncsim.Stop(epochs=10))   # when
    run = asyncsim.replay(trace, algorithm, problem)                                      # what

Names are imported when first used: the timing half needs no JAX, and importing the package stays cheap.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "asyncsim.algorithms": "ASGD SGD SGP SSGD Averaging SMEGA2 NAGASGD MultiASGD DCASGD GapAware "
    "DanaZero DanaSlim DanaDC DanaGA StalenessAware InverseDelay DelayAdaptive Rennala Ringmaster Gaia "
    "WAGMA LocalSGD DPSGD ADPSGD OverlapSGP EagerSGD AllreduceSGD "
    "Context PeerAlgorithm ServerAlgorithm",
    "asyncsim.cluster": "Cluster Workers StepTime Constant Uniform Gamma Lognormal Exponential ShiftedExponential "
    "Pareto CVB Markov Empirical Recorded StragglerTrace read_straggler_trace GPU "
    "Delay FixedDelays DrawnDelays IndependentDelays Bursts Host Servers Topology Flat Racks Sites SiteLink "
    "Buckets Whole Tensors PyTorchDDP Horovod P3",
    "asyncsim.data": "Blobs Digits FashionMNIST SparseTeacher Teacher Text IID Dirichlet Sampling Sharded Shared",
    "asyncsim.errors": "Deadlock InputError",
    "asyncsim.problems": "MLP CharTransformer ConvNet CustomProblem Logistic Quadratic ResNet",
    "asyncsim.protocols": "Asynchronous BackupWorkers KAsync KBatchAsync KBatchSync KSync NSoftsync Protocol "
    "RennalaRounds RingmasterDelays Serial SignificantUpdates StaleSynchronous Synchronous WaitAvoidingGroups "
    "EagerAllreduce GradientAllreduce PeriodicAveraging RingAveraging Push OverlapPush PairwiseAveraging",
    "asyncsim.recorder": "Recorder",
    "asyncsim.reports": "comparison",
    "asyncsim.recording": "Stop record",
    "asyncsim.records": "checked register",
    "asyncsim.replaying": "Every Memory Target costs_of memory replay",
    "asyncsim.runs": "Run load",
    "asyncsim.scenario": "Scenario run",
    "asyncsim.scenario_files": "load_scenarios",
    "asyncsim.schedules": "Schedule",
    "asyncsim.steering": "steer",
    "asyncsim.sweeps": "Sweep load_sweep sweep",
    "asyncsim.tables": "Table",
    "asyncsim.trace": "Trace",
    "asyncsim.workload": "Costs Workload",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}
_MODULES = ("algorithms", "cluster", "data", "plots", "problems", "protocols", "testing")

__all__ = sorted([*_HOME, *_MODULES])


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if name in _MODULES:
        return import_module(f"asyncsim.{name}")
    if name == "__version__":
        from importlib.metadata import version

        return version("asyncsim")
    from asyncsim.errors import nearest

    raise AttributeError(f"module 'asyncsim' has no attribute {name!r}{nearest(name, __all__)}")


def __dir__() -> list[str]:
    return __all__
