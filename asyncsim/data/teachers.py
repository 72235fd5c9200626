"""Generated data sets whose labels come from a random network, the teacher: a student of its kind can learn them."""

from __future__ import annotations

import functools
from itertools import pairwise
from typing import Annotated

import numpy as np
from msgspec import Meta

from asyncsim.data.base import Data
from asyncsim.data.data_sets import Classes, Generated, check_size
from asyncsim.errors import InputError
from asyncsim.records import Count, Probability, Seed, checked, register
from asyncsim.streams import Purpose, generator


def _labels(rng: np.random.Generator, logits: np.ndarray, noise: float) -> np.ndarray:
    """(n,) the largest of (n, classes) logits; with this probability a random label instead."""
    n, classes = logits.shape
    random = rng.integers(classes, size=n)
    return np.where(rng.random(n) < noise, random, logits.argmax(1)).astype(np.int32)


@functools.lru_cache(maxsize=8)
def _taught(spec: Teacher) -> Data:
    rng = generator(spec.seed, Purpose.GENERATED_DATA)
    widths = pairwise((spec.features, *spec.hidden, spec.classes))
    weights = [rng.normal(size=fans) / np.sqrt(fans[0]) for fans in widths]

    def draw(n: int) -> dict[str, np.ndarray]:
        x = rng.normal(size=(n, spec.features))
        h = x @ weights[0]
        for weight in weights[1:]:
            h = np.tanh(2 * h) @ weight  # x 2: well into the bend of the tanh
        return {"x": x.astype(np.float32), "y": _labels(rng, h, spec.noise)}

    return Data(draw(spec.train), draw(spec.test))


@register("teacher")
@checked
class Teacher(Generated):
    """Generated: standard normal samples, labelled by a random network (tanh) of these hidden widths.

    Without ``hidden`` the teacher is linear. ``noise``: probability that a label is random, in training and test; so no
    student is right more often than 1 - ``noise`` (1 - 1/``classes``).
    """

    features: Count = 20
    hidden: tuple[Count, ...] = ()
    classes: Classes = 10
    train: Count = 10_000
    test: Count = 2_000
    noise: Probability = 0.0
    seed: Seed = 0

    def validate(self) -> None:
        check_size(max(self.features, self.classes, *self.hidden) * (self.train + self.test))
        check_size(sum(a * b for a, b in pairwise((self.features, *self.hidden, self.classes))))

    def load(self) -> Data:
        return _taught(self)


@functools.lru_cache(maxsize=8)
def _sparsely_taught(spec: SparseTeacher) -> Data:
    rng = generator(spec.seed, Purpose.GENERATED_DATA)
    weight = rng.normal(size=(spec.features, spec.classes))

    def draw(n: int) -> dict[str, np.ndarray | dict[str, np.ndarray]]:
        index, value = distinct(rng, n, spec.nonzeros, spec.features), rng.normal(size=(n, spec.nonzeros))
        logits = np.zeros((n, spec.classes))
        for k in range(spec.nonzeros):
            logits += value[:, k : k + 1] * weight[index[:, k]]
        return {"x": {"index": index, "value": value.astype(np.float32)}, "y": _labels(rng, logits, spec.noise)}

    return Data(draw(spec.train), draw(spec.test))


def distinct(rng: np.random.Generator, n: int, k: int, limit: int) -> np.ndarray:
    """(n, k) int32: in each row k different whole numbers below the limit, every set of k equally likely.

    R. W. Floyd's algorithm (Communications of the ACM, 1987), all rows at once.
    """
    out = np.empty((n, k), np.int32)
    for j in range(k):
        top = limit - k + j
        drawn = rng.integers(top + 1, size=n, dtype=np.int32)
        taken = (out[:, :j] == drawn[:, None]).any(1)
        out[:, j] = np.where(taken, top, drawn)
    return out


@register("sparse_teacher")
@checked
class SparseTeacher(Generated):
    """Generated: sparse samples, each with ``nonzeros`` random features, standard normal, and a linear teacher.

    ``noise``: probability that a label is random. For ``logistic``, whose gradients then touch few of the weights.
    """

    features: Count = 1_000
    nonzeros: Annotated[int, Meta(ge=1, le=1_000)] = 10
    classes: Classes = 2
    train: Count = 10_000
    test: Count = 2_000
    noise: Probability = 0.0
    seed: Seed = 0

    sparse = True

    def validate(self) -> None:
        if self.nonzeros > self.features:
            raise InputError(f"a sample of {self.features} features cannot have {self.nonzeros} of them", "nonzeros")
        check_size(self.features * self.classes + (self.train + self.test) * max(self.nonzeros, self.classes))
        if self.features >= 2**31:
            raise InputError(f"expected a whole number below {2**31}, got {self.features}", "features")

    def load(self) -> Data:
        return _sparsely_taught(self)
