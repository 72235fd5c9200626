"""The command line: ``asyncsim run | trace | list``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import tyro

from asyncsim.errors import InputError

app = tyro.extras.SubcommandApp()

ScenarioFile = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SCENARIO", help="a scenario file (TOML)")]
Overrides = Annotated[
    tyro.conf.UseAppendAction[tuple[str, ...]],
    tyro.conf.arg(name="set", metavar="KEY=VALUE", help="set a field of the scenario, as algorithm.momentum=0.9"),
]
Plugins = Annotated[
    tyro.conf.UseAppendAction[tuple[str, ...]],
    tyro.conf.arg(metavar="MODULE", help="import a module that registers methods, models or protocols of yours"),
]


@app.command
def run(scenario: ScenarioFile, overrides: Overrides = (), plugin: Plugins = (), out: Path | None = None) -> None:
    """Run a scenario and all its variants; print a table, and write tables and a figure to a folder.

    Example: asyncsim run scenarios/quickstart.toml --set cluster.workers[0].count=16 --out runs/sixteen

    Args:
        out: the folder for the results (default: runs/ and the name of the scenario file)
    """
    from asyncsim.files import MARK, new_folder
    from asyncsim.plots import overview
    from asyncsim.runs import comparison, to_json, versions
    from asyncsim.scenario import load_scenarios
    from asyncsim.scenario import run as run_scenario

    _import(plugin)
    scenarios = load_scenarios(scenario, overrides)
    folder = out or Path("runs") / scenario.stem
    with new_folder(folder) as temporary:  # first, so that a folder that cannot be written costs no work
        with _speaking_of(scenario):
            runs = [run_scenario(one, progress=True) for one in scenarios.values()]
        print(comparison(runs))
        for one in runs:
            (temporary / one.label).mkdir()
            one.write(temporary / one.label)
        overview(runs).savefig(temporary / "figure.png", dpi=150)
        (temporary / "table.txt").write_text(comparison(runs) + "\n", encoding="utf-8")
        meta = {"kind": "comparison", "runs": [one.label for one in runs], "versions": versions()}
        (temporary / MARK).write_text(to_json(meta), encoding="utf-8")
    print(f"\nresults: {folder}/ (figure.png, and for each run its scenario and tables)")


@app.command
def trace(scenario: ScenarioFile, overrides: Overrides = (), plugin: Plugins = (), out: Path | None = None) -> None:
    """Run the timing of a scenario alone: throughput, staleness and how the workers spend their time.

    Example: asyncsim trace scenarios/quickstart.toml --set cluster.latency=0.05

    Args:
        out: a folder to write the traces to (default: nothing is written)
    """
    from asyncsim.files import MARK, check_folder, new_folder
    from asyncsim.runs import columns, to_json, versions
    from asyncsim.scenario import load_scenarios

    _import(plugin)
    scenarios = load_scenarios(scenario, overrides)
    if out is not None:
        check_folder(out)
    with _speaking_of(scenario):
        traces = {name: one.record() for name, one in scenarios.items()}
    print(columns({name: one.summary() for name, one in traces.items()}))
    if out is not None:
        with new_folder(out) as temporary:
            for name, one in traces.items():
                one.save(temporary / f"{name}.npz")
            (temporary / MARK).write_text(to_json({"kind": "traces", "versions": versions()}), encoding="utf-8")
        print(f"\ntraces: {out}/")


Kind = Literal["algorithms", "protocols", "step-times", "problems", "data-sets", "all"]


@app.command(name="list")
def list_(
    kind: Annotated[Kind, tyro.conf.Positional] = "all",
    plugin: Plugins = (),
) -> None:
    """Name every algorithm, protocol, step-time model, problem and data set, with a line and its settings each.

    Example: asyncsim list algorithms

    Args:
        kind: what to list
    """
    import dataclasses

    from asyncsim.algorithms import Algorithm
    from asyncsim.cluster import StepTime
    from asyncsim.problems import DataSet, Problem
    from asyncsim.protocols import Protocol
    from asyncsim.records import summary_line

    _import(plugin)
    families = {
        "algorithms": Algorithm,
        "protocols": Protocol,
        "step-times": StepTime,
        "problems": Problem,
        "data-sets": DataSet,
    }
    for title, family in families.items():
        if kind in ("all", title):
            print(f"{title}:")
            for name, cls in family.members.items():
                settings = ", ".join(f.name for f in dataclasses.fields(cls)) or "nothing to set"
                print(f"  {name:<20} {summary_line(cls)}")
                print(f"  {'':<20} ({settings})")


@contextmanager
def _speaking_of(file: Path) -> Iterator[None]:
    """Mistakes that show only when a scenario runs are its file's all the same."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{file}: {error}") from None


def _import(modules: tuple[str, ...]) -> None:
    sys.path.insert(0, "")  # a module beside the scenario's user, as ``python -m`` finds it
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise InputError(f"cannot be imported: {error}", f"--plugin {module}") from None


def main(args: list[str] | None = None) -> None:
    """The entry point. Exit status 2, with one line on standard error, for a mistake in what was given."""
    args = sys.argv[1:] if args is None else args
    try:
        app.cli(prog="asyncsim", description=DESCRIPTION, args=args or ["--help"], use_underscores=False)
    except InputError as error:
        print(f"asyncsim: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except BrokenPipeError:
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        print("asyncsim: interrupted; nothing was written", file=sys.stderr)
        raise SystemExit(130) from None


DESCRIPTION = (
    "Simulate asynchronous distributed training: a model of the cluster decides when each gradient is computed and "
    "applied, real gradients decide what is learned. Start with: asyncsim run scenarios/quickstart.toml"
)
