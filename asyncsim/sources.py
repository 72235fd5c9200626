"""What code computes and with what, as a hash: an edited function or class never meets an old result."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import linecache
import pickle
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from asyncsim.errors import InputError


def source_of(thing: Any) -> str:
    """A hash of the source of the module that a class or function stands in; in a notebook, of its cells.

    What the module's functions are at this moment takes part: a file that was edited after it was imported, or a method
    that was replaced, is another source. Raises InputError if there is none to be found.
    """
    module = sys.modules.get(thing.__module__)
    file = getattr(module, "__file__", None)
    if file:
        found = hashlib.sha256(Path(file).read_bytes())
        for part in _told(sorted(_code(vars(module), thing.__module__)), set()):
            found.update(part)
        return found.hexdigest()
    functions = [thing] if hasattr(thing, "__code__") else vars(thing).values()
    cells = {f.__code__.co_filename for f in functions if hasattr(f, "__code__")}
    text = "".join(line for cell in sorted(cells) for line in linecache.getlines(cell))
    if not text:
        raise InputError(f"the source of {thing.__qualname__} is not to be found: define it in a module")
    return hashlib.sha256(text.encode()).hexdigest()


def _code(names: Mapping[str, Any], module: str) -> Iterator[tuple[str, str]]:
    """Of the functions among these, and the methods of classes, that the module defines: a hash of each."""
    for name, value in names.items():
        value = getattr(value, "__func__", getattr(value, "fget", value))  # of class methods and properties
        if getattr(value, "__module__", None) != module:
            continue
        if isinstance(value, type):
            yield from ((f"{name}.{inner}", code) for inner, code in _code(vars(value), module))
        elif isinstance(value, types.FunctionType):
            yield name, hashlib.sha256(b"".join(_told(value.__code__, set()))).hexdigest()


def fingerprint_of(*values: Any) -> str:
    """A hash of values, arrays and functions: of a function, its name, source, defaults, and what it has closed over.

    Of what a function reads from its module, what stands in the module's source is seen; in a notebook, the values that
    it names. Raises InputError for what cannot be told from its like.
    """
    found = hashlib.sha256()
    for part in _told(values, set()):
        found.update(part + b"\n")
    return found.hexdigest()


def _told(value: Any, seen: set[int]) -> Iterator[bytes]:
    """The value as bytes that differ for different values."""
    if id(value) in seen:
        return  # a function that calls itself
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        yield repr(value).encode()
    elif isinstance(value, types.ModuleType):
        yield value.__name__.encode()
    elif isinstance(value, list | tuple | set | frozenset | Mapping):
        yield f"{type(value).__name__} of {len(value)}".encode()
        items = value.items() if isinstance(value, Mapping) else value
        for item in sorted(items, key=repr) if isinstance(value, set | frozenset) else items:
            yield from _told(item, seen)
    elif hasattr(value, "dtype") and hasattr(value, "shape"):
        array = np.ascontiguousarray(value)
        yield f"{array.dtype} {array.shape}".encode()
        yield array.tobytes()
    elif isinstance(value, type):
        yield f"{value.__module__}.{value.__qualname__} {source_of(value)}".encode()
    elif isinstance(value, functools.partial):
        yield from _told((value.func, value.args, value.keywords), seen)
    elif isinstance(value, types.MethodType):
        yield from _told((value.__func__, value.__self__), seen)
    elif isinstance(value, types.FunctionType):
        seen = seen | {id(value)}
        yield f"{value.__module__}.{value.__qualname__} {source_of(value)}".encode()
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        yield from _told((value.__code__, value.__defaults__, value.__kwdefaults__, cells), seen)
        if not hasattr(sys.modules.get(value.__module__), "__file__"):  # other cells of the notebook
            yield from _told([value.__globals__.get(name) for name in value.__code__.co_names], seen)
    elif isinstance(value, types.CodeType):
        yield value.co_code
        yield from _told((value.co_names, value.co_consts), seen)
    elif value is ...:
        yield b"..."
    elif hasattr(value, "__wrapped__"):
        yield from _told(value.__wrapped__, seen)  # jax.jit and its like
    elif dataclasses.is_dataclass(value):
        yield from _told((type(value), {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}), seen)
    else:
        try:
            yield f"{type(value).__module__}.{type(value).__qualname__}".encode() + pickle.dumps(value)
        except Exception:  # what cannot be pickled says so in many ways
            what = f"{value!r:.60} has no name that is its own: let functions close over numbers and arrays only"
            raise InputError(what) from None
