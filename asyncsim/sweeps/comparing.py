"""Runs of a sweep compared: the best settings by a figure, and differences between settings pair by pair."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from asyncsim.errors import InputError, expect, nearest
from asyncsim.tables import Table, tidy

HIGHER = {"accuracy", "throughput", "compute_share"}  # of the figures, those of which more is better
LOWER = {"loss", "seconds", "time_to_target", "wait_share", "gap", "staleness_mean", "staleness_max", "spread"}


def best(table: Table, varied: list[str], by: str, per: str | Iterable[str], over: str, highest: bool | None) -> Table:
    """What ``Sweep.best`` says."""
    per = [per] if isinstance(per, str) else list(per)
    _check_columns(table, varied, by, *per)
    if highest is None:
        if by not in HIGHER | LOWER:
            raise InputError(f"say whether more of {by} is better: highest=True or highest=False")
        highest = by in HIGHER
    settings = [*per, *(name for name in varied if name not in per and name != over)]
    candidates: dict[tuple[Any, ...], list[float]] = {}
    for row in table.rows():
        value = float(row[by]) if row["status"] == "done" else math.nan
        key = tuple(_one(row[name]) for name in settings)
        candidates.setdefault(key, []).append(value)
    chosen: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for key, values in candidates.items():
        mean = float(np.mean(values))
        former = chosen.setdefault(key[: len(per)], ((), math.nan, []))  # nobody yet, which is an answer as well
        better = mean > former[1] if highest else mean < former[1]
        if better or (math.isnan(former[1]) and not math.isnan(mean)):
            chosen[key[: len(per)]] = (key, mean, values)
    return tidy(
        {
            **dict(zip(settings, key or group, strict=False)),
            by: mean,
            f"{by}_std": float(np.std(values, ddof=1)) if len(values) > 1 else math.nan,
            "runs": len(values),
        }
        for group, (key, mean, values) in chosen.items()
    )


def paired(
    table: Table, varied: list[str], by: str, per: str | Iterable[str], to: Mapping[str, Any], over: str
) -> Table:
    """What ``Sweep.paired`` says."""
    per = [per] if isinstance(per, str) else list(per)
    _check_columns(table, varied, by, *per, over)
    if over in per or by in per:
        raise InputError(f"has {over if over in per else by} among the columns that make the groups", "per")
    expect(to, Mapping, "to")
    to = {name: value.item() if isinstance(value, np.generic) else value for name, value in to.items()}
    if not to:
        raise InputError("names nothing to compare with", "to")
    for name, value in to.items():
        if name not in per:
            raise InputError(f"{name} is not among the columns that make the groups: {', '.join(per)}", "to")
        there = dict.fromkeys(_one(v) for v in table[name].tolist())
        if not isinstance(value, str | int | float | None) or _one(value) not in there:
            known = [str(v) for v in there]
            what = f"no run has {name} = {value!r}{nearest(value, known)}; there are: {', '.join(known)}"
            raise InputError(what, "to")
    groups: dict[tuple[Any, ...], dict[Any, dict[str, Any]]] = {}
    for row in table.rows():
        row = {name: _one(value) for name, value in row.items()}
        group = groups.setdefault(tuple(row[name] for name in per), {})
        if row[over] in group:
            also = ", ".join(k for k in varied if k not in (*per, over) and row[k] != group[row[over]][k])
            raise InputError(f"two runs of {over} {row[over]} are in one group; they differ in {also}", "per")
        group[row[over]] = row

    def figures(group: dict[Any, dict[str, Any]]) -> dict[Any, float]:
        """Of each run that has one."""
        found = {k: row[by] for k, row in group.items() if row["status"] == "done"}
        return {k: float(v) for k, v in found.items() if v is not None and math.isfinite(v)}

    out = []
    for key, group in groups.items():
        mine = figures(group)
        where = tuple(_one(to.get(k, v)) for k, v in zip(per, key, strict=True))
        other = figures(groups.get(where, {}))
        apart = [v - other[k] for k, v in mine.items() if k in other]
        out.append(
            {
                **dict(zip(per, key, strict=True)),
                **dict(zip((by, f"{by}_error"), _mean_and_error(list(mine.values())), strict=True)),
                **dict(zip(("difference", "difference_error"), _mean_and_error(apart), strict=True)),
                "pairs": len(apart),
                "diverged": sum(row.get("ended") == "diverged" for row in group.values()),
            }
        )
    return tidy(out)


def _check_columns(table: Table, varied: list[str], by: str, *others: str) -> None:
    """Raise InputError unless all are columns, and ``by`` one of numbers."""
    for name in (by, *others):
        if name not in table:
            figures = [k for k in table.columns if k in HIGHER | LOWER] or ["none, as no run is done"]
            known = f"varied: {', '.join(varied)}; figures: {', '.join(figures)}"
            raise InputError(f"no column {name!r}{nearest(name, table.columns)}; {known}; all: table.columns")
    if table[by].dtype.kind not in "if":
        raise InputError(f"holds no numbers: {by}")


def _one(value: Any) -> Any:
    """The value, where nan is one value (no two of them are equal): None."""
    return None if value != value else value


def _mean_and_error(values: list[float]) -> tuple[float, float]:
    """Mean, and standard error of the mean; nan where there are too few for it."""
    mean = float(np.mean(values)) if values else math.nan
    return mean, float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan
