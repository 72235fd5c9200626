"""What a run is called: a hash of everything that decides its result.

Equal names mean equal results; an edited method, model or protocol never meets the results of its former self.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from asyncsim.errors import InputError
from asyncsim.records import table
from asyncsim.scenario import Scenario
from asyncsim.sources import fingerprint_of

# what arranges or shows results, and changes none
APART = {
    *("bench", "changes.py", "cli.py", "compilation.py", "interruption.py", "listing.py", "naming.py", "plots.py"),
    *("plugins.py", "reports.py", "scenario_files.py", "sources.py", "sweeps", "testing.py"),
}
PACKAGE = Path(__file__).parent


def run_name(scenario: Scenario) -> str:
    """What a scenario's run is called, whatever its label."""
    return name_of([dataclasses.replace(scenario, name="run")])


def trace_name(scenario: Scenario) -> str:
    """What a scenario's trace is called: scenarios with equal timing inputs share it."""
    s, workload = scenario, scenario.workload
    if s.runs_on.steered:  # by all that is learned
        return run_name(scenario)
    # the arithmetic of a sample counts only where the step times have it in them
    cluster, sizes = s.cluster.for_workload(workload), dataclasses.replace(workload, sample_flops=None)
    return name_of([cluster, s.runs_on, sizes, s.costs, s.stop, s.seed])


def name_of(parts: Iterable[Any], length: int = 12) -> str:
    """Some characters that stand for parts of scenarios, and for the sources that compute them.

    Those are the package's own, and what ``fingerprint_of`` sees of classes from elsewhere. Raises InputError for a
    part that is neither a record of plain values nor has a method ``fingerprint()``.
    """
    parts = list(parts)
    classes = {type(record) for part in parts for record in parts_of(part)}
    sources = sorted(fingerprint_of(cls) for cls in classes if not cls.__module__.startswith(f"{__package__}."))
    return digest([_package(), sources, identity(parts)], length)


def digest(value: Any, length: int = 12) -> str:
    """The first characters of a hash of plain values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:length]


def identity(value: Any) -> Any:
    """A record as plain values that are equal only for equal records; a user's object as its own ``fingerprint()``."""
    if hasattr(value, "fingerprint"):
        return {"fingerprint": value.fingerprint()}
    if dataclasses.is_dataclass(value):
        value = value.resolved() if hasattr(value, "resolved") else value
        head = {"": f"{type(value).__module__}.{type(value).__qualname__}"}
        return head | {f.name: identity(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): identity(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [identity(v) for v in value]
    if value is None:
        return None
    try:
        return table(value)
    except InputError:
        what = f"{value!r:.60} is no record of plain values: give it a method fingerprint() that returns a text"
        raise InputError(f"{what}, equal only for what computes equally") from None


@functools.cache
def _package() -> str:
    """The package's own sources that take part in a result."""
    found = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*")):
        inside = path.relative_to(PACKAGE)
        if path.is_file() and inside.parts[0] not in APART and path.suffix in (".py", ".npz"):
            found.update(f"{inside.as_posix()}\n".encode() + path.read_bytes())
    return found.hexdigest()


def parts_of(value: Any) -> Iterator[Any]:
    """All records in a record, itself among them."""
    if dataclasses.is_dataclass(value):
        yield value
        for f in dataclasses.fields(value):
            yield from parts_of(getattr(value, f.name))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from parts_of(item)
