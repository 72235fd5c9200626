"""Checked, frozen records and the families that a scenario picks from by name.

Every piece of a scenario is a record: a frozen dataclass whose fields are checked against their annotations when it is
made, whether from Python or from a TOML table. ``Annotated[float, Meta(gt=0)]`` is a bound; a field whose type is
itself a record, or a family of records, accepts a table in its place.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeVar, dataclass_transform, get_args, get_origin

import msgspec
import numpy as np
from msgspec import Meta

from asyncsim.errors import InputError, a, nearest, within

Positive = Annotated[float, Meta(gt=0)]
NonNegative = Annotated[float, Meta(ge=0)]
Fraction = Annotated[float, Meta(ge=0, lt=1)]
Count = Annotated[int, Meta(ge=1)]
Probability = Annotated[float, Meta(ge=0, le=1)]
Seed = Annotated[int, Meta(ge=0, lt=2**31)]

T = TypeVar("T")


class Family:
    """Base of records that a scenario picks by ``name``: the step-time models, the protocols, the algorithms, ...

    A direct subclass opens a family and says what its members are called (``family``, for messages); ``@register``
    adds a member. Where a number can stand for a member, ``from_number`` gives the table that it stands for.
    """

    family: ClassVar[str]
    members: ClassVar[dict[str, type]]
    name: ClassVar[str]

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        cls.name = cls.__name__  # until it is registered under another
        if Family in cls.__bases__:
            cls.members = {}


def register(name: str):
    """Add a record to its family under this name; a name stands for one class only."""

    def add(cls: type[T]) -> type[T]:
        members = cls.members  # type: ignore[attr-defined]
        # the same class defined again (a notebook cell run twice) replaces its former self
        if name in members and members[name].__qualname__ != cls.__qualname__:
            raise InputError(f"the name {name!r} is taken by {members[name].__qualname__}")
        cls.name = name  # type: ignore[attr-defined]
        members[name] = cls
        return cls

    return add


@dataclass_transform(frozen_default=True)
def checked(cls: type[T]) -> type[T]:
    """A frozen dataclass that checks and converts its fields when made, then calls its ``validate()`` if it has one."""
    setattr(cls, "__post_init__", _check)  # noqa: B010
    return dataclasses.dataclass(frozen=True)(cls)


def check_field(cls: type, name: str, value: Any) -> Any:
    """The value as the field would have it. Raises InputError if it is not what the field's annotation asks for."""
    return within(name, _convert, value, _hints(cls)[name])


def summary_line(cls: type) -> str:
    """The first sentence of the docstring."""
    return " ".join((cls.__doc__ or "").strip().split("\n\n")[0].split())


def settings(cls: Any) -> list[str]:
    """One line for each field: its name, what it expects, and its default."""
    out, fields = [], dataclasses.fields(cls)
    width = max((len(f.name) for f in fields), default=0)
    for f in fields:
        what = "required" if f.default is dataclasses.MISSING else f"default: {_default(f.default)}"
        out.append(f"{f.name:<{width}} {_expected(_hints(cls)[f.name])} ({what})")
    return out


def _default(value: Any) -> str:
    if value is None or value == ():
        return "left out"
    if isinstance(value, bool):
        return str(value).lower()
    if dataclasses.is_dataclass(value):
        return str(getattr(value, "name", "as it is when left empty"))
    return str(list(value) if isinstance(value, tuple) else value)


def build(kind: type[T], table: Mapping[str, Any]) -> T:
    """Make a record from a plain table; ``kind`` is a record or a family (then ``table['name']`` picks the member)."""
    if _is_family(kind) and isinstance(table, str):
        table = {"name": table}  # algorithm = "asgd"
    numbered = getattr(kind, "from_number", None)
    if numbered and isinstance(table, int | float) and not isinstance(table, bool):
        table = numbered(table)  # step_time = 0.1
    if not isinstance(table, Mapping):
        raise InputError(f"expected {_expected(kind)}, got {_show(table)}")
    table = dict(table)
    cls: Any = kind
    if _is_family(kind):
        family: Any = kind
        if "name" not in table and not hasattr(family, "unnamed"):
            raise InputError(f"says no name; there are: {', '.join(family.members)}", "name")
        name = table.pop("name", getattr(family, "unnamed", None))
        if not isinstance(name, str) or name not in family.members:
            hint = nearest(name, family.members)
            raise InputError(
                f"no {family.family} is called {name!r}; there are: {', '.join(family.members)}{hint}", "name"
            )
        cls = family.members[name]
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}
    for key in table:
        if key not in fields:
            allowed = ", ".join(fields) or "none"
            raise InputError(f"unknown key; allowed: {allowed}{nearest(key, fields)}", str(key))
    for key, f in fields.items():
        required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        if key not in table and required:
            raise InputError(f"is missing; expected {_expected(_hints(cls)[key])}", key)
    made: T = cls(**table)
    return made


