"""The command line: ``asyncsim run | sweep | trace | list | bench``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import tyro

from asyncsim.errors import Deadlock, InputError, nearest
from asyncsim.interruption import Stopped, insisting, status
from asyncsim.plugins import import_plugins

app = tyro.extras.SubcommandApp()

ScenarioFile = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SCENARIO", help="a scenario file (TOML)")]
Overrides = Annotated[
    tyro.conf.UseAppendAction[tuple[str, ...]],
    tyro.conf.arg(
        name="set",
        metavar="KEY=VALUE",
        help="set a field of every run, as algorithm.momentum=0.9, or of one: variants.sync.algorithm.momentum=0.9",
    ),
]
Plugins = Annotated[
    tyro.conf.UseAppendAction[tuple[str, ...]],
    tyro.conf.arg(metavar="MODULE", help="import a module that registers methods, models or protocols of yours"),
]


Folder = Annotated[str, tyro.conf.arg(metavar="FOLDER")]


@app.command
def run(scenario: ScenarioFile, overrides: Overrides = (), plugin: Plugins = (), out: Folder = "") -> None:
    """Run a scenario and all its variants; print a table, and write tables and a figure to a folder.

    Example: asyncsim run scenarios/quickstart.toml --set 'cluster.workers[0].count=16' --out runs/sixteen

    Args:
        out: the folder for the results, in place of former ones there (left empty: runs/ and a name for these settings)
    """
    from asyncsim.compilation import keep_programs, program_cache
    from asyncsim.files import mark, new_folder
    from asyncsim.naming import name_of
    from asyncsim.plots import overview
    from asyncsim.reports import comparison
    from asyncsim.runs import cores, versions
    from asyncsim.scenario import run as run_scenario
    from asyncsim.scenario_files import load_scenarios, plain

    import_plugins(plugin)
    scenarios = load_scenarios(scenario, overrides)
    name = plain(scenario.stem) if len(scenarios) > 1 else next(iter(scenarios))
    folder = Path(out or f"runs/{name}-{name_of(scenarios.values(), 8)}")
    targets = {f"{one.target.metric} {one.target.value:g}" for one in scenarios.values() if one.target is not None}
    replaced = folder.is_dir()
    keep_programs(program_cache(cores()))
    with new_folder(folder, "comparison") as temporary:  # first, so that a folder that cannot be written costs no work
        with _speaking_of(scenario):
            runs = [run_scenario(one, progress=True) for one in scenarios.values()]
        text = comparison(runs, target=targets.pop() if len(targets) == 1 else "")
        for one in runs:
            (temporary / one.label).mkdir()
            one.write(temporary / one.label)
        overview(runs).savefig(temporary / "figure.png", dpi=150)
        (temporary / "table.txt").write_text(text + "\n", encoding="utf-8")
        mark(temporary, "comparison", runs=[one.label for one in runs], versions=versions())
    print(text)
    former = ", in place of the former ones" if replaced else ""
    print(f"\nresults: {folder}/ (figure.png, and for each run its scenario and tables){former}")


SweepFile = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SWEEP", help="a scenario file with [sweep]")]


@app.command
def sweep(
    file: SweepFile,
    overrides: Overrides = (),
    plugin: Plugins = (),
    out: Folder = "",
    processes: int | None = None,
    keep: Literal["figures", "all"] = "figures",
    dry_run: bool = False,
) -> None:
    """Run every combination of a sweep file's variants, grid, zips and seeds; one table, a row a run.

    What is finished stays and is not run again: after an interruption, or with more values, the same command goes on.
    Exit status 1 if a run failed. Example: asyncsim sweep scenarios/learning_rates.toml --dry-run

    Args:
        out: the folder for the results (left empty: runs/ and the file's name)
        processes: how many at once, each with one thread (left out: one for each core; 0: in this process)
        keep: of each run, its summary and evaluations, or all tables, parameters and the trace
        dry_run: only say what there is to do
    """
    from asyncsim.sweeps.axes import load
    from asyncsim.sweeps.results import TABLE, conclusion, text_of
    from asyncsim.sweeps.sweeping import sweep as run_sweep

    import_plugins(plugin)
    scenarios, over = load(file, overrides)
    folder = Path(out or f"runs/{file.stem}-sweep")
    try:
        with _speaking_of(file):
            found = run_sweep(
                scenarios,
                over,
                folder=folder,
                processes=processes,
                keep=keep,
                plugins=plugin,
                progress=True,
                dry_run=dry_run,
            )
    except (KeyboardInterrupt, Stopped) as stop:
        _say("interrupted; what is finished stays, and the same command goes on from there")
        if processes == 0:
            _leave(stop)
        raise SystemExit(status(stop)) from None
    print(text_of(found))
    if dry_run:
        print(f"\n{found.counts} (nothing was run); results would go to {folder}/")
        return
    if said := conclusion(found):
        print(f"\n{said}")
    print(f"\n{found.counts}; results: {folder / TABLE}, and a folder for each run")
    for name, error in found.failures().items():
        _say(f"{name} failed: {error}")
    if found.failures():
        sys.stdout.flush()
        raise SystemExit(1)


@app.command
def trace(scenario: ScenarioFile, overrides: Overrides = (), plugin: Plugins = (), out: Folder = "") -> None:
    """Run the timing of a scenario alone: throughput, staleness and how the workers spend their time.

    Where values steer a protocol (gaia), the learning has to go along.

    Example: asyncsim trace scenarios/quickstart.toml --set cluster.latency=0.05

    Args:
        out: a folder to write the traces to, and of each its tables: by worker, over time, staleness, spans, transfers
            (left empty: nothing is written)
    """
    from asyncsim.files import check_folder, mark, new_folder
    from asyncsim.reports import TITLES, side_by_side
    from asyncsim.runs import versions
    from asyncsim.scenario_files import load_scenarios

    import_plugins(plugin)
    scenarios = load_scenarios(scenario, overrides)
    if out:
        check_folder(Path(out), "set of traces")
    with _speaking_of(scenario):
        traces = {name: one.record() for name, one in scenarios.items()}
    if out:
        with new_folder(Path(out), "set of traces") as temporary:
            for name, one in traces.items():
                one.save(temporary / f"{name}.npz")
                for kind, table in one.tables().items():
                    (temporary / f"{name}-{kind}.csv").write_text(table.to_csv(), encoding="utf-8")
            mark(temporary, "set of traces", versions=versions())
    print(side_by_side(traces, [one.summary() for one in traces.values()], TITLES))
    if out:
        print(f"\ntraces: {out}/")


@app.command(name="list")
def list_(what: Annotated[str, tyro.conf.Positional] = "all", plugin: Plugins = ()) -> None:
    """Name all that a scenario can choose from, family by family; or show one of them, or a scenario, in full.

    Example: asyncsim list; asyncsim list problems; asyncsim list asgd; asyncsim list scenario

    Args:
        what: all, a family (algorithms, protocols, step-times, delays, hosts, topologies,
            buckets, problems, data-sets, partitions), a name,
            scenario, or a table of one (cluster, workers, servers, ...)
    """
    from asyncsim.listing import FAMILIES, TABLES, describe, describe_table

    import_plugins(plugin)
    if what in ("all", *FAMILIES):
        for title, family in FAMILIES.items():
            if what in ("all", title):
                print(f"{title}:")
                for name, cls in family.members.items():
                    print(f"  {name:<20} {describe(cls)}")
    elif what in TABLES:
        print(describe_table(what))
    else:
        found = [
            cls for family in FAMILIES.values() for name, cls in family.members.items() if what in (name, cls.__name__)
        ]
        names = ["all", *TABLES, *FAMILIES, *(name for family in FAMILIES.values() for name in family.members)]
        if not found:
            raise InputError(f"nothing is called {what!r}; there are: {', '.join(names)}{nearest(what, names)}")
        print("\n\n".join(describe(cls, full=True) for cls in found))


@app.command
def bench(
    group: Annotated[tuple[str, ...], tyro.conf.Positional] = (),
    json: bool = False,
    quick: bool = False,
    out: Folder = "",
) -> None:
    """Measure how fast asyncsim is on this machine, each figure over what bounds it: a line a figure.

    Example: asyncsim bench; asyncsim bench replay peers --json

    Args:
        group: replay, models, peers, recording or starting (left out: all, about ten minutes)
        json: print one JSON object
        quick: an eighth of the work, and less exact
        out: a folder to write them to as well, with the machine and versions (left empty: nothing is written)
    """
    import json as notation

    from asyncsim.bench import figures
    from asyncsim.files import check_folder, mark, new_folder
    from asyncsim.runs import versions

    if out:
        check_folder(Path(out), "bench")
    found: dict[str, float] = {}
    for name, value in figures(group, quick):
        found[name] = value
        if not json:
            print(f"{name}: {value:.3g}", flush=True)
    if json:
        print(notation.dumps(found, indent=2))
    if out:
        with new_folder(Path(out), "bench") as folder:
            (folder / "bench.txt").write_text("".join(f"{k}: {v:.3g}\n" for k, v in found.items()), encoding="utf-8")
            mark(folder, "bench", versions=versions())


@contextmanager
def _speaking_of(file: Path) -> Iterator[None]:
    """Mistakes that show only when a scenario runs are its file's all the same."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{file}: {error}") from None


def main(args: list[str] | None = None) -> None:
    """The entry point. Exit status 2, with one line on standard error, for a mistake in what was given."""
    args = sys.argv[1:] if args is None else args
    if args == ["--version"]:
        from importlib.metadata import version

        print(f"asyncsim {version('asyncsim')}")
        return
    try:
        with insisting():  # what is under way is cleared away
            app.cli(prog="asyncsim", description=DESCRIPTION, args=args or ["--help"], use_underscores=False)
            sys.stdout.flush()
    except InputError as error:
        _say(error)
        raise SystemExit(2) from None
    except Deadlock as error:
        _say(f"deadlock: {error}")
        raise SystemExit(1) from None
    except MemoryError:
        _say("not enough memory for a simulation of this size")
        raise SystemExit(2) from None
    except OSError as error:  # standard output is closed or full
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        if isinstance(error, BrokenPipeError):
            raise SystemExit(1) from None  # of ``| head``, which has seen enough
        _say(f"cannot print: {error.strerror}")
        raise SystemExit(1) from None
    except (KeyboardInterrupt, Stopped) as stop:
        _say("interrupted; nothing was written")
        _leave(stop)


def _say(message: object) -> None:
    """One line on standard error, whatever is in the message."""
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(message))
    print(f"asyncsim: {line}".encode(errors="backslashreplace").decode(), file=sys.stderr)


def _leave(stop: BaseException) -> NoReturn:
    """End at once: XLA's threads may be in the middle of a compilation, where an ordinary exit would crash."""
    sys.stderr.flush()
    os._exit(status(stop))


DESCRIPTION = (
    "Simulate asynchronous distributed training: a model of the cluster decides when each gradient is computed and "
    "applied, real gradients decide what is learned. Start with: asyncsim run scenarios/quickstart.toml"
)

if __name__ == "__main__":
    main()
