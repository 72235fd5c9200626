"""``sweep``: many scenarios, each run once."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from tqdm import tqdm

from asyncsim.errors import InputError, expect
from asyncsim.files import MARK, check_folder, to_json, write_atomically
from asyncsim.naming import parts_of, run_name, trace_name
from asyncsim.plugins import import_plugins
from asyncsim.records import resolved
from asyncsim.runs import cores, versions
from asyncsim.scenario import Scenario
from asyncsim.sweeps.axes import Row, rows
from asyncsim.sweeps.executing import Here, Processes, execute
from asyncsim.sweeps.results import FAILED, FORMAT, RUNS, TABLE, TRACES, Sweep, columns, figures_of, load_sweep
from asyncsim.sweeps.working import Failure, Job

try:
    import fcntl
except ImportError:  # Windows: two sweeps at once into one folder are not told apart
    fcntl = None  # type: ignore[assignment]


def sweep(
    scenario: Scenario | Mapping[str, Scenario],
    over: Mapping[Any, Any] | None = None,
    *,
    folder: str | Path | None = None,
    executor: Executor | None = None,
    processes: int | None = None,
    keep: Literal["figures", "all"] = "figures",
    plugins: tuple[str, ...] = (),
    progress: bool = False,
    dry_run: bool = False,
) -> Sweep:
    """Run every combination of settings; what is finished is kept, and never run again.

    Arguments:
        scenario: where all start from; several by name (as ``load_scenarios`` gives them) are an axis ``variant``
        over: the axes, by path. ``{"algorithm.learning_rate": [0.01, 0.1]}``: each value. ``{("batch_size",
            "algorithm.learning_rate"): [(32, 0.1), (64, 0.2)]}``: together. ``{"method": {"plain": {"algorithm":
            ASGD(0.1)}, "heavy": {"algorithm": ASGD(0.01, 0.9)}}}``: by name, a column of the table. Values are
            records, numbers, or tables as in a scenario file
        folder: where results go (left out: ``runs/<name of the scenario>-sweep``). A sweep that was interrupted, or
            that shares runs with a former one there, goes on from what is finished
        executor: any ``concurrent.futures.Executor``; left out, processes of its own on this machine
        processes: how many of those (left out: one for each core, each with one thread; 0: in this process)
        keep: ``"figures"``: summary and evaluations of each run; ``"all"``: every table, parameters and trace
        plugins: modules that each process imports first
        progress: draw a bar with the time left
        dry_run: do nothing but look: the table says what is done and what is pending

    Runs with equal timing inputs share one recorded trace. A run that fails is a row with its error, and is tried again
    by the next sweep. A scenario with a class or function that was defined in a script or notebook runs in this
    process, whatever ``processes`` says: other processes cannot import it.

    Raises InputError, before anything is run, for a combination that makes no scenario.

    Example::

        found = sweep(scenario, {"algorithm.learning_rate": [0.01, 0.03, 0.1], "seed": range(5)})
        found.best(by="accuracy"), found.to_frame()
    """
    named = scenario if isinstance(scenario, Mapping) else {"": scenario}
    over = {} if over is None else over
    _check_arguments(named, over, executor, processes, keep, plugins)
    import_plugins(plugins)
    found = rows(named, over)
    runs = [run_name(row.scenario) for row in found]
    traces = [trace_name(row.scenario) for row in found]
    table = [
        {"run": run, "trace": trace, "labels": row.labels, "scenario": columns(row.scenario)}
        for row, run, trace in zip(found, runs, traces, strict=True)
    ]
    folder = Path(folder or f"runs/{next(iter(named.values())).name}-sweep")
    _check_folder(folder)
    if dry_run:
        return Sweep(folder, table)
    with _speaking_of(folder), _own(folder):
        meta = {"kind": "sweep", "format": FORMAT, "rows": table, "versions": versions()}
        write_atomically(folder / MARK, to_json(meta).encode())  # first: by it the folder is known as a sweep's
        for place in (RUNS, TRACES):
            (folder / place).mkdir(exist_ok=True)
        jobs = list(_jobs(folder, found, runs, traces, keep == "all"))
        with tqdm(
            total=len(set(runs)), initial=len(set(runs)) - len(jobs), unit="run", disable=None if progress else True
        ) as bar:

            def done(job: Job, failure: Failure | None) -> None:
                assert job.run is not None
                error = folder / FAILED / f"{job.run.name}.json"
                if failure is None:
                    error.unlink(missing_ok=True)
                else:
                    error.parent.mkdir(exist_ok=True)
                    write_atomically(error, to_json(failure._asdict()).encode())
                    bar.set_postfix_str("some failed")
                bar.update()

            for group, engine in _engines(jobs, executor, processes, plugins):
                execute(group, engine, done)
        found_there = load_sweep(folder)
        write_atomically(folder / TABLE, found_there.table.to_csv().encode())
        return found_there


def _check_arguments(
    named: Mapping[str, Scenario], over: Any, executor: Any, processes: Any, keep: Any, plugins: Any
) -> None:
    if not named:
        raise InputError("expected at least one", "scenario")
    for name, one in named.items():
        expect(one, Scenario, f"scenario[{name!r}]" if name else "scenario")
    if not isinstance(over, Mapping):
        raise InputError(f"expected a dict of paths and their values, got {over!r:.60}", "over")
    if keep not in ("figures", "all"):
        raise InputError(f"expected 'figures' or 'all', got {keep!r}", "keep")
    if processes is not None and (not isinstance(processes, int) or not 0 <= processes <= 1000):
        raise InputError(f"expected a whole number from 0 to 1000, got {processes!r}", "processes")
    if executor is not None:
        expect(executor, Executor, "executor")
        if processes is not None or plugins:
            what = "goes with processes of the sweep's own, not with an executor"
            raise InputError(what, "plugins" if plugins else "processes")


def _jobs(folder: Path, found: list[Row], runs: list[str], traces: list[str], whole: bool) -> Iterator[Job]:
    """What is not finished, each run once."""
    seen = set()
    for row, run, trace in zip(found, runs, traces, strict=True):
        place = folder / RUNS / run
        if run not in seen and figures_of(place, whole) is None:
            # resolved: a file that changes while the sweep is under way is noticed by its hash
            yield Job(replace(resolved(row.scenario), name=run), folder / TRACES / f"{trace}.npz", place, whole)
        seen.add(run)


def _engines(
    jobs: list[Job], executor: Executor | None, processes: int | None, plugins: tuple[str, ...]
) -> Iterator[tuple[list[Job], Executor]]:
    """The jobs that can travel to other processes, and those that stay in this one."""
    if executor is None and processes == 0:
        yield jobs, Here()
        return
    travelling: list[Job] = []
    staying: list[Job] = []
    for job in jobs:
        (travelling if executor is not None or _travels(job) else staying).append(job)
    if travelling:
        count = min(processes or cores(), len(travelling))
        yield travelling, Processes(count, plugins) if executor is None else executor
    if staying:
        yield staying, Here()


def _travels(job: Job) -> bool:
    """Whether another process can have this job: it must be able to import all that is in it."""
    if any(base.__module__ == "__main__" for part in parts_of(job.scenario) for base in type(part).__mro__):
        return False
    try:
        return b"__main__" not in pickle.dumps(job)
    except Exception:  # what cannot be pickled says so in many ways
        return False


def _check_folder(folder: Path) -> None:
    """Refuse a folder that holds anything but a sweep."""
    if (folder / MARK).exists():
        load_sweep(folder)
    elif not (folder.is_dir() and all(path.match(f".{MARK}.*") for path in folder.iterdir())):  # killed while it began
        check_folder(folder, "sweep")


@contextmanager
def _own(folder: Path) -> Iterator[None]:
    """The folder, made ready and cleared of what a killed sweep left half-written; refused to two sweeps at once."""
    handle = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if fcntl is not None:
            handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise InputError(f"cannot be made: {error.strerror}", str(folder)) from None
    try:
        if handle is not None:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InputError("another sweep is at work in this folder", str(folder)) from None
        _clear(folder)
        (folder / TABLE).unlink(missing_ok=True)
        yield
        _clear(folder)
        if (folder / FAILED).is_dir() and not any((folder / FAILED).iterdir()):
            (folder / FAILED).rmdir()
    finally:
        if handle is not None:
            os.close(handle)


def _clear(folder: Path) -> None:
    """Remove what killed processes left half-written."""
    halves = [*folder.glob(f".{MARK}.*"), *folder.glob(f".{TABLE}.*")]
    for place in (RUNS, TRACES, FAILED):
        halves += (folder / place).glob(".*")
    for half in halves:
        shutil.rmtree(half, ignore_errors=True) if half.is_dir() else half.unlink(missing_ok=True)


@contextmanager
def _speaking_of(folder: Path) -> Iterator[None]:
    """What the disk refuses is said of the folder."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", str(error.filename or folder)) from None
