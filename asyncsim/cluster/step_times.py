"""How long one gradient takes on one worker, in seconds: the family, and independent draws from one distribution."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta

from asyncsim.errors import InputError
from asyncsim.records import Family, checked, register
from asyncsim.workload import Workload

Seconds = Annotated[float, Meta(gt=0, le=1e12)]
SecondsOrNone = Annotated[float, Meta(ge=0, le=1e12)]
Variation = Annotated[float, Meta(ge=1e-9, le=1e9)]
BLOCK = 256  # draws made at once: a NumPy call per draw would cost more than the simulation of the step
TINY = float(np.finfo(float).tiny)  # what underflows to 0 is raised to this: a step always takes some time


class Place(NamedTuple):
    """Whose step times they are: in a run of ``seed``, those of ``worker``, at ``position`` in its group (from 0)."""

    seed: int = 0
    worker: int = 0
    position: int = 0


class StepTime(Family):
    """How long steps take. A new model is a record with ``stream`` and ``mean_seconds``.

    One whose times are independent draws derives from ``Distribution`` and has ``draw`` in place of ``stream``. A
    number in place of a table is a constant.
    """

    family = "step-time model"

    @classmethod
    def from_number(cls, seconds: float) -> dict[str, Any]:
        return {"name": "constant", "seconds": seconds}

    @abstractmethod
    def stream(self, rng: np.random.Generator, place: Place) -> Iterator[float]:
        """Step times one after another, without end, as Python floats (NumPy's would slow the event queue)."""

    @property
    @abstractmethod
    def mean_seconds(self) -> float:
        """The mean over steps and workers in seconds."""

    def for_workload(self, workload: Workload) -> StepTime:
        """The same with what depends on the work of a step filled in; raises InputError where that is not known."""
        return self

    def check(self, count: int) -> None:
        """Raise InputError if there are no times for a group of so many workers."""
        return


class Distribution(StepTime):
    """Times drawn independently of each other."""

    @abstractmethod
    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """``size`` step times in seconds, each above 0."""

    def stream(self, rng: np.random.Generator, place: Place) -> Iterator[float]:
        while True:
            yield from self.draw(rng, BLOCK).tolist()


def gamma_draws(rng: np.random.Generator, mean: float | np.ndarray, cv: float, size: int) -> np.ndarray:
    """``size`` gamma-distributed times: shape 1/cv^2, scale mean cv^2 (the mean itself without variation)."""
    if cv < 1e-9:
        return np.full(size, mean, float)
    return np.maximum(rng.gamma(cv**-2, mean * cv**2, size), TINY)


@register("constant")
@checked
class Constant(Distribution):
    """Every step takes the same time."""

    seconds: Seconds

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        return np.full(size, self.seconds)

    @property
    def mean_seconds(self) -> float:
        return self.seconds


@register("uniform")
@checked
class Uniform(Distribution):
    """Every time between ``low`` and ``high`` seconds is equally likely."""

    low: SecondsOrNone
    high: Seconds

    def validate(self) -> None:
        if self.high < self.low:
            raise InputError(f"expected at least low = {self.low:g}, got {self.high:g}", "high")

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        return np.maximum(rng.uniform(self.low, self.high, size), TINY)

    @property
    def mean_seconds(self) -> float:
        return (self.low + self.high) / 2


@register("gamma")
@checked
class Gamma(Distribution):
    """Gamma-distributed times with a given mean and coefficient of variation (standard deviation / mean).

    Shape 1/cv^2, scale mean cv^2: the task-level model of Ali et al. (HCW 2000). cv = 0.1 is the homogeneous cluster of
    the SMEGA² and DANA papers; for their heterogeneous one see ``cvb``.
    """

    mean: Seconds
    cv: Variation

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        return gamma_draws(rng, self.mean, self.cv, size)

    @property
    def mean_seconds(self) -> float:
        return self.mean


@register("lognormal")
@checked
class Lognormal(Distribution):
    """The logarithm of a time is normal: a long tail to the right, with a given mean and coefficient of variation.

    The logarithm has variance log(1 + cv^2) and mean log(mean) - log(1 + cv^2) / 2.
    """

    mean: Seconds
    cv: Variation

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        variance = math.log1p(self.cv**2)
        return np.maximum(rng.lognormal(math.log(self.mean) - variance / 2, math.sqrt(variance), size), TINY)

    @property
    def mean_seconds(self) -> float:
        return self.mean


@register("exponential")
@checked
class Exponential(Distribution):
    """Memoryless times: staleness is geometric and asynchrony acts like momentum (Mitliagkas et al. 2016)."""

    mean: Seconds

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        return np.maximum(rng.exponential(self.mean, size), TINY)

    @property
    def mean_seconds(self) -> float:
        return self.mean


@register("shifted_exponential")
@checked
class ShiftedExponential(Distribution):
    """A fixed part and an exponential tail: ``shift`` + Exponential(mean ``scale``), in seconds (Dutta et al. 2018)."""

    shift: SecondsOrNone
    scale: Seconds

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        return np.maximum(self.shift + rng.exponential(self.scale, size), TINY)

    @property
    def mean_seconds(self) -> float:
        return self.shift + self.scale


@register("pareto")
@checked
class Pareto(Distribution):
    """A heavy tail: a time exceeds t with probability (``minimum`` / t)^``shape`` (Dutta et al. 2018).

    The mean is shape minimum / (shape - 1); at a shape of 1 or less it would be infinite, which is refused. The
    variance is infinite up to a shape of 2: means over a run then settle slowly, whatever its length.
    """

    shape: Annotated[float, Meta(gt=1, le=1e9)]
    minimum: Seconds

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        return self.minimum * (1 + rng.pareto(self.shape, size))  # NumPy's begins at 0

    @property
    def mean_seconds(self) -> float:
        return self.shape * self.minimum / (self.shape - 1)
