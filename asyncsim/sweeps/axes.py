"""What a sweep varies: every combination of some axes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from asyncsim.changes import changed
from asyncsim.errors import InputError, nearest
from asyncsim.reports import TITLES
from asyncsim.scenario import BAD_NAME, NAME, Scenario
from asyncsim.scenario_files import laid_over, plain, read_tables, scenarios_of

MAX_ROWS = 100_000
TAKEN = {"run", "status", "failure", *TITLES, *(f.name for f in fields(Scenario))}  # columns of a sweep's table
Settings = Mapping[str, Any]  # a value by its path


class Row(NamedTuple):
    """One combination: what names it in the axes that have names, and the scenario."""

    labels: dict[str, str]
    scenario: Scenario


def rows(scenarios: Mapping[str, Scenario], over: Mapping[Any, Any]) -> list[Row]:
    """Every combination of the named scenarios (an axis ``variant``, if there are several) and the axes of ``over``.

    Raises InputError, naming the axis and the place in it, where a combination makes no scenario.
    """
    axes = [_axis(key, values) for key, values in over.items()]
    paths = [path for axis in axes for path in sorted({p for _, _, settings in axis for p in settings})]
    for path in paths:
        if paths.count(path) > 1:
            raise InputError("is varied twice", path)
    size = len(scenarios)
    for axis in axes:
        size *= len(axis)
    if size > MAX_ROWS:
        raise InputError(f"makes {size} combinations; {MAX_ROWS} is the limit")
    out = []
    for variant, scenario in scenarios.items():
        for places in itertools.product(*axes):
            labels = {"variant": variant} if len(scenarios) > 1 else {}
            settings: dict[str, Any] = {}
            for _, named, more in places:
                labels |= named
                settings |= more
            try:
                out.append(Row(labels, changed(scenario, settings)))
            except InputError as error:
                where = ", ".join([*([variant] if len(scenarios) > 1 else []), *(where for where, _, _ in places)])
                raise InputError(f"{error} (in the run with {where})" if where else str(error)) from None
    return out


def _axis(key: Any, values: Any) -> list[tuple[str, dict[str, str], Settings]]:
    """The places of one axis: in words, its label if it has one, and what is set there."""
    if isinstance(values, Mapping):
        if not isinstance(key, str) or not NAME.fullmatch(key):
            raise InputError(f"names an axis: {BAD_NAME}", str(key))
        if key in TAKEN:
            raise InputError("names an axis, but is the name of another column", key)
        for name, settings in values.items():
            if not isinstance(settings, Mapping):
                raise InputError(f"expected a table of settings, got {settings!r:.60}", f"{key}.{name}")
        places = [(f"{key} {name}", {key: str(name)}, settings) for name, settings in values.items()]
    elif isinstance(key, tuple):
        if not key or len(set(key)) < len(key) or not all(isinstance(path, str) for path in key):
            raise InputError(f"expected different paths, got {key!r:.60}", "over")
        places = [
            (f"{', '.join(key)} = {value!r:.60}", {}, dict(zip(key, value, strict=True))) for value in _zip(key, values)
        ]
    else:
        places = [(f"{key} = {value!r:.60}", {}, {key: value}) for value in _list(values, str(key))]
    if not places:
        raise InputError("has no values", str(key))
    return places


def _zip(keys: tuple[str, ...], values: Any) -> Iterator[tuple[Any, ...]]:
    for k, value in enumerate(_list(values, ", ".join(keys))):
        if not isinstance(value, list | tuple) or len(value) != len(keys):
            what = f"expected {len(keys)} values, one for each of {', '.join(keys)}; got {value!r:.60}"
            raise InputError(what, f"[{k}]")
        yield tuple(value)


def _list(values: Any, where: str) -> list[Any]:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InputError(f"expected a list of values, got {values!r:.60}", where)
    return list(values)


def load(path: Path, overrides: Iterable[str] = ()) -> tuple[dict[str, Scenario], dict[Any, Any]]:
    """The scenarios of a sweep file, and its axes as ``rows`` takes them.

    A sweep file is a scenario file with a table ``[sweep]``: ``base`` (another scenario file, which this one is laid
    over), ``grid`` (lists of values, by path: all combinations), ``zip`` (tables of lists of equal length, by path: the
    first values of all together, then the second, ...) and ``seeds`` (how many, or a list).
    """
    try:
        tables = read_tables(path)
        sweep = tables.pop("sweep", {})
        allowed = ("base", "grid", "zip", "seeds")
        if not isinstance(sweep, Mapping):
            raise InputError(f"expected a table, got {sweep!r:.60}", "sweep")
        for key in sweep:
            if key not in allowed:
                hint = nearest(key, allowed)
                raise InputError(f"unknown key; allowed: {', '.join(allowed)}{hint}", f"sweep.{key}")
        if "base" in sweep:
            tables = laid_over(_base(path, sweep["base"]), tables)
        return scenarios_of(tables, plain(path.stem), overrides), _over(sweep)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _base(path: Path, name: Any) -> dict[str, Any]:
    if not isinstance(name, str):
        raise InputError(f"expected the name of a scenario file, got {name!r:.60}", "sweep.base")
    base = path.parent / name
    try:
        tables = read_tables(base)
        tables.pop("sweep", None)
        return tables
    except InputError as error:
        raise InputError(f"{base}: {error}", "sweep.base") from None


def _over(sweep: Mapping[str, Any]) -> dict[Any, Any]:
    over: dict[Any, Any] = {}

    def add(key: Any, values: list[Any], where: str) -> None:
        there = {path for former in over for path in (former if isinstance(former, tuple) else (former,))}
        for path in key if isinstance(key, tuple) else (key,):
            if path in there:
                raise InputError(f"{path} is varied twice", where)
        over[key] = values

    grid, zips, seeds = sweep.get("grid", {}), sweep.get("zip", []), sweep.get("seeds")
    if not isinstance(grid, Mapping):
        raise InputError(f"expected a table of lists, got {grid!r:.60}", "sweep.grid")
    for key, values in _flat(grid):
        add(key, _list(values, f"sweep.grid.{key}"), "sweep.grid")
    zips = [zips] if isinstance(zips, Mapping) else zips
    if not isinstance(zips, list):
        raise InputError(f"expected tables of lists, got {zips!r:.60}", "sweep.zip")
    for k, table in enumerate(zips):
        where = f"sweep.zip[{k}]"
        if not isinstance(table, Mapping) or not table:
            raise InputError(f"expected a table of lists, got {table!r:.60}", where)
        columns = {key: _list(values, f"{where}.{key}") for key, values in _flat(table)}
        lengths = {key: len(values) for key, values in columns.items()}
        if len(set(lengths.values())) > 1:
            raise InputError(f"its lists have different lengths: {lengths}", where)
        add(tuple(columns), list(zip(*columns.values(), strict=True)), where)
    if isinstance(seeds, int) and not isinstance(seeds, bool):
        if not 1 <= seeds <= MAX_ROWS:
            raise InputError(
                f"expected a number of seeds from 1 to {MAX_ROWS}, or a list of seeds, got {seeds}", "sweep.seeds"
            )
        seeds = list(range(seeds))
    if seeds is not None:
        add("seed", _list(seeds, "sweep.seeds"), "sweep.seeds")
    return over


def _flat(table: Mapping[str, Any], head: str = "") -> Iterator[tuple[str, Any]]:
    """``algorithm.learning_rate = [...]`` is a path with or without quotes: without, TOML makes tables of it."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{head}{key}.")
        else:
            yield f"{head}{key}", value
