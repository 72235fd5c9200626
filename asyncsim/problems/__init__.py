"""What is learned: models, losses, data, and which samples a gradient is taken on."""

from asyncsim.problems.base import Data, Problem
from asyncsim.problems.char_transformer import CharTransformer
from asyncsim.problems.convnet import ConvNet
from asyncsim.problems.custom import CustomProblem
from asyncsim.problems.datasets import Blobs, DataSet, Digits
from asyncsim.problems.fashion_mnist import FashionMNIST
from asyncsim.problems.logistic import Logistic
from asyncsim.problems.mlp import MLP
from asyncsim.problems.partitions import IID, Dirichlet, Partition, Sharded, Shared
from asyncsim.problems.quadratic import Quadratic
from asyncsim.problems.resnet import ResNet
from asyncsim.problems.sampling import Sampling
from asyncsim.problems.teachers import SparseTeacher, Teacher
from asyncsim.problems.text import Text

__all__ = [
    "IID",
    "MLP",
    "Blobs",
    "CharTransformer",
    "ConvNet",
    "CustomProblem",
    "Data",
    "DataSet",
    "Digits",
    "Dirichlet",
    "FashionMNIST",
    "Logistic",
    "Partition",
    "Problem",
    "Quadratic",
    "ResNet",
    "Sampling",
    "Sharded",
    "Shared",
    "SparseTeacher",
    "Teacher",
    "Text",
]
