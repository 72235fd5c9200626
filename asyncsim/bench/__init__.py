"""How fast asyncsim is on this machine, each figure over what bounds it, both measured in turn in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from asyncsim.bench.recordings import recording
from asyncsim.bench.replays import models, peers, servers
from asyncsim.bench.starting import starting
from asyncsim.bench.timing import Figures
from asyncsim.errors import InputError, nearest

GROUPS: dict[str, Callable[[float], Figures]] = {
    "replay": servers,
    "models": models,
    "peers": peers,
    "recording": recording,
    "starting": starting,
}


def figures(groups: Iterable[str] = (), quick: bool = False) -> Figures:
    """Name and value of each figure, as it is measured. Raises InputError if there is no such group."""
    for name in groups:
        if name not in GROUPS:
            raise InputError(f"no group {name!r}; there are: {', '.join(GROUPS)}{nearest(name, GROUPS)}", "group")
    for name in groups or GROUPS:
        yield from GROUPS[name](0.125 if quick else 1.0)
