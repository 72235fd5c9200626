"""What came out: tidy tables, a summary, and how they are saved, loaded and shown."""

from __future__ import annotations

import dataclasses
import html
import io
import json
import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from asyncsim.errors import InputError, nearest
from asyncsim.files import MARK, mark, new_folder, read_mark, to_json
from asyncsim.reports import show
from asyncsim.tables import Table
from asyncsim.trace import Trace

if TYPE_CHECKING:
    import pandas

FORMAT = 1
MEASURES = (  # of each gradient, unless switched off; the last two where the method has a momentum
    *("gap", "normalised_gap", "gradient_norm", "update_norm", "effective_learning_rate"),
    *("momentum_norm", "momentum_cosine"),
)
OF_UPDATES = ("update_norm", "effective_learning_rate")  # of these, what the parameters do: 0 where none closes
EVAL_CLOCKS = ("time", "updates", "samples", "epochs")  # of the columns of evals, those that say when


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Run:
    """One simulated training.

    ``updates``: a row per gradient: time (simulated seconds), worker, its step, staleness, samples processed, whether
    it was accepted and closed an update, learning rate, batch loss and, unless switched off, gap and its normalised
    form, norms of gradient and update, effective learning rate, and norm and cosine of the momentum that it meets.
    ``evals``: a row per evaluation: time, updates, samples, epochs and the test figures. ``summary``: one
    figure by name each. ``params``: the final parameters. ``trace``: what happened when. ``settings``: what was
    replayed, in plain tables. ``scenario``: the whole resolved scenario, where the run came from one
    (``asyncsim.Scenario(**run.scenario)`` builds it again).
    """

    label: str
    trace: Trace
    updates: Table
    evals: Table
    summary: dict[str, Any]
    params: Any
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    scenario: dict[str, Any] | None = None

    @property
    def spans(self) -> Table:
        """What each worker did, from when to when."""
        return self.trace.spans

    def to_frame(self, table: str = "evals") -> pandas.DataFrame:
        """One of the tables (updates, evals, summary, and those of the trace: by_worker, over_time, staleness, spans,
        transfers) as a pandas data frame, with the run's label."""
        summary = Table({k: np.array([v]) for k, v in self.summary.items()})
        tables = {"updates": self.updates, "evals": self.evals, "summary": summary, **self.trace.tables()}
        if table not in tables:
            raise InputError(f"no table {table!r}; there are: {', '.join(tables)}{nearest(table, tables)}")
        frame = tables[table].to_frame()
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
        """Write the run to a folder, in place of a former run there; the same run makes the same bytes."""
        with new_folder(Path(folder), "run") as temporary:
            self.write(temporary)

    def write(self, folder: Path, brief: bool = False) -> None:
        """Write the run's files into an existing, empty folder; ``brief``: only scenario, summary and evaluations."""
        import tomli_w

        for name in ("evals",) if brief else ("updates", "evals", "spans"):
            (folder / f"{name}.csv").write_text(getattr(self, name).to_csv(), encoding="utf-8")
        (folder / "summary.json").write_text(to_json(self.summary), encoding="utf-8")
        if not brief:
            self.trace.save(folder / "trace.npz")
            (folder / "params.npz").write_bytes(pack_tree(self.params))
        if self.scenario is not None:
            (folder / "scenario.toml").write_text(tomli_w.dumps(self.scenario), encoding="utf-8")
        meta: dict[str, Any] = {"format": FORMAT, "label": self.label}
        meta["rows"] = {name: len(getattr(self, name)) for name in ("updates", "evals")}
        meta |= {"settings": self.settings, "versions": versions()}
        mark(folder, "run in brief" if brief else "run", **meta)


def load(folder: str | Path) -> Run:
    """Read a run that was saved. The parameters come back as nested dicts and lists of arrays.

    Raises InputError if the folder holds no run, or a damaged one.
    """
    folder = Path(folder)
    if folder.is_file():
        hint = "; a trace is read by Trace.load" if folder.suffix == ".npz" else ""
        raise InputError(f"is a file; a run is a folder{hint}", str(folder))
    meta = read_mark(folder, "asyncsim run")
    if isinstance(meta, dict) and meta.get("kind") == "run in brief":
        raise InputError('holds the figures of a run only; a sweep with keep="all" keeps whole runs', str(folder))
    if not isinstance(meta, dict) or meta.get("kind") != "run":
        below = sorted(p.parent.name for p in folder.glob(f"*/{MARK}"))
        hint = f"; load one of: {', '.join(str(folder / b) for b in below)}" if below else ""
        raise InputError(f"is not a single run{hint}", str(folder))
    if meta.get("format") != FORMAT:
        raise InputError(f"has run format {meta.get('format')}; this version reads format {FORMAT}", str(folder))
    try:
        return _read(folder, meta)
    except FileNotFoundError as error:
        name = Path(str(error.filename)).name
        raise InputError(f"{name} is not there; running its scenario.toml makes it again", str(folder)) from None
    except InputError as error:
        raise InputError(f"is damaged: {error}", str(folder)) from None
    except Exception as error:  # damaged files fail in more ways than one can list
        raise InputError(f"is damaged: {type(error).__name__}: {error}", str(folder)) from None


