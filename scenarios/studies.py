"""What the studies here have in common: their arguments, and a folder of results that says how it was made."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tqdm import tqdm

import asyncsim
from asyncsim.files import check_folder, mark, new_folder, write_atomically
from asyncsim.interruption import Stopped, insisting, signals_held, status
from asyncsim.reports import in_columns
from asyncsim.runs import versions
from asyncsim.sources import fingerprint_of
from asyncsim.sweeps.executing import Here, Processes, finished

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{Path(self.prog).stem}: {message}\n")


def _processes(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number >= 0, got {text!r}")
    return int(text)


def arguments(doc: str | None, more: Mapping[str, Mapping[str, Any]]) -> argparse.Namespace:
    """--quick, --out, --processes and ``more``; the ``study`` (its script) and the ``name`` of this form, to which what
    was given of ``more`` is added. The script's docstring is the help."""
    parser = _Parser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small form, in less than a minute: to see that it runs")
    parser.add_argument("--out", metavar="FOLDER", help="where results go (default: runs/ and the script's name)")
    parser.add_argument(
        "--processes", type=_processes, metavar="N", help="how many at once (default: one for each core)"
    )
    names = [parser.add_argument(flag, **settings).dest for flag, settings in more.items()]
    given = parser.parse_args()
    form = []
    for name in names:
        value = name if getattr(given, name) is True else getattr(given, name)
        if value != parser.get_default(name):
            form.append("-".join(map(str, value)) if isinstance(value, list) else str(value))
    given.study = Path(sys.argv[0]).stem
    given.name = "-".join([given.study, *form, *(["quick"] if given.quick else [])])
    given.out = Path(given.out or f"runs/{given.name}")
    return given


def sweep(
    given: argparse.Namespace, part: str, scenario: asyncsim.Scenario, over: Mapping[Any, Any], **more: Any
) -> asyncsim.Sweep:
    """The runs of one part of a study, kept in ``runs/``: interrupted, the same command goes on from there."""
    more |= {"folder": f"runs/{given.name}-{part}", "processes": given.processes, "progress": sys.stderr.isatty()}
    found = asyncsim.sweep(scenario, over, **more)
    if found.failures():
        name, error = next(iter(found.failures().items()))
        sys.exit(f"{given.name}: {len(found.failures())} runs failed, the first, {name}: {error}")
    return found


def spread_out(
    given: argparse.Namespace, part: str, work: Callable[[Any], float], jobs: Mapping[str, Any]
) -> list[float]:
    """``work`` of each job, on several processes; a figure is kept in ``runs/`` under its job's name, which must stand
    for all that decides it but ``work`` (``asyncsim.naming.name_of``): interrupted, the same command goes on from
    there, and all forms of a study share them. ``work`` is a function of a module, not of the script."""
    kept = Path(f"runs/{given.study}-{part}")
    kept.mkdir(parents=True, exist_ok=True)
    source = fingerprint_of(work)
    found = {name: value for name in jobs if (value := _kept(kept / f"{name}-{source[:12]}.json")) is not None}
    left = [name for name in jobs if name not in found]
    count = os.cpu_count() or 1 if given.processes is None else given.processes
    pool = Processes(count, ()) if count else Here()
    with signals_held() as let_through, tqdm(total=len(jobs), initial=len(found), disable=None) as bar:
        try:
            flying: dict[Future[float], str] = {}
            while left or flying:
                while left and len(flying) < max(count, 1):
                    name = left.pop(0)
                    flying[pool.submit(work, jobs[name])] = name
                for future in finished(flying, let_through):
                    name = flying.pop(future)
                    found[name] = future.result()
                    write_atomically(kept / f"{name}-{source[:12]}.json", json.dumps(found[name]).encode())
                    bar.update()
        finally:
            pool.shutdown()
    return [found[name] for name in jobs]


def _kept(path: Path) -> float | None:
    """A figure that was found before; None: it was not, or is damaged."""
    try:
        return float(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def run(
    doc: str | None,
    study: Callable[[argparse.Namespace], Mapping[str, Any]],
    more: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Do a study, write what it returns by file name (texts, tables, figures), and print ``table.txt``. ``more``:
    arguments of its own, as argparse has them, by flag."""
    given = arguments(doc, more or {})
    kind = f"study {given.name}"  # of one study, in one form: no other takes its place
    try:
        check_folder(given.out, kind)
        with insisting():
            files = study(given)
            with new_folder(given.out, kind) as folder:
                for name, content in files.items():
                    if isinstance(content, str | asyncsim.Table):
                        text = content if isinstance(content, str) else content.to_csv()
                        (folder / name).write_text(text, encoding="utf-8")
                    else:
                        content.savefig(folder / name, dpi=120, metadata={"Software": None})
                mark(folder, kind, versions=versions())
    except asyncsim.InputError as error:
        print(f"{given.name}: {error}", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, Stopped) as stop:
        print(f"{given.name}: interrupted; the same command goes on from there", file=sys.stderr)
        sys.exit(status(stop))
    print(files["table.txt"], end="")
    print(f"\nresults: {given.out}")


def grid(title: str, columns: Mapping[Any, str], rows: Mapping[Any, str], cells: Mapping[Any, str]) -> str:
    """A text table: ``columns`` and ``rows`` say what each key is called, ``cells[row, column]`` what stands there."""
    lines = [["", *columns.values()], *([name, *(cells.get((r, c), "") for c in columns)] for r, name in rows.items())]
    return f"{title}\n{in_columns(lines)}\n"


def figure(panels: int, height: float = 3.8) -> tuple[Any, list[Axes]]:
    """A figure of panels side by side."""
    from matplotlib.figure import Figure

    made = Figure(figsize=(5 * panels, height), layout="constrained")
    axes = list(made.subplots(1, panels, squeeze=False)[0])
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(alpha=0.25)
    return made, axes


def look(k: int) -> dict[str, Any]:
    """Colour, line and marker of the k-th line: no two of eleven are alike, in colour or in print."""
    from asyncsim.plots import COLOURS, STYLES

    markers = "osD^v<>Pp*X"
    colour, style = COLOURS[k % len(COLOURS)], STYLES[(2 * (k // len(COLOURS)) + k) % len(STYLES)]
    return {"color": colour, "linestyle": style, "marker": markers[k % len(markers)], "markersize": 5}
