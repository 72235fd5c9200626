"""What came out of a sweep: one tidy table, a row a run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncsim.errors import InputError, nearest
from asyncsim.files import MARK, read_mark
from asyncsim.records import in_words
from asyncsim.reports import in_columns, show
from asyncsim.runs import Run
from asyncsim.runs import load as load_run
from asyncsim.scenario import Scenario
from asyncsim.sweeps.comparing import best, paired
from asyncsim.tables import Table, tidy
from asyncsim.trace import Trace

if TYPE_CHECKING:
    import pandas

FORMAT = 1
RUNS, TRACES, FAILED = "runs", "traces", "failed"  # folders in that of a sweep
TABLE = "table.csv"


class Sweep:
    """The runs of a sweep, finished or not.

    ``table``: a row for each combination: ``run`` (a name; equal for equal runs), labels such as ``variant``,
    ``status`` (done, failed or pending), ``failure`` (why), every field of the scenario by its path, and every figure
    of the run's summary. ``varied``: the columns in which the scenarios differ, but for those that differ just as a
    former one does.
    """

    def __init__(self, folder: str | Path, rows: list[dict[str, Any]]):
        self.folder, self._rows = Path(folder), rows
        outcomes = {name: _outcome(self.folder, name) for name in dict.fromkeys(row["run"] for row in rows)}
        self.table = tidy(
            {"run": row["run"], **row["labels"], **status, **row["scenario"], **figures}
            for row in rows
            for status, figures in [outcomes[row["run"]]]
        )
        self.varied = self._varied()

    @property
    def labels(self) -> list[str]:
        """The columns that name an axis: ``variant``, and those that the sweep was given names for."""
        return list(self._rows[0]["labels"])

    def _varied(self) -> list[str]:
        names = dict.fromkeys(name for row in self._rows for name in (*row["labels"], *row["scenario"]))
        found: dict[tuple[int, ...], str] = {}
        for name in names:
            number: dict[Any, int] = {}  # of each value, in order of appearance; nan is one
            pattern = tuple(number.setdefault(v if v == v else None, len(number)) for v in self.table[name].tolist())
            # what varies just as a former column does (protocol with variant) says nothing more
            found.setdefault(pattern, name)
        return [name for pattern, name in found.items() if len(set(pattern)) > 1]

    def __len__(self) -> int:
        return len(self._rows)

    def to_frame(self) -> pandas.DataFrame:
        """The table as a pandas data frame (needs the extra ``frames``)."""
        return self.table.to_frame()

    def evals(self) -> Table:
        """All evaluations of all finished runs: run, labels, what was varied, and the columns of ``run.evals``."""
        rows = []
        for row, whole in zip(self._rows, self.table.rows(), strict=True):
            if whole["status"] == "done":
                text = (self.folder / RUNS / row["run"] / "evals.csv").read_text(encoding="utf-8")
                head = {"run": row["run"], **{name: whole[name] for name in self.varied}}
                rows += [{**head, **figures} for figures in Table.from_csv(text).rows()]
        return tidy(rows)

    def run(self, name: str) -> Run:
        """A whole run, by its name; of a sweep that kept all (``keep="all"``)."""
        self._check(name)
        return load_run(self.folder / RUNS / name)

    def trace(self, name: str) -> Trace:
        """The trace that a run learned along."""
        self._check(name)
        key = next(row["trace"] for row in self._rows if row["run"] == name)
        return Trace.load(self.folder / TRACES / f"{key}.npz")

    def _check(self, name: str) -> None:
        names = self.table["run"].tolist()
        if name not in names:
            raise InputError(f"no run is called {name!r}{nearest(name, names)}; the column run has their names")

    def failures(self) -> dict[str, str]:
        """The error of each failed run."""
        return {row["run"]: row["failure"] for row in self.table.rows() if row["status"] == "failed"}

    def best(self, by: str, per: str | Iterable[str] = (), *, over: str = "seed", highest: bool | None = None) -> Table:
        """The best settings by one figure, for each value of the columns ``per`` (left out: the best of all).

        Runs that differ in ``over`` alone (their seed) are one candidate: their mean counts, and a failed run, or one
        without that figure, rules it out. ``highest``: whether more is better; known for the usual figures. A row has
        ``per``, the other varied columns, mean and standard deviation (of a sample; nan for one run) of the figure, and
        the number of runs: 0 where every candidate was ruled out.
        """
        return best(self.table, self.varied, by, per, over, highest)

    def paired(self, by: str, per: str | Iterable[str], to: Mapping[str, Any], *, over: str = "seed") -> Table:
        """How a figure differs from that of other settings, pair by pair of runs that share the rest.

        ``per``: the columns for each of whose values runs are taken together; ``to``: where among these the others are
        compared with, such as ``{"algorithm.name": "smega2"}`` (for each value of the other columns, then); ``over``:
        what tells the pairs apart (runs of equal seeds share initialisation and mini-batches and, where the timing
        inputs are equal, the trace). A row has ``per``, the mean of the figure, ``difference``: the mean over all pairs
        of its difference to the run at ``to``, the standard errors of both (nan for less than two), ``pairs``: how
        many there are, and ``diverged``: how many runs did. A run that failed, or has no such figure, makes no pair;
        one that diverged does, with the figure that it ended on.
        """
        return paired(self.table, self.varied, by, per, to, over)

    @property
    def counts(self) -> str:
        """``12 runs: 10 done, 2 failed``."""
        status = self.table["status"].tolist()
        counts = ", ".join(f"{status.count(s)} {s}" for s in ("done", "failed", "pending") if s in status)
        return f"{len(self)} run{'s' if len(self) > 1 else ''}: {counts}"

    def __repr__(self) -> str:
        return f"Sweep({str(self.folder)!r}, {self.counts}; varied: {', '.join(self.varied) or 'nothing'})"

    def _repr_html_(self) -> str:
        return self.table._repr_html_()


def text_of(sweep: Sweep, most: int = 100) -> str:
    """The main columns of a sweep's table as text: what was varied, how it ended, and the figures of most use."""
    figures = [k for k in ("accuracy", "loss", "time_to_target", "throughput", "staleness_mean") if k in sweep.table]
    ended = ["ended"] if "ended" in sweep.table and set(sweep.table["ended"].tolist()) - {"budget", ""} else []
    names = ["run", *sweep.varied, "status", *ended, *figures]
    text = in_columns([names] + [[show(k, row[k]) for k in names] for row in sweep.table.head(most).rows()])
    return text + (f"\n... and {len(sweep) - most} more" if len(sweep) > most else "")


