"""Step times that were measured: drawn from a column of a file, or replayed as they came."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Literal

import numpy as np

from asyncsim.cluster.data_files import ReadsFile, column, positive
from asyncsim.cluster.step_times import Distribution, Place, Seconds, StepTime
from asyncsim.errors import InputError, within
from asyncsim.records import checked, register


class _Measured(ReadsFile):
    """Times from ``column`` of ``file``, or from a list of ``values``."""

    column: str | None
    values: tuple[float, ...]

    def validate(self) -> None:
        if (self.file is None) == (not self.values):
            raise InputError("expected either a file or a list of values", "file")
        if self.file is None and not self.column is self.sha256 is None:
            raise InputError("goes with a file, not with values", "sha256" if self.column is None else "column")
        _ = self.times  # read now, so that a mistake in the file shows here

    @functools.cached_property
    def times(self) -> np.ndarray:
        """All times in seconds, in the order of the file."""
        if self.file is None:
            return np.array(self.values, float)
        values = column(self._content, self.file, self.column)
        name = f"the column {self.column!r}" if self.column is not None else "its only column"
        return within("file" if self.column is None else "column", positive, values, f"{self.file}: {name}")

    @property
    def mean_seconds(self) -> float:
        return float(self.times.mean())


@register("empirical")
@checked
class Empirical(_Measured, Distribution):
    """Times drawn with replacement from measured ones: a column of a CSV or Parquet file, or a list of ``values``.

    ``file`` is a path, seen from where asyncsim runs; its ``column`` may be left out where there is only one. In a CSV
    file lines that begin with # are skipped, and a single column needs no name. ``sha256``: if given, the file must
    have that hash; a resolved scenario says it.
    """

    file: str | None = None
    column: str | None = None
    values: tuple[Seconds, ...] = ()
    sha256: str | None = None

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        return self.times[rng.integers(len(self.times), size=size)]


@register("recorded")
@checked
class Recorded(_Measured, StepTime):
    """Measured times replayed in order, and from the beginning again after the last: a column of a file, or ``values``.

    Without ``by`` every worker of the group replays the whole column: from its ``first`` time on, all in step, or, with
    ``start = "random"``, each from a place of its own. ``by`` names a column that says whose row it is: the group's
    j-th worker replays the rows of the j-th distinct value, in ascending order. What the times have to do with those
    before them is kept, which ``empirical`` loses. ``file``, ``column`` and ``sha256`` are as for ``empirical``; the
    mean is that of all rows.
    """

    file: str | None = None
    column: str | None = None
    by: str | None = None
    start: Literal["first", "random"] = "first"
    values: tuple[Seconds, ...] = ()
    sha256: str | None = None

    def validate(self) -> None:
        super().validate()
        if self.by is not None and self.file is None:
            raise InputError("goes with a file, not with values", "by")
        _ = self._rows

    @functools.cached_property
    def _rows(self) -> list[np.ndarray]:
        """The times of each distinct value of ``by``, or of everybody."""
        if self.by is None or self.file is None:
            return [self.times]
        whose = column(self._content, self.file, self.by, field="by")
        missing = [x is None or x != x for x in whose.tolist()]
        if any(missing):
            what = f"{self.file}: the column {self.by!r} does not say whose row {missing.index(True) + 1} is"
            raise InputError(what, "by")
        try:
            return [self.times[whose == one] for one in np.unique(whose)]
        except TypeError:
            raise InputError(f"{self.file}: the column {self.by!r} holds neither numbers nor texts", "by") from None

    def check(self, count: int) -> None:
        if self.by is not None and count > len(self._rows):
            what = f"{count} workers, but {self.file} has rows of {len(self._rows)} only (column {self.by!r})"
            raise InputError(what, "by")

    def stream(self, rng: np.random.Generator, place: Place) -> Iterator[float]:
        times = self._rows[0 if self.by is None else place.position].tolist()
        begin = int(rng.integers(len(times))) if self.start == "random" else 0
        return itertools.cycle(times[begin:] + times[:begin])
