"""How long one gradient takes on one worker, in seconds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from asyncsim.records import Family, checked, register

Seconds = Annotated[float, Meta(gt=0, le=1e12)]
BLOCK = 256  # draws made at once: a NumPy call per draw would cost more than the simulation of the step


class StepTime(Family):
    """A distribution of step times. A new one is a record with ``draw`` and ``mean_seconds``.

    A number in place of a table is a constant.
    """

    family = "step-time model"

    @classmethod
    def from_number(cls, seconds: float) -> dict[str, Any]:
        return {"name": "constant", "seconds": seconds}

    @abstractmethod
    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """``size`` step times in seconds, each above 0."""

    @property
    @abstractmethod
    def mean_seconds(self) -> float:
        """The mean of the distribution in seconds."""

    def stream(self, rng: np.random.Generator) -> Iterator[float]:
        """Step times one after another, without end, as Python floats (NumPy's would slow the event queue)."""
        while True:
            yield from self.draw(rng, BLOCK).tolist()


@register("constant")
@checked
class Constant(StepTime):
    """Every step takes the same time."""

    seconds: Seconds

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        return np.full(size, self.seconds)

    @property
    def mean_seconds(self) -> float:
        return self.seconds


@register("gamma")
@checked
class Gamma(StepTime):
    """Gamma-distributed times with a given mean and coefficient of variation (standard deviation / mean).

    Shape 1/cv^2, scale mean cv^2: the task-level model of Ali et al. (HCW 2000). cv = 0.1 is the homogeneous cluster of
    the SMEGA² and DANA papers.
    """

    mean: Seconds
    cv: Annotated[float, Meta(ge=1e-9, le=1e9)]

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        # a tiny shape underflows to 0 now and then; a step always takes some time
        return np.maximum(rng.gamma(self.cv**-2, self.mean * self.cv**2, size), np.finfo(float).tiny)

    @property
    def mean_seconds(self) -> float:
        return self.mean


@register("exponential")
@checked
class Exponential(StepTime):
    """Memoryless times: staleness is geometric and asynchrony acts like momentum (Mitliagkas et al. 2016)."""

    mean: Seconds

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        return np.maximum(rng.exponential(self.mean, size), np.finfo(float).tiny)

    @property
    def mean_seconds(self) -> float:
        return self.mean


@register("shifted_exponential")
@checked
class ShiftedExponential(StepTime):
    """A fixed part and an exponential tail: ``shift`` + Exponential(mean ``scale``), in seconds (Dutta et al. 2018)."""

    shift: Annotated[float, Meta(ge=0, le=1e12)]
    scale: Seconds

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        return np.maximum(self.shift + rng.exponential(self.scale, size), np.finfo(float).tiny)

    @property
    def mean_seconds(self) -> float:
        return self.shift + self.scale
