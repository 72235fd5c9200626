"""Data sets for classification: what they are, one that travels with the package, and a generated one."""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from importlib import resources
from typing import Annotated, ClassVar

import numpy as np
from msgspec import Meta

from asyncsim.data.base import Data
from asyncsim.errors import InputError
from asyncsim.records import Count, Family, Positive, Seed, checked, register
from asyncsim.streams import Purpose, generator


class DataSet(Family):
    """A classification data set: samples ``x``, (n, features) float32, labels ``y``, (n,) int32, from 0 on.

    Sparse samples have ``x`` as a dict: which features a sample has, ``index`` (n, k) int32, and their ``value`` (n, k)
    float32; a sample with fewer than k is filled up with values 0. ``shape`` says what a sample is: images are
    (height, width, channels), and lie in ``x`` row by row.
    """

    family = "data set"
    sparse: ClassVar[bool] = False

    @abstractmethod
    def load(self) -> Data:
        """Train and test samples as dicts of ``x`` and ``y``."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""

    @property
    @abstractmethod
    def num_classes(self) -> int:
        """Number of labels."""

    @property
    def num_features(self) -> int:
        """Numbers in one sample."""
        return math.prod(self.shape)


Classes = Annotated[int, Meta(ge=2)]


class Generated(DataSet):
    """One that is drawn from its seed: flat samples of so many ``features``, in so many ``classes``."""

    features: int
    classes: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.features,)

    @property
    def num_classes(self) -> int:
        return self.classes


def check_size(numbers: int) -> None:
    """Raise InputError if a data set of so many numbers would not fit in memory."""
    if numbers > 10**9:
        raise InputError(f"{numbers:.3g} numbers are too many to generate; 1e9 is the limit", "features")


@functools.cache
def _digits() -> Data:
    with resources.files("asyncsim.data").joinpath("digits.npz").open("rb") as file, np.load(file) as stored:
        x, y = stored["images"].astype(np.float32) / 16, stored["labels"].astype(np.int32)
    test = np.arange(len(y)) % 5 == 0
    return Data({"x": x[~test], "y": y[~test]}, {"x": x[test], "y": y[test]})


@register("digits")
@checked
class Digits(DataSet):
    """1797 handwritten digits, 8x8 pixels, 10 classes: 1437 to train on; every fifth (360) to test.

    Optical Recognition of Handwritten Digits, E. Alpaydin and C. Kaynak, UCI Machine Learning Repository (1998),
    doi:10.24432/C50P49, CC BY 4.0: the test part of the collection, pixels 0 to 16, scaled to 0 to 1 when loaded.
    """

    def load(self) -> Data:
        return _digits()

    @property
    def shape(self) -> tuple[int, ...]:
        return 8, 8, 1

    @property
    def num_classes(self) -> int:
        return 10


@functools.cache
def _blobs(spec: Blobs) -> Data:
    rng = generator(spec.seed, Purpose.GENERATED_DATA)
    centres = rng.normal(size=(spec.classes, spec.features)) * spec.separation / np.sqrt(2)

    def draw(n: int) -> dict[str, np.ndarray]:
        y = rng.integers(spec.classes, size=n)
        noise = rng.normal(size=(n, spec.features))
        return {"x": (centres[y] + noise).astype(np.float32), "y": y.astype(np.int32)}

    return Data(draw(spec.train), draw(spec.test))


@register("blobs")
@checked
class Blobs(Generated):
    """Generated: Gaussian clouds of unit variance, one a class, around random centres.

    ``separation``: root-mean-square distance between two centres, per feature, in standard deviations.
    """

    features: Count = 20
    classes: Classes = 10
    train: Count = 10_000
    test: Count = 2_000
    separation: Positive = 1.0
    seed: Seed = 0

    def validate(self) -> None:
        check_size(self.features * (self.train + self.test + self.classes))

    def load(self) -> Data:
        return _blobs(self)
