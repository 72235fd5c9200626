"""What code computes and with what, as a hash: an edited function or class never meets an old result."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import pickle
import sys
import sysconfig
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from asyncsim.errors import InputError

PLAIN = (type(None), type(...), bool, int, float, complex, str, bytes)
# where modules are that a user does not edit: the package (whose sources take part by themselves) and what is installed
INSTALLED = tuple(
    str(Path(str(place)).resolve())
    for place in (
        Path(__file__).parent,
        *(sysconfig.get_paths()[k] for k in ("stdlib", "platstdlib", "purelib", "platlib")),
    )
)


def fingerprint_of(*values: Any) -> str:
    """A hash of values, arrays, functions, classes and objects: equal only for what computes equally.

    Of a function or class of the user's own there take part: its code as it is at this moment, what it has closed over,
    the values, functions and modules that it names, and the whole source of its module. Of what is installed, only
    the name. Raises InputError for what cannot be told from its like.
    """
    found = hashlib.sha256()
    for part in _told(values, frozenset()):
        found.update(len(part).to_bytes(8, "little") + part)
    return found.hexdigest()


def _told(value: Any, seen: frozenset[int]) -> Iterator[bytes]:
    """The value as bytes that differ for different values."""
    if id(value) in seen:
        return  # a function that calls itself
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}".encode()
    if kind in PLAIN:
        yield name + repr(value).encode()
    elif isinstance(value, types.ModuleType):
        yield from _module(value, seen)
    elif isinstance(value, types.CodeType):
        yield value.co_code
        yield from _told((value.co_names, value.co_varnames, value.co_freevars, value.co_consts), seen)
    elif isinstance(value, functools.partial):
        yield from _told((value.func, value.args, value.keywords), seen)
    elif isinstance(value, types.MethodType):
        yield from _told((value.__func__, value.__self__), seen)
    elif kind is not types.FunctionType and not _own(kind.__module__) and hasattr(value, "__wrapped__"):
        yield from _told(value.__wrapped__, seen)  # jax.jit and its like
    elif isinstance(value, type | types.FunctionType) or (callable(value) and hasattr(value, "__qualname__")):
        yield from _definition(value, seen | {id(value)})
    elif hasattr(value, "dtype") and hasattr(value, "shape"):
        yield from _array(value, name)
    elif isinstance(value, list | tuple | set | frozenset | Mapping):
        yield name + str(len(value)).encode()
        items = value.items() if isinstance(value, Mapping) else value
        for item in sorted(items, key=repr) if isinstance(value, set | frozenset) else items:
            yield from _told(item, seen)
        if _own(kind.__module__):
            yield from _told((kind, vars(value) if hasattr(value, "__dict__") else {}), seen)
    elif _own(kind.__module__) or dataclasses.is_dataclass(value):
        state = vars(value) if hasattr(value, "__dict__") else pickle.dumps(value)
        yield from _told((kind, state), seen | {id(value)})
    elif hasattr(value, "__name__") and hasattr(value, "__module__"):
        yield f"{value.__module__}.{value.__name__}".encode()  # jax.numpy's functions are objects
    else:
        try:
            yield name + pickle.dumps(value)
        except Exception:  # what cannot be pickled says so in many ways
            what = f"{value!r:.60} has no name that is its own: let functions use numbers, arrays and functions only"
            raise InputError(what) from None


def _definition(value: Any, seen: frozenset[int]) -> Iterator[bytes]:
    """A function or class."""
    yield f"{value.__module__}.{value.__qualname__}".encode()
    if not _own(value.__module__):
        if isinstance(value, types.FunctionType):  # it may be one of many, as those that optax makes are
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
            yield from _told((cells, value.__defaults__, value.__kwdefaults__), seen)
        return
    module = sys.modules.get(value.__module__)
    if module is not None:
        yield from _module(module, seen)
    if isinstance(value, type):
        yield from _told(value.__bases__, seen)
        for name, part in sorted(vars(value).items()):
            part = getattr(part, "__func__", getattr(part, "fget", part))  # of class methods and properties
            if isinstance(part, types.FunctionType) or (_is_plain(part) and not name.startswith("__")):
                yield name.encode()
                yield from _told(part, seen)
    elif isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        yield from _told((value.__code__, value.__defaults__, value.__kwdefaults__, cells), seen)
        yield from _told({k: v for k, v in vars(value).items() if k != "__wrapped__"}, seen)
        for name in _names(value.__code__):
            if name in value.__globals__:
                yield name.encode()
                yield from _told(value.__globals__[name], seen)


def _module(module: types.ModuleType, seen: frozenset[int]) -> Iterator[bytes]:
    """Its name; of a module of the user's own its source as well."""
    yield module.__name__.encode()
    file = getattr(module, "__file__", None)
    if file and _own(module.__name__) and Path(file).is_file():
        yield hashlib.sha256(Path(file).read_bytes()).digest()


def _array(value: Any, name: bytes) -> Iterator[bytes]:
    try:
        array = np.asarray(value)
    except TypeError:  # a random key
        import jax

        array = np.asarray(jax.random.key_data(value))
    if array.dtype == object:
        raise InputError("an array of objects has no name that is its own")
    yield name + f"{value.dtype} {array.shape}".encode()
    yield array.tobytes()
    if isinstance(value, np.ma.MaskedArray):
        yield np.ma.getmaskarray(value).tobytes()


def _own(module: str | None) -> bool:
    """Whether a module is the user's, and may be edited."""
    if module is None or module == "builtins":
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:  # a notebook, or built in
        return module == "__main__" or (module not in sys.stdlib_module_names and module in sys.modules)
    return not str(Path(file).resolve()).startswith(INSTALLED)


def _is_plain(value: Any) -> bool:
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    return type(value) in PLAIN or isinstance(value, np.ndarray | np.generic)


def _names(code: types.CodeType) -> list[str]:
    """What a function and those within it name outside of themselves."""
    inner = [name for part in code.co_consts if isinstance(part, types.CodeType) for name in _names(part)]
    return sorted({*code.co_names, *inner})
