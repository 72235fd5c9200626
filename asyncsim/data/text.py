"""A text, cut into windows for next-character prediction."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
from msgspec import Meta

from asyncsim.data.base import Data
from asyncsim.errors import InputError
from asyncsim.records import Count, checked

MAX_BYTES = 200_000_000


@checked
class Text:
    """A text to learn from, character by character: windows ``x`` (n, context) and the characters after, ``y``.

    By default the help texts that come with Python (module ``pydoc_data.topics``, 0.5 MB of English, in order of their
    names), else a ``file`` in UTF-8. The last ``test_share`` of it is for testing; windows do not overlap, and what
    is left at the end of a part is left out. Characters are numbered in their order in Unicode.

    Python's texts change with its releases: ``sha256``, of the UTF-8 bytes, is written with every result; where it is
    given, another text is refused.
    """

    file: str | None = None
    context: Count = 64
    test_share: Annotated[float, Meta(gt=0, lt=1)] = 0.1
    sha256: str | None = None

    def resolved(self) -> Text:
        """The same with the hash filled in."""
        return replace(self, sha256=self._content()[1])

    @property
    def vocabulary(self) -> str:
        """The characters of the text, sorted."""
        return "".join(map(chr, _numbered(self._content()[0])[1].tolist()))

    def load(self) -> Data:
        """Train and test windows as dicts of ``x`` and ``y``, (n, context) int32 each."""
        return _windows(self._content()[0], self.context, self.test_share)

    def _content(self) -> tuple[str, str]:
        """The text, and its hash."""
        found = _topics() if self.file is None else _read(*_state(self.file))
        if self.sha256 not in (None, found[1]):
            source = "Python's help texts (another release has others)" if self.file is None else self.file
            raise InputError(f"that of {source} is {found[1]}, not {self.sha256}", "sha256")
        return found


@functools.lru_cache(maxsize=4)
def _numbered(text: str) -> tuple[np.ndarray, np.ndarray]:
    """The number of each character in the vocabulary, and the code points of the vocabulary."""
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    vocabulary = np.unique(codes)
    return np.searchsorted(vocabulary, codes).astype(np.int32), vocabulary


@functools.lru_cache(maxsize=4)
def _windows(text: str, context: int, test_share: float) -> Data:
    numbers, _ = _numbered(text)
    end = len(numbers) - round(test_share * len(numbers))

    def cut(part: np.ndarray) -> dict[str, np.ndarray]:
        n = (len(part) - 1) // context
        if n < 1:
            what = f"a text of {len(numbers)} characters is too short to be cut into windows of {context}"
            raise InputError(what, "context")
        x, y = (part[first : first + n * context].reshape(n, context) for first in (0, 1))
        return {"x": x, "y": y}

    return Data(cut(numbers[:end]), cut(numbers[end:]))


def _hashed(text: str) -> tuple[str, str]:
    return text, hashlib.sha256(text.encode()).hexdigest()


@functools.cache
def _topics() -> tuple[str, str]:
    from pydoc_data.topics import topics

    return _hashed("\n".join(topics[name] for name in sorted(topics)))


def _state(file: str) -> tuple[str, int, int]:
    """The file, and what changes when it does."""
    try:
        found = Path(file).stat()
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}", "file") from None
    if found.st_size > MAX_BYTES:
        raise InputError(f"{file} is larger than {MAX_BYTES / 1e6:g} MB", "file")
    return file, found.st_size, found.st_mtime_ns


@functools.lru_cache(maxsize=2)
def _read(file: str, size: int, changed: int) -> tuple[str, str]:
    try:
        return _hashed(Path(file).read_bytes().decode())
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}", "file") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is no text in UTF-8: {error.reason} at byte {error.start}", "file") from None
