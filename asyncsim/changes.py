"""A record or a table with some of its parts changed, each named by where it stands: ``cluster.workers[0].count``."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from asyncsim.errors import InputError, nearest, within
from asyncsim.records import Family

PATH = re.compile(r"[A-Za-z0-9_-]+(\[[0-9]{1,9}\])*(\.[A-Za-z0-9_-]+(\[[0-9]{1,9}\])*)*")


def changed(whole: Any, settings: Mapping[str, Any]) -> Any:
    """A record, or the table of one, with all these settings made at once, so that only the end has to be valid.

    A value may be a record, or what stands for one in a scenario file. A part that takes another ``name`` starts from
    that one's defaults. Raises InputError, naming the path, for what does not fit.
    """
    for path in settings:
        if not isinstance(path, str) or not PATH.fullmatch(path):
            raise InputError(f"expected a path such as algorithm.learning_rate, got {path!r}")
    steps = {tuple(path.replace("[", ".[").split(".")): value for path, value in settings.items()}
    return _changed(whole, steps, part=False)


def _changed(old: Any, settings: Mapping[tuple[str, ...], Any], part: bool = True) -> Any:
    whole = [value for path, value in settings.items() if not path]
    old = whole[0] if whole else old
    below: dict[str, dict[tuple[str, ...], Any]] = {}
    for path, value in settings.items():
        if path:
            below.setdefault(path[0], {})[path[1:]] = value
    if not below:
        return old
    if isinstance(old, tuple | list):
        return _in_list(old, below)
    # of a part, not of the whole: the name of a scenario is but its label
    named = below["name"][()] if part and () in below.get("name", ()) else None
    if old is None or isinstance(old, Mapping | str):  # a table yet to be built
        table = {"name": old} if isinstance(old, str) else dict(old or {})
        if named is not None and table.get("name", named) != named:
            table = {}
        return table | {key: within(key, _changed, table.get(key), inner) for key, inner in below.items()}
    if not dataclasses.is_dataclass(old) or isinstance(old, type):
        raise InputError(f"{old!r:.60} has no parts to set", next(iter(below)))
    if isinstance(old, Family) and named is not None:
        if named != old.name:  # another thing, from its own defaults
            return {key: within(key, _changed, None, inner) for key, inner in below.items()}
        del below["name"]
    known = [f.name for f in dataclasses.fields(old) if f.init]
    for key in below:
        if key not in known:
            raise InputError(f"unknown key; allowed: {', '.join(known)}{nearest(key, known)}", key)
    made = {key: within(key, _changed, getattr(old, key), inner) for key, inner in below.items()}
    return dataclasses.replace(old, **made)


def _in_list(old: Any, below: Mapping[str, dict[tuple[str, ...], Any]]) -> list[Any]:
    out = list(old)
    for key, inner in below.items():
        if not key.startswith("["):
            raise InputError(f"stands in a list of {len(out)}: say which item, such as [0].{key}", key)
        if int(key[1:-1]) >= len(out):
            raise InputError(f"no such item; the list has {len(out)}, from [0]", key)
        out[int(key[1:-1])] = within(key, _changed, out[int(key[1:-1])], inner)
    return out
