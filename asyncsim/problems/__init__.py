"""What is learned: models and losses."""

from asyncsim.problems.base import Problem
from asyncsim.problems.char_transformer import CharTransformer
from asyncsim.problems.convnet import ConvNet
from asyncsim.problems.custom import CustomProblem
from asyncsim.problems.logistic import Logistic
from asyncsim.problems.mlp import MLP
from asyncsim.problems.quadratic import Quadratic
from asyncsim.problems.resnet import ResNet

__all__ = ["MLP", "CharTransformer", "ConvNet", "CustomProblem", "Logistic", "Problem", "Quadratic", "ResNet"]