def conclusion(sweep: Sweep) -> str:
    """The best settings for each variant (or other label), where there is something to choose from."""
    figure = next((k for k in ("accuracy", "loss") if k in sweep.table), None)
    labels = sweep.labels
    if figure is None or not [name for name in sweep.varied if name not in (*labels, "seed")]:
        return ""
    best = sweep.best(figure, per=labels)
    lines = [best.columns] + [[show(k, row[k]) for k in best.columns] for row in best.rows()]
    return f"best {figure} (mean over seeds):\n{in_columns(lines)}"


def load_sweep(folder: str | Path) -> Sweep:
    """Read a sweep's folder: finished, interrupted, or still under way. Raises InputError if it holds none."""
    folder = Path(folder)
    meta = read_mark(folder, "sweep")
    if not isinstance(meta, dict) or meta.get("kind") != "sweep":
        raise InputError("holds no sweep", str(folder))
    if meta.get("format") != FORMAT:
        raise InputError(f"has sweep format {meta.get('format')}; this version reads format {FORMAT}", str(folder))
    try:
        return Sweep(folder, meta["rows"])
    except (KeyError, TypeError, AttributeError, IndexError):
        raise InputError("is damaged", str(folder / MARK)) from None


def columns(scenario: Scenario) -> dict[str, Any]:
    """Every field of a resolved scenario by its path, but for its label; lists of plain values are texts."""
    resolved = scenario.resolved()
    values = {f.name: getattr(resolved, f.name) for f in dataclasses.fields(resolved) if f.name != "name"}
    return dict(_flat({k: in_words(v) for k, v in values.items() if v is not None}, ""))


def _flat(value: Any, path: str) -> Iterable[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for k, inner in enumerate(value):
            yield from _flat(inner, f"{path}[{k}]")
    else:
        yield path, json.dumps(value) if isinstance(value, list) else value


def _outcome(folder: Path, name: str) -> tuple[dict[str, str], dict[str, Any]]:
    """How a run ended, and its figures."""
    figures = figures_of(folder / RUNS / name)
    if figures is not None:
        return {"status": "done", "failure": ""}, figures
    try:
        error = json.loads((folder / FAILED / f"{name}.json").read_text(encoding="utf-8"))["error"]
        return {"status": "failed", "failure": str(error)}, {}
    except (OSError, ValueError, KeyError, TypeError):
        return {"status": "pending", "failure": ""}, {}


def figures_of(run: Path, whole: bool = False) -> dict[str, Any] | None:
    """The summary of a finished run; None where it is not there, or not as a whole although it is to be."""
    try:
        figures = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    there = (run / "evals.csv").is_file() and (not whole or ((run / MARK).is_file() and (run / "trace.npz").is_file()))
    return figures if isinstance(figures, dict) and there else None