def table(obj: Any) -> Any:
    """A record as plain tables, lists and values, as a TOML file has them. What is None is left out.

    A record with a method ``resolved()`` is written with everything filled in that its user left to it.
    """
    if dataclasses.is_dataclass(obj):
        obj = obj.resolved() if hasattr(obj, "resolved") else obj
        head: dict[str, Any] = {"name": obj.name} if isinstance(obj, Family) else {}
        values = {f.name: getattr(obj, f.name) for f in dataclasses.fields(obj)}
        for f in dataclasses.fields(obj):
            if values[f.name] is None and f.default is not None:
                raise InputError("None cannot be written to a scenario file: left out, it means the default", f.name)
        return head | {k: table(v) for k, v in values.items() if v is not None}
    if isinstance(obj, Mapping):
        return {k: table(v) for k, v in obj.items()}
    if isinstance(obj, list | tuple):
        return [table(v) for v in obj]
    if isinstance(obj, str | bool | int | float):
        return obj
    if np.ndim(obj) == 0 and hasattr(obj, "item"):
        return obj.item()
    raise InputError(f"{_show(obj)} cannot be written to a scenario file, which holds plain values only")


def resolved(value: Any) -> Any:
    """A record with everything filled in, in all its parts, that its user left to it."""
    if isinstance(value, tuple):
        return tuple(map(resolved, value))
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    parts = {f.name: resolved(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
    if any(parts[name] is not getattr(value, name) for name in parts):
        value = dataclasses.replace(value, **parts)
    return value.resolved() if hasattr(value, "resolved") else value


def in_words(value: Any) -> Any:
    """A record as plain tables; of anything else, what it is."""
    try:
        return table(value)
    except InputError:
        return repr(value) if type(value).__repr__ is not object.__repr__ else type(value).__name__


def _is_family(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Family) and Family in kind.__bases__


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


def _check(self: Any) -> None:
    cls: Any = type(self)
    hints = _hints(cls)
    for f in dataclasses.fields(self):
        object.__setattr__(self, f.name, within(f.name, _convert, getattr(self, f.name), hints[f.name]))
    if hasattr(self, "validate"):
        self.validate()


def _convert(value: Any, hint: Any) -> Any:
    arms = get_args(hint) if get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    if value is None and type(None) in arms:
        return None
    (arm,) = (a for a in arms if a is not type(None))  # a field is one thing, or one thing or nothing
    if isinstance(arm, type) and (dataclasses.is_dataclass(arm) or issubclass(arm, Family)):
        return value if isinstance(value, arm) else build(arm, value)
    if get_origin(arm) is tuple:
        value = value.tolist() if isinstance(value, np.ndarray) else value
        if not isinstance(value, list | tuple):
            raise InputError(f"expected {_expected(arm)}, got {_show(value)}")
        return tuple(within(f"[{k}]", _convert, v, get_args(arm)[0]) for k, v in enumerate(value))
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()  # a NumPy or JAX number
    try:
        value = msgspec.convert(value, arm)
    except (msgspec.ValidationError, TypeError):
        raise InputError(f"expected {_expected(arm)}, got {_show(value)}") from None
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"expected a finite number, got {value}")
    return value


def _show(value: Any) -> str:
    text = f"the class {value.__name__}" if isinstance(value, type) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


_WORDS = {float: "a number", int: "a whole number", str: "a text", bool: "true or false"}
_SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}


def _expected(hint: Any) -> str:
    """The annotation of a field in words: 'a number > 0', 'one of: constant, gamma'."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        limits = ((sign, getattr(args[1], key)) for key, sign in _SIGNS.items())
        bounds = [f"{sign} {x:g}" if isinstance(x, float) else f"{sign} {x}" for sign, x in limits if x is not None]
        return " ".join([_expected(args[0]), " and ".join(bounds)])
    if origin is typing.Literal:
        return "one of: " + ", ".join(repr(a) for a in args)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_expected(a) for a in args if a is not type(None))
    if origin is tuple:
        return f"a list, [...], of items that are each {_expected(args[0])}"
    if _is_family(hint):
        return f"{a(hint.family)}, or a table whose name is one of: {', '.join(hint.members)}"
    if dataclasses.is_dataclass(hint):
        fields = dataclasses.fields(hint)
        some = " any of" if all(f.default is not dataclasses.MISSING for f in fields) else ""
        names = ", ".join(f.name for f in fields)
        return f"{a(getattr(hint, '__name__', str(hint)))}, or a table with{some}: {names}"
    return _WORDS.get(hint, getattr(hint, "__name__", str(hint)))
