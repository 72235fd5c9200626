"""Step times of a real training job, from the traces that ByteDance published with their study of stragglers."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
from msgspec import Meta

from asyncsim.cluster.data_files import Content, ReadsFile, read_columns
from asyncsim.cluster.step_times import Place, StepTime
from asyncsim.errors import InputError
from asyncsim.records import checked, register

COLUMNS = ("dp_rank", "stage", "step", "optype", "duration")
COMPUTATION = ("forward-compute", "backward-compute")


def read_straggler_trace(path: str | Path, stage: int = 0) -> np.ndarray:
    """(steps, ranks) seconds of computation of each data-parallel rank in one pipeline stage.

    Reads the Parquet files of ByteDance's StragglerAnalysis: one row an operation, of which those of type
    forward-compute and backward-compute are summed over the micro-batches of a step. What a rank waits or sends is not
    in it. Raises InputError for a file of another kind, and for a stage that is not in it.
    """
    return _computation(read_columns(str(path)), str(path), stage)


def straggler_stages(path: str | Path) -> list[int]:
    """The pipeline stages of such a trace."""
    return _stages(read_columns(str(path)), str(path))


def _stages(content: Content, file: str) -> list[int]:
    missing = [name for name in COLUMNS if name not in content.table]
    if missing:
        there = ", ".join(content.table.columns)
        raise InputError(f"{file} is no straggler trace: it has no column {missing[0]}, but {there}", "file")
    return np.unique(content.table["stage"]).tolist()


def _computation(content: Content, file: str, stage: int) -> np.ndarray:
    stages, table = _stages(content, file), content.table
    if stage not in stages:
        raise InputError(f"{file} has no stage {stage}; there are: {', '.join(map(str, stages))}", "stage")
    rows = (table["stage"] == stage) & np.isin(table["optype"], COMPUTATION)
    ranks, rank = np.unique(table["dp_rank"][rows], return_inverse=True)
    # they would compute side by side, not one after another
    if "rank" in table and len(np.unique(table["rank"][rows])) > len(ranks):
        raise InputError(f"{file}: in stage {stage} some data-parallel rank has several devices", "file")
    steps, step = np.unique(table["step"][rows], return_inverse=True)
    seconds = np.zeros((len(steps), len(ranks)))
    np.add.at(seconds, (step, rank), table["duration"][rows].astype(float))
    if not (np.isfinite(seconds) & (seconds > 0)).all():
        raise InputError(f"{file}: in stage {stage} some rank computes nothing in some step", "file")
    return seconds


@register("straggler_trace")
@checked
class StragglerTrace(ReadsFile, StepTime):
    """The steps of a real job: the group's j-th worker replays data-parallel rank j of one pipeline stage, in order.

    ``file`` is a Parquet file of ByteDance's StragglerAnalysis (a path, seen from where asyncsim runs; needs the extra
    ``frames``). A step takes the seconds that its rank computes, forward and backward, over all micro-batches; after
    the last step the first comes again. ``sha256``: if given, the file must have that hash.
    """

    file: str
    stage: Annotated[int, Meta(ge=0)] = 0
    sha256: str | None = None

    def validate(self) -> None:
        _ = self.seconds  # read now, so that a mistake in the file shows here

    @functools.cached_property
    def seconds(self) -> np.ndarray:
        """(steps, ranks) seconds of computation."""
        return _computation(self._content, self.file, self.stage)

    def check(self, count: int) -> None:
        ranks = self.seconds.shape[1]
        if count > ranks:
            raise InputError(f"{count} workers, but {self.file} has {ranks} ranks in stage {self.stage}", "file")

    def stream(self, rng: np.random.Generator, place: Place) -> Iterator[float]:
        return itertools.cycle(self.seconds[:, place.position].tolist())

    @property
    def mean_seconds(self) -> float:
        return float(self.seconds.mean())
