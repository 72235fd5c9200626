"""What there is to choose from, described from the classes themselves."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

from asyncsim import __all__ as public
from asyncsim.algorithms import Algorithm
from asyncsim.cluster import Buckets, Cluster, Delay, Host, Servers, StepTime, Topology, Workers
from asyncsim.data import DataSet, Partition, Sampling
from asyncsim.errors import a
from asyncsim.problems import Problem
from asyncsim.protocols import Protocol
from asyncsim.recording import Stop
from asyncsim.records import Family, settings, summary_line
from asyncsim.replaying import Every, Target
from asyncsim.scenario import Scenario
from asyncsim.schedules import Schedule

FAMILIES: dict[str, type[Family]] = {
    "algorithms": Algorithm,
    "protocols": Protocol,
    "step-times": StepTime,
    "delays": Delay,
    "hosts": Host,
    "topologies": Topology,
    "buckets": Buckets,
    "problems": Problem,
    "data-sets": DataSet,
    "partitions": Partition,
}


def describe(cls: Any, full: bool = False) -> str:
    """One line about a member of a family; in full, its docstring, those of the rules it is made of, every setting."""
    if not full:
        # a method without a protocol of its own replays on traces written by hand
        alone = issubclass(cls, Algorithm) and getattr(cls, "protocol", None) is None
        return summary_line(cls) + (" (on traces by hand)" if alone else "")
    python = cls.__name__ if cls.__name__ in public else f"{cls.__module__}.{cls.__name__}"
    kind = f" for traces of kind {cls.kind}" if hasattr(cls, "kind") else ""
    normal = f", normally on the protocol {cls.protocol}" if getattr(cls, "protocol", None) else ""
    if issubclass(cls, Protocol):
        on_it = [name for name, one in Algorithm.members.items() if getattr(one, "protocol", None) == cls.name]
        normal = f", normally with {' or '.join(on_it)}" if on_it else ""
    made_of = [base for base in cls.__mro__[1:] if dataclasses.is_dataclass(base) and base.__doc__]
    parts = [
        f"{cls.name}: {a(cls.family)}{kind}{normal}; in Python {python}",
        inspect.cleandoc(cls.__doc__ or ""),
        "Made of what follows; where they differ, what is said above holds." if made_of else "",
        *(f"{getattr(base, '__name__', base)}: {inspect.cleandoc(base.__doc__ or '')}" for base in made_of),
        "\n".join(f"  {line}" for line in settings(cls)),
    ]
    return "\n\n".join(part for part in parts if part)


TABLES = {  # of a scenario file
    "scenario": ("A scenario file (TOML)", Scenario),
    "cluster": ("[cluster]", Cluster),
    "workers": ("[[cluster.workers]]", Workers),
    "servers": ("[cluster.servers]", Servers),
    "stop": ("[stop]", Stop),
    "sampling": ("[sampling]", Sampling),
    "evaluate": ("[evaluate]", Every),
    "target": ("[target]", Target),
    "schedule": ("[schedule]", Schedule),
}


def describe_table(name: str) -> str:
    """Every key of a table of a scenario file, with what it expects and its default; of the whole, of all tables."""
    chosen = [TABLES[name]] if name != "scenario" else list(TABLES.values())
    parts = []
    for title, cls in chosen:
        doc = inspect.cleandoc(cls.__doc__ or "")
        parts.append("\n".join([title, *(f"  {line}" for line in settings(cls)), "", *doc.splitlines()]))
    if name == "scenario":
        parts.append("Tables [variants.NAME] are laid over the file: one run each, side by side.")
    return "\n\n".join(parts)
