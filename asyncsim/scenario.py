"""A whole simulation as one frozen record, to and from TOML."""

from __future__ import annotations

import copy
import hashlib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from asyncsim.algorithms import Algorithm
from asyncsim.cluster import Cluster
from asyncsim.errors import InputError, nearest
from asyncsim.problems import Problem, Sampling
from asyncsim.protocols import Protocol
from asyncsim.recording import Stop, record
from asyncsim.records import build, checked, table
from asyncsim.replaying import Every, Target, replay
from asyncsim.runs import Run
from asyncsim.schedules import Schedule
from asyncsim.trace import Trace
from asyncsim.workload import BatchSize

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,79}")  # it becomes the name of a folder
KEY = re.compile(r"[A-Za-z0-9_-]+(\[[0-9]+\])*(\.[A-Za-z0-9_-]+(\[[0-9]+\])*)*")  # algorithm.momentum, workers[0].count
BAD_NAME = "a name has at most 80 plain letters, digits, _ and -, a letter or digit first"
MAX_BYTES = 1_000_000  # a scenario is a page of text: refuse what cannot be one before parsing it


@checked
class Scenario:
    """One simulation: a cluster, who waits for whom, what is learned and how, and when it ends.

    ``protocol`` may be left out: then it is the one that the algorithm normally runs on; ``evaluate`` too: then there
    are about 50 evaluations. A table that has nothing but a name may be written as that name. The other fields are the
    arguments of ``asyncsim.record`` and ``asyncsim.replay`` of the same names (``evaluate`` is ``every`` there).
    ``name`` labels the run, and is the name of its folder: letters, digits, _ and -.
    """

    cluster: Cluster
    algorithm: Algorithm
    problem: Problem
    stop: Stop
    protocol: Protocol | None = None
    name: str = "scenario"
    seed: Annotated[int, Meta(ge=0, lt=2**31)] = 0
    batch_size: BatchSize = 32
    sampling: Sampling = Sampling()
    statistics: Literal["mean", "first", "shared"] = "mean"
    schedule: Schedule = Schedule()
    evaluate: Every | None = None
    target: Target | None = None
    measures: bool = True
    engine: Literal["scan", "rows"] = "scan"
    precision: Literal["float32", "float64"] = "float32"

    def validate(self) -> None:
        if not NAME.fullmatch(self.name):
            raise InputError(f"{BAD_NAME}, got {self.name!r}", "name")
        protocol, kind = self.runs_on, self.algorithm.kind
        if protocol.kind != kind:
            raise InputError(
                f"{protocol.name} is for a method of kind {protocol.kind}, {self.algorithm.name} is of kind {kind}; "
                f"such protocols: {self._fitting() or 'none yet'}",
                "protocol.name",
            )
        try:
            protocol.check(self.cluster.num_workers)
        except InputError as error:
            raise error.within("protocol") from None

    @property
    def runs_on(self) -> Protocol:
        """The protocol: the one chosen, or else the algorithm's normal one."""
        if self.protocol is not None:
            return self.protocol
        normal = getattr(self.algorithm, "protocol", None)
        if normal is None:
            fitting = self._fitting()
            there = f"such protocols: {fitting}" if fitting else "there is none for it yet: see asyncsim.replay"
            what = f"is missing, and {self.algorithm.name} names none that it normally runs on; {there}"
            raise InputError(what, "protocol")
        return build(Protocol, normal)  # type: ignore[type-abstract]

    def _fitting(self) -> str:
        members = Protocol.members.items()
        return ", ".join(k for k, p in members if p.kind == self.algorithm.kind)  # type: ignore[attr-defined]

    def resolved(self) -> Scenario:
        """The same with the protocol filled in."""
        return replace(self, protocol=self.runs_on)

    def record(self) -> Trace:
        """The timing alone."""
        workload = self.problem.workload(self.batch_size)
        return record(self.cluster, self.runs_on, workload, type(self.algorithm).costs, stop=self.stop, seed=self.seed)

    def to_table(self) -> dict[str, Any]:
        """The resolved scenario as plain tables, as a TOML file has them."""
        return table(self)


