"""What is learned: models, losses, data, and which samples a gradient is taken on."""

from asyncsim.problems.base import Data, Problem
from asyncsim.problems.custom import CustomProblem
from asyncsim.problems.datasets import Blobs, DataSet, Digits
from asyncsim.problems.mlp import MLP
from asyncsim.problems.partitions import IID, Dirichlet, Partition, Sharded, Shared
from asyncsim.problems.quadratic import Quadratic
from asyncsim.problems.sampling import Sampling

__all__ = [
    "IID",
    "MLP",
    "Blobs",
    "CustomProblem",
    "Data",
    "DataSet",
    "Digits",
    "Dirichlet",
    "Partition",
    "Problem",
    "Quadratic",
    "Sampling",
    "Sharded",
    "Shared",
]
