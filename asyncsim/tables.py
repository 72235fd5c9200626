"""A tidy table: named columns of equal length, one row an observation."""

from __future__ import annotations

import csv
import html
import io
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from asyncsim.errors import InputError, nearest
from asyncsim.reports import in_columns

if TYPE_CHECKING:
    import pandas


class Table:
    """Columns by name, as NumPy arrays: ``table["loss"]``, ``len(table)``, ``table.to_frame()``."""

    def __init__(self, columns: Mapping[str, Any]):
        self._columns = {name: np.asarray(values) for name, values in columns.items()}
        lengths = {len(values) for values in self._columns.values()}
        if len(lengths) > 1:
            raise InputError(f"columns of different lengths: {sorted(lengths)}")

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self._columns)

    def __getitem__(self, name: str) -> np.ndarray:
        try:
            return self._columns[name]
        except KeyError:
            known = ", ".join(self._columns)
            raise KeyError(f"no column {name!r}; there are: {known}{nearest(name, self._columns)}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), ()))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Table) or self.columns != other.columns:
            return False
        return all(_same(a, other[k]) for k, a in self._columns.items())

    __hash__ = None  # type: ignore[assignment]

    def rows(self) -> Iterator[dict[str, Any]]:
        """One dict of plain values a row."""
        plain = [values.tolist() for values in self._columns.values()]
        for row in zip(*plain, strict=True):
            yield dict(zip(self._columns, row, strict=True))

    def head(self, rows: int) -> Table:
        """The first rows."""
        return Table({k: v[:rows] for k, v in self._columns.items()})

    def to_frame(self) -> pandas.DataFrame:
        """A pandas data frame (needs the extra ``frames``)."""
        try:
            import pandas
        except ImportError:
            raise InputError("to_frame() needs pandas: pip install 'asyncsim[frames]'") from None
        return pandas.DataFrame(self._columns)

    def to_csv(self) -> str:
        """The table as CSV text; floats are written so that they read back exactly."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self._columns)
        writer.writerows(zip(*(values.tolist() for values in self._columns.values()), strict=True))
        return out.getvalue()

    @classmethod
    def from_csv(cls, text: str) -> Table:
        """Read what ``to_csv`` wrote: whole numbers, then numbers, then True/False, then texts."""
        rows = list(csv.reader(io.StringIO(text)))
        names, body = rows[0], rows[1:]
        return cls({name: _parse([row[k] for row in body]) for k, name in enumerate(names)})

    def __repr__(self) -> str:
        return f"Table({len(self)} rows: {', '.join(self._columns)})"

    def __str__(self) -> str:
        lines = [self.columns] + [[_cell(v) for v in row.values()] for row in self.head(20).rows()]
        more = f"\n... and {len(self) - 20} more rows" if len(self) > 20 else ""
        return in_columns(lines) + more if self.columns else repr(self)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self._columns)
        rows = list(self.head(10).rows())
        body = "".join(f"<tr>{''.join(f'<td>{html.escape(_cell(v))}</td>' for v in row.values())}</tr>" for row in rows)
        more = f"<p>{len(self) - 10} more rows</p>" if len(self) > 10 else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _cell(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    floats = a.dtype.kind == "f" and b.dtype.kind == "f"
    return a.shape == b.shape and bool(np.array_equal(a, b, equal_nan=floats))


def _parse(values: list[str]) -> np.ndarray:
    for kind in (int, float):
        try:
            return np.array([kind(v) for v in values], dtype=kind if values else float)
        except (ValueError, OverflowError):  # a whole number may not fit in 64 bits
            pass
    if all(v in ("True", "False") for v in values):
        return np.array([v == "True" for v in values])
    return np.array(values, dtype=str)


def tidy(rows: Iterable[Mapping[str, Any]]) -> Table:
    """A table of rows that need not have the same columns: what is missing is nan among numbers, else empty."""
    rows = list(rows)
    names = dict.fromkeys(name for row in rows for name in row)
    return Table({name: _column([row.get(name) for row in rows]) for name in names})


def _column(values: list[Any]) -> np.ndarray:
    kinds = {type(value) for value in values}
    if kinds == {int} or kinds == {bool}:
        return np.array(values)
    if kinds <= {int, float, type(None)}:
        return np.array([math.nan if value is None else value for value in values], float)
    return np.array(["" if value is None else str(value) for value in values])