def digest(scenarios: Mapping[str, Scenario]) -> str:
    """Eight characters that stand for some resolved scenarios: equal scenarios, equal digests."""
    text = json.dumps({name: one.to_table() for name, one in scenarios.items()}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def run(scenario: Scenario, *, trace: Trace | None = None, progress: bool = False) -> Run:
    """Simulate a scenario: record its timing (unless a trace is given), then learn along it."""
    trace = scenario.record() if trace is None else trace
    done = replay(
        trace,
        scenario.algorithm,
        scenario.problem,
        seed=scenario.seed,
        sampling=scenario.sampling,
        statistics=scenario.statistics,
        schedule=scenario.schedule,
        every=scenario.evaluate,
        target=scenario.target,
        measures=scenario.measures,
        engine=scenario.engine,
        precision=scenario.precision,
        progress=progress,
        label=scenario.name,
    )
    try:
        resolved = scenario.to_table()
    except InputError:
        resolved = None  # the user's own objects have no place in a file
    return replace(done, scenario=resolved)


def load_scenarios(path: str | Path, overrides: Iterable[str] = ()) -> dict[str, Scenario]:
    """The scenarios of a TOML file by name: one for each table under ``[variants]``, or the file as it is.

    A variant's tables are laid over those of the file; a table that chooses another ``name`` replaces the former one
    whole. ``overrides`` are texts ``key.key=value``: laid over every variant, or, if they begin with
    ``variants.NAME.``, over that one. Raises InputError, with the file and the key, for whatever is wrong in it.
    """
    path = Path(path)
    try:
        tables = _read(path)
        # names first: another method starts from its own defaults, which other settings then change
        settings = sorted(map(_parsed, overrides), key=lambda setting: not setting[0].endswith(".name"))
        for key, value in settings:
            if key.startswith("variants."):
                there, named = tables.get("variants", {}), key.split(".")[1]
                if named not in there:
                    names = ", ".join(there) or "none"
                    raise InputError(f"no variant is called {named!r}; there are: {names}{nearest(named, there)}", key)
                _set(tables, key, value)
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
            laid = _laid_over(
                {"name": plain(path.stem), **tables}, {**changes, **({} if name is None else {"name": name})}
            )
            try:
                for key, value in settings:
                    if not key.startswith("variants."):
                        _set(laid, key, value)
                scenario = build(Scenario, laid)
            except InputError as error:
                inside = error.path.split(".")[0].split("[")[0]
                # what does not stand in the variant is named as it stands in the file, or should
                there = inside in changes or (inside == "protocol" and inside not in tables)
                raise (error.within(where) if there else error) from None
            found[scenario.name] = scenario
        return found
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def plain(text: str) -> str:
    """The text as a name: what is not allowed in one becomes -."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", text).lstrip("-_")[:80] or "scenario"


def _read(path: Path) -> dict[str, Any]:
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


def _laid_over(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    out = copy.deepcopy(dict(base))
    for key, value in changes.items():
        old = out.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        if both and value.get("name", old.get("name")) == old.get("name"):  # type: ignore[union-attr]
            out[key] = _laid_over(old, value)  # type: ignore[arg-type]
        else:
            out[key] = value
    return out


def _parsed(text: str) -> tuple[str, Any]:
    """``cluster.workers[0].count=4`` as key and value. The value is read as TOML, or else taken as a text."""
    key, equals, value = text.partition("=")
    if not equals or not KEY.fullmatch(key.strip()):
        raise InputError(f"expected KEY=VALUE, such as algorithm.momentum=0.9, got {text!r}", "--set")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except (ValueError, KeyError, RecursionError):
        return key.strip(), value.strip()


def _set(tables: dict[str, Any], key: str, value: Any) -> None:
    """Set one value in nested tables and lists."""
    place: Any = tables
    *folders, last = key.replace("[", ".[").split(".")
    for folder in folders:
        place = _step(place, folder, key)
    if last.startswith("["):
        _step(place, last, key)
        place[int(last[1:-1])] = value
    elif isinstance(place, dict):
        # another method starts from its own defaults, not from the former one's settings
        if last == "name" and place.get("name", value) != value and folders:
            place.clear()
        place[last] = value
    else:
        raise InputError(f"there is no table to set {last!r} in", key)


def _step(place: Any, folder: str, key: str) -> Any:
    if folder.startswith("["):
        if not isinstance(place, list) or not folder[1:-1].isdigit() or int(folder[1:-1]) >= len(place):
            size = len(place) if isinstance(place, list) else 0
            raise InputError(f"there is no item {folder}; the list has {size}", key)
        return place[int(folder[1:-1])]
    if not isinstance(place, dict):
        raise InputError(f"there is no table that holds {folder!r}", key)
    return place.setdefault(folder, {})
