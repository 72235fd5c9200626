"""Where a class or function comes from, so that an edited one never meets an old result."""

from __future__ import annotations

import hashlib
import linecache
import sys
from pathlib import Path
from typing import Any

from asyncsim.errors import InputError


def source_of(thing: Any) -> str:
    """A hash of the source of the module that a class or function stands in; in a notebook, of its cells.

    Raises InputError if there is none to be found.
    """
    while hasattr(thing, "func"):
        thing = thing.func  # a functools.partial
    file = getattr(sys.modules.get(thing.__module__), "__file__", None)
    if file:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    functions = [thing] if hasattr(thing, "__code__") else vars(thing).values()
    cells = {f.__code__.co_filename for f in functions if hasattr(f, "__code__")}
    text = "".join(line for cell in sorted(cells) for line in linecache.getlines(cell))
    if not text:
        raise InputError(f"the source of {thing.__qualname__} is not to be found: define it in a module")
    return hashlib.sha256(text.encode()).hexdigest()
