"""What is learned: models, losses and data."""

from asyncsim.problems.base import CustomProblem, Data, Problem
from asyncsim.problems.datasets import Blobs, DataSet, Digits
from asyncsim.problems.mlp import MLP
from asyncsim.problems.quadratic import Quadratic

__all__ = ["MLP", "Blobs", "CustomProblem", "Data", "DataSet", "Digits", "Problem", "Quadratic"]
