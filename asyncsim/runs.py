"""What came out: tidy tables, a summary, and how they are saved, loaded and shown."""

from __future__ import annotations

import dataclasses
import html
import io
import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from asyncsim.errors import InputError
from asyncsim.files import MARK, new_folder
from asyncsim.tables import Table
from asyncsim.trace import Trace

if TYPE_CHECKING:
    import pandas

FORMAT = 1


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Run:
    """One simulated training.

    ``updates``: a row per gradient: time (simulated seconds), worker, its step, staleness, samples processed, whether
    it was accepted and closed an update, learning rate, batch loss and, unless switched off, gap, gradient norm and
    update norm. ``evals``: a row per evaluation: time, updates, samples, epochs and the test figures. ``summary``: one
    figure by name each. ``params``: the final parameters. ``trace``: what happened when. ``scenario``: the resolved
    scenario as plain tables, where the run came from one (``asyncsim.Scenario(**run.scenario)`` builds it again).
    """

    label: str
    trace: Trace
    updates: Table
    evals: Table
    summary: dict[str, Any]
    params: Any
    scenario: dict[str, Any] | None = None

    @property
    def spans(self) -> Table:
        """What each worker did, from when to when."""
        return self.trace.spans

    def to_frame(self, table: str = "evals") -> pandas.DataFrame:
        """One of the tables (updates, evals, spans, summary) as a pandas data frame, with the run's label."""
        if table == "summary":
            chosen = Table({k: np.array([v]) for k, v in self.summary.items()})
        elif table in ("updates", "evals", "spans"):
            chosen = getattr(self, table)
        else:
            raise InputError(f"no table {table!r}; there are: updates, evals, spans, summary")
        frame = chosen.to_frame()
        frame.insert(0, "run", self.label)
        return frame

    def __repr__(self) -> str:
        s = self.summary
        figures = ", ".join(f"{k} {s[k]:.4g}" for k in ("accuracy", "loss") if k in s)
        return (
            f"Run({self.label!r}: {self.trace.num_workers} workers, {s['updates']} updates in {s['seconds']:.6g} s, "
            f"staleness {s['staleness_mean']:.3g}, {figures}, ended by {s['ended']})"
        )

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><th style='text-align:left'>{html.escape(name)}</th><td>{html.escape(show(name, value))}</td></tr>"
            for name, value in self.summary.items()
        )
        return f"<table><caption>{html.escape(self.label)}</caption>{cells}</table>"

    def save(self, folder: str | Path) -> None:
        """Write the run to a folder, in place of former results there; the same run makes the same bytes."""
        with new_folder(Path(folder)) as temporary:
            self.write(temporary)

    def write(self, folder: Path) -> None:
        """Write the run's files into an existing, empty folder."""
        import tomli_w

        for name in ("updates", "evals", "spans"):
            (folder / f"{name}.csv").write_text(getattr(self, name).to_csv(), encoding="utf-8")
        (folder / "summary.json").write_text(to_json(self.summary), encoding="utf-8")
        self.trace.save(folder / "trace.npz")
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **_flat(self.params))  # type: ignore[arg-type]
        (folder / "params.npz").write_bytes(buffer.getvalue())
        if self.scenario is not None:
            (folder / "scenario.toml").write_text(tomli_w.dumps(self.scenario), encoding="utf-8")
        meta = {"format": FORMAT, "kind": "run", "label": self.label, "versions": versions()}
        (folder / MARK).write_text(to_json(meta), encoding="utf-8")