def _read(folder: Path, meta: dict[str, Any]) -> Run:
    tables = {k: Table.from_csv((folder / f"{k}.csv").read_text(encoding="utf-8")) for k in ("updates", "evals")}
    for name, table in tables.items():
        if len(table) != meta["rows"][name]:
            raise InputError(f"has {len(table)} rows, not {meta['rows'][name]}", f"{name}.csv")
        if any(table[column].dtype.kind == "U" for column in table.columns):
            raise InputError("holds a text where a number should be", f"{name}.csv")
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    if not isinstance(summary, dict):
        raise InputError("holds no table of figures", "summary.json")
    scenario = None
    if (folder / "scenario.toml").exists():
        scenario = tomllib.loads((folder / "scenario.toml").read_text(encoding="utf-8"))
    if not (folder / "trace.npz").exists():
        raise FileNotFoundError(2, "no such file", str(folder / "trace.npz"))
    trace, params = Trace.load(folder / "trace.npz"), unpack_tree(folder / "params.npz")
    return Run(
        str(meta["label"]), trace, tables["updates"], tables["evals"], summary, params, meta["settings"], scenario
    )


def summarise(
    trace: Trace, updates: Table, evals: Table, ended: str, targeted: bool, reached: float | None
) -> dict[str, Any]:
    """The figures of a run: those of its trace, and what was learned."""
    out: dict[str, Any] = {"ended": ended, **trace.summary()}
    accepted = updates["accepted"]
    for name in MEASURES:
        if name in updates:
            # the server moves at the last gradient of an update
            values = updates[name][accepted & updates["closes"] if name in OF_UPDATES else accepted]
            out[name] = float(np.mean(values)) if len(values) else 0.0
    for name in evals.columns:
        if name not in EVAL_CLOCKS:
            out[name] = float(evals[name][-1])
    if targeted:
        out["time_to_target"] = float("nan") if reached is None else reached
    return out


def versions() -> dict[str, str]:
    """The versions, and the kind of machine, that a result depends on."""
    import platform
    from importlib import metadata

    names = ("asyncsim", "jax", "jaxlib", "numpy", "simpy", "optax")
    machine = f"{platform.system()} {platform.machine()}, {cores()} cores"
    return {"python": platform.python_version(), **{n: metadata.version(n) for n in names}, "machine": machine}


def cores() -> int:
    """Those that this process may use: how many there are can change the last digits of a sum."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def pack_tree(tree: Any) -> bytes:
    """A tree of arrays as one .npz archive: the arrays by number, and their paths beside them."""
    import jax

    leaves = jax.tree_util.tree_leaves_with_path(tree)
    paths = [[_step_name(step) for step in path] for path, _ in leaves]
    buffer = io.BytesIO()
    arrays = {f"array{k}": np.asarray(leaf) for k, (_, leaf) in enumerate(leaves)}
    np.savez_compressed(buffer, paths=np.array(json.dumps(paths)), **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def unpack_tree(path: Path) -> Any:
    """What ``pack_tree`` wrote: dicts and lists of arrays (tuples come back as lists, records as dicts)."""
    with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
        paths = json.loads(str(stored["paths"]))
        return _grown([(steps, stored[f"array{k}"]) for k, steps in enumerate(paths)])


def _step_name(step: Any) -> str | int:
    """One step of a path: the number in a list, or the name in a dict or record."""
    if hasattr(step, "idx"):
        return int(step.idx)
    return str(getattr(step, "key", getattr(step, "name", step)))


def _grown(leaves: list[tuple[list[str | int], Any]]) -> Any:
    if len(leaves) == 1 and not leaves[0][0]:
        return leaves[0][1]
    below: dict[str | int, list[tuple[list[str | int], Any]]] = {}
    for steps, leaf in leaves:
        below.setdefault(steps[0], []).append((steps[1:], leaf))
    grown = {step: _grown(part) for step, part in below.items()}
    is_list = bool(grown) and all(isinstance(step, int) for step in grown)
    return [grown[k] for k in sorted(grown)] if is_list else grown
