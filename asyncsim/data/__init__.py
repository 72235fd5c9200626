"""What is learned from: data sets, and which samples each worker draws."""

from asyncsim.data.base import Data, num_samples
from asyncsim.data.data_sets import Blobs, DataSet, Digits
from asyncsim.data.fashion_mnist import FashionMNIST
from asyncsim.data.partitions import IID, Dirichlet, Partition, Sharded, Shared
from asyncsim.data.sampling import Batches, Sampling
from asyncsim.data.teachers import SparseTeacher, Teacher
from asyncsim.data.text import Text

__all__ = [
    "IID",
    "Batches",
    "Blobs",
    "Data",
    "DataSet",
    "Digits",
    "Dirichlet",
    "FashionMNIST",
    "Partition",
    "Sampling",
    "Sharded",
    "Shared",
    "SparseTeacher",
    "Teacher",
    "Text",
    "num_samples",
]