def load(folder: str | Path) -> Run:
    """Read a run that was saved. The parameters come back as nested dicts of arrays."""
    folder = Path(folder)
    try:
        meta = json.loads((folder / MARK).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"holds no asyncsim run: there is no {MARK}", str(folder)) from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {error}", str(folder / MARK)) from None
    if not isinstance(meta, dict) or meta.get("kind") != "run":
        below = sorted(p.parent.name for p in folder.glob(f"*/{MARK}"))
        hint = f"; load one of: {', '.join(below)}" if below else ""
        raise InputError(f"is not a single run{hint}", str(folder))
    if meta.get("format") != FORMAT:
        raise InputError(f"has run format {meta.get('format')}; this version reads format {FORMAT}", str(folder))
    try:
        tables = {k: Table.from_csv((folder / f"{k}.csv").read_text(encoding="utf-8")) for k in ("updates", "evals")}
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"), parse_constant=float)
        with np.load(folder / "params.npz", allow_pickle=False) as stored:
            params = _nested({k: stored[k] for k in stored.files})
    except (OSError, ValueError, IndexError, KeyError, EOFError) as error:
        raise InputError(f"is damaged: {error}", str(folder)) from None
    scenario = None
    if (folder / "scenario.toml").exists():
        scenario = tomllib.loads((folder / "scenario.toml").read_text(encoding="utf-8"))
    trace = Trace.load(folder / "trace.npz")
    return Run(meta["label"], trace, tables["updates"], tables["evals"], summary, params, scenario)


def summarise(
    trace: Trace, updates: Table, evals: Table, ended: str, targeted: bool, reached: float | None
) -> dict[str, Any]:
    """The figures of a run: those of its trace, and what was learned."""
    out: dict[str, Any] = {"ended": ended, **trace.summary()}
    accepted = updates["accepted"]
    for name in ("gap", "gradient_norm", "update_norm"):
        if name in updates:
            values = updates[name][accepted]
            out[name] = float(np.mean(values)) if len(values) else 0.0
    for name in evals.columns[4:]:
        out[name] = float(evals[name][-1])
    if targeted:
        out["time_to_target"] = float("nan") if reached is None else reached
    return out


UNITS = {"seconds": "s", "throughput": "samples/s", "time_to_target": "s", "bytes_sent": "bytes"}


def show(name: str, value: Any) -> str:
    """A figure of the summary in words, with its unit."""
    if isinstance(value, float):
        if name == "time_to_target" and np.isnan(value):
            return "not reached"
        if name.endswith("_share"):
            return "" if np.isnan(value) else f"{100 * value:.1f} %"
        text = f"{value:.5g}"
    else:
        text = str(value)
    return f"{text} {UNITS[name]}" if name in UNITS else text


def versions() -> dict[str, str]:
    """The versions, and the kind of machine, that a result depends on."""
    import os
    import platform
    from importlib import metadata

    names = ("asyncsim", "jax", "jaxlib", "numpy", "simpy", "optax")
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    return {"python": platform.python_version(), **{n: metadata.version(n) for n in names}, "machine": machine}


def to_json(value: Any) -> str:
    """JSON with one key a line; what is not a number is written as NaN, as Python reads it."""
    return json.dumps(value, indent=2) + "\n"


def _flat(tree: Any) -> dict[str, np.ndarray]:
    """Arrays by their path in the tree: {'layer0/weight': ...}."""
    import jax

    return {
        "/".join(jax.tree_util.keystr((step,), simple=True) for step in path) or "params": np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _nested(flat: Mapping[str, np.ndarray]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, array in flat.items():
        *folders, last = name.split("/")
        place = out
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = array
    return out


FIGURES = {  # of a comparison, in this order: what the summary calls it, and what people do
    "seconds": "simulated time",
    "updates": "updates",
    "throughput": "throughput",
    "staleness_mean": "staleness, mean",
    "staleness_max": "staleness, max",
    "gap": "gap, mean",
    "loss": "test loss",
    "accuracy": "test accuracy",
    "compute_share": "busy",
    "wait_share": "waiting",
    "time_to_target": "time to target",
    "ended": "ended by",
}


def comparison(runs: Iterable[Run]) -> str:
    """The main figures of some runs side by side, as text."""
    return columns({run.label: run.summary for run in runs}, FIGURES)


def columns(summaries: Mapping[str, Mapping[str, Any]], names: Mapping[str, str] | None = None) -> str:
    """Some summaries side by side, as text: a line a figure."""
    keys = list(dict.fromkeys(k for s in summaries.values() for k in s))
    names = {k: k.replace("_", " ") for k in keys} if names is None else {k: names[k] for k in names if k in keys}
    body = [[title, *(show(k, s[k]) if k in s else "" for s in summaries.values())] for k, title in names.items()]
    lines = [["", *summaries], *body]
    widths = [max(len(line[k]) for line in lines) for k in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if k == 0 else cell.rjust(w) for k, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )
