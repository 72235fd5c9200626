"""Scenarios from TOML files: variants, and settings from the command line."""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from asyncsim.algorithms import Algorithm
from asyncsim.changes import PATH, changed
from asyncsim.errors import InputError, nearest
from asyncsim.records import build
from asyncsim.scenario import BAD_NAME, NAME, Scenario

MAX_BYTES = 1_000_000  # a scenario is a page of text: refuse what cannot be one before parsing it


def load_scenarios(path: str | Path, overrides: Iterable[str] = ()) -> dict[str, Scenario]:
    """The scenarios of a TOML file by name: one for each table under ``[variants]``, or the file as it is.

    A variant's tables are laid over those of the file; a table that chooses another ``name`` replaces the former one
    whole. ``overrides`` are texts ``key.key=value``: laid over every variant, or, if they begin with
    ``variants.NAME.``, over that one. Raises InputError, with the file and the key, for whatever is wrong in it.
    """
    path = Path(path)
    try:
        return scenarios_of(read_tables(path), plain(path.stem), overrides)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def scenarios_of(tables: dict[str, Any], stem: str, overrides: Iterable[str] = ()) -> dict[str, Scenario]:
    """The scenarios of a file's tables by name; without variants it is that of the file."""
    settings = dict(map(_parsed, overrides))
    of_one = {key: value for key, value in settings.items() if key.startswith("variants.")}
    of_all = {key: value for key, value in settings.items() if key not in of_one}
    for key in of_one:
        there, named = tables.get("variants", {}), key.split(".")[1]
        if named not in there:
            names = ", ".join(there) or "none"
            raise InputError(f"no variant is called {named!r}; there are: {names}{nearest(named, there)}", key)
    tables = changed(tables, of_one)
    if "sweep" in tables:
        raise InputError("makes this a sweep; run it with: asyncsim sweep", "sweep")
    variants = tables.pop("variants", {})
    if not isinstance(variants, Mapping):
        raise InputError(f"expected a table of tables, got {variants!r}", "variants")
    known = [*(f.name for f in fields(Scenario)), "variants"]
    for key in tables:
        if key not in known:
            raise InputError(f"unknown key; allowed: {', '.join(known)}{nearest(key, known)}", key)
    found = {}
    for name, changes in variants.items() or [(None, {})]:
        where = "" if name is None else f"variants.{name}"
        if not isinstance(changes, Mapping):
            raise InputError(f"expected a table, got {changes!r}", where)
        if name is not None and not NAME.fullmatch(name):
            raise InputError(BAD_NAME, where)
        laid = laid_over({"name": stem, **tables}, {**changes, **({} if name is None else {"name": name})})
        try:
            laid = changed(laid, of_all)
            _check_protocol(laid)
            scenario = build(Scenario, laid)
        except InputError as error:
            inside = error.path.split(".")[0].split("[")[0]
            # what does not stand in the variant is named as it stands in the file, or should
            there = inside in changes or (inside == "protocol" and inside not in tables)
            raise (error.within(where) if there else error) from None
        found[scenario.name] = scenario
    return found


def plain(text: str) -> str:
    """The text as a name: what is not allowed in one becomes -."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", text).lstrip("-_")[:80] or "scenario"


def read_tables(path: Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    try:
        if path.exists() and not path.is_file():
            raise InputError("is no file")
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"is larger than {MAX_BYTES} bytes; that is no scenario")
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except InputError:
        raise
    except FileNotFoundError:
        near = sorted(p.name for p in path.parent.glob("*.toml")) if path.parent.is_dir() else []
        raise InputError("no such file" + (f"; in that folder: {', '.join(near[:10])}" if near else "")) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not valid TOML: {error}") from None


def laid_over(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Tables with others laid over them; one that chooses another ``name`` takes the former one's place."""
    out = copy.deepcopy(dict(base))
    for key, value in changes.items():
        old = out.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        if both and value.get("name", old.get("name")) == old.get("name"):  # type: ignore[union-attr]
            out[key] = laid_over(old, value)  # type: ignore[arg-type]
        else:
            out[key] = value
    return out


def _check_protocol(tables: Mapping[str, Any]) -> None:
    """Raise InputError if settings of a protocol do not say of which."""
    protocol, chosen = tables.get("protocol"), tables.get("algorithm")
    name = str(chosen.get("name") if isinstance(chosen, Mapping) else chosen)
    brings = getattr(Algorithm.members.get(name), "protocol", None)
    if isinstance(protocol, Mapping) and "name" not in protocol and brings is not None:
        raise InputError(f"is missing; that of {name} is normally {brings!r}", "protocol.name")


def _parsed(text: str) -> tuple[str, Any]:
    """``cluster.workers[0].count=4`` as key and value. The value is read as TOML, or else taken as a text."""
    key, equals, value = text.partition("=")
    if not equals or not PATH.fullmatch(key.strip()):
        raise InputError(f"expected KEY=VALUE, such as algorithm.momentum=0.9, got {text!r}", "--set")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except (ValueError, KeyError, RecursionError):
        return key.strip(), value.strip()
