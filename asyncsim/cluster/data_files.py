"""Columns of numbers from CSV and Parquet files, each file read once."""

from __future__ import annotations

import copy
import csv
import functools
import hashlib
import io
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from asyncsim.errors import InputError, nearest, within
from asyncsim.tables import Table

T = TypeVar("T")


class Content(NamedTuple):
    """What is in a file: its columns, and the SHA-256 of its bytes."""

    table: Table
    sha256: str


def read_columns(file: str) -> Content:
    """The columns of a CSV or Parquet file.

    In a CSV file blank lines and lines that begin with # are skipped; the first other line names the columns, unless it
    is a single number: then the file is one column without a name. Parquet needs the extra ``frames``. Raises
    InputError, which says what is wrong with the file.
    """
    path = Path(file)
    try:
        stat = path.stat()
        return _read(path.absolute(), stat.st_mtime_ns, stat.st_size)
    except InputError as error:
        raise InputError(f"{file}: {error.what}") from None
    except FileNotFoundError:
        folder = path.absolute().parent
        names = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []
        where = "" if path.is_absolute() else f" in {Path.cwd()}"
        raise InputError(f"{file}: no such file{where}{nearest(path.name, names)}") from None
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"{file}: cannot be read: {error}") from None


@functools.lru_cache(maxsize=16)
def _read(path: Path, mtime: int, size: int) -> Content:
    content = path.read_bytes()
    table = _parquet(content) if content[:4] == b"PAR1" else _csv(content)
    return Content(table, hashlib.sha256(content).hexdigest())


def _csv(content: bytes) -> Table:
    text = content.decode("utf-8-sig")
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if not lines:
        raise InputError("holds no numbers")
    try:
        rows = list(csv.reader(lines))
    except csv.Error as error:
        raise InputError(f"is no CSV file: {error}") from None
    if len(rows[0]) == 1 and _is_number(rows[0][0]):
        lines.insert(0, "unnamed")
    elif any(_is_number(cell) for cell in rows[0]):
        raise InputError(f"its first line names no columns, but begins {', '.join(rows[0][:4])}")
    if len(set(rows[0])) < len(rows[0]):
        raise InputError(f"names a column twice in its first line: {', '.join(rows[0])[:60]}")
    for k, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise InputError(f"row {k} has {len(row)} columns, the first line {len(rows[0])}")
    return Table.from_csv("\n".join(lines))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _parquet(content: bytes) -> Table:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InputError("a Parquet file needs pyarrow: pip install 'asyncsim[frames]'") from None
    try:
        read = pyarrow.parquet.read_table(io.BytesIO(content))
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"is no Parquet file ({str(error).splitlines()[0]})") from None
    return Table({name: read[name].to_numpy() for name in read.column_names})


def column(content: Content, file: str, name: str | None, *, field: str = "column") -> np.ndarray:
    """One column of a file: the one of this name, or, without a name, the only one."""
    names = content.table.columns
    if not names:
        raise InputError(f"{file} has no columns", "file")
    if name is None:
        if len(names) > 1:
            raise InputError(f"is missing: {file} has the columns {', '.join(names)}", field)
        name = names[0]
    if name not in names:
        raise InputError(f"{file} has no column {name!r}; there are: {', '.join(names)}{nearest(name, names)}", field)
    return content.table[name]


def positive(values: np.ndarray, what: str) -> np.ndarray:
    """The values as float64; raises InputError, which names the first bad one, unless all are finite and above 0."""
    if not len(values):
        raise InputError(f"{what} is empty")
    if values.dtype.kind in "bmM":
        raise InputError(f"{what} holds {values.dtype}, not numbers: write seconds")
    try:
        numbers = np.asarray(values, float)
        good = (numbers > 0) & (numbers <= 1e12)
    except (TypeError, ValueError):
        good = np.array([_is_number(str(value)) for value in values])
        numbers = np.zeros(len(values))
    if not good.all():
        first = int(np.argmin(good))
        raise InputError(f"{what} holds {values[first]} in row {first + 1}; all are to be numbers above 0, up to 1e12")
    return numbers


class ReadsFile:
    """What records with ``file`` and ``sha256`` have in common: the file is read, once, when the record is made."""

    file: Any
    sha256: Any

    @functools.cached_property
    def _content(self) -> Content:
        content = within("file", read_columns, self.file)
        if self.sha256 not in (None, content.sha256):
            what = f"{self.file} has {content.sha256}, not {self.sha256}: it is not the file that this was written for"
            raise InputError(what, "sha256")
        return content

    def resolved(self: T) -> T:
        """The same with the hash of what was read, so that a run's name changes when the file does."""
        if self.file is None:  # type: ignore[attr-defined]
            return self
        other = copy.copy(self)  # not made anew: the file may have changed since it was read
        object.__setattr__(other, "sha256", self._content.sha256)  # type: ignore[attr-defined]
        return other
