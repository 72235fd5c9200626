"""What a user's mistake looks like: one line that says what, where, and what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


class InputError(ValueError):
    """A mistake in what the user gave: a scenario, an argument, a file.

    ``path`` is where it stands, from the outside in: ``cluster.workers[0].step_time.mean``. The command line prints
    the message on one line and ends with status 2.
    """

    def __init__(self, what: str, path: str = ""):
        self.what, self.path = what, path
        super().__init__(f"{path}: {what}" if path else what)

    def within(self, outer: str) -> InputError:
        """The same mistake, seen from one level further out."""
        inner = self.path if not self.path or self.path.startswith("[") else f".{self.path}"
        return InputError(self.what, outer + inner if outer else self.path)


class Deadlock(RuntimeError):
    """Nothing is going to happen any more, and the run is not at its end: the protocol waits for itself."""


def within(outer: str, ask: Callable[..., T], *arguments: Any) -> T:
    """What ``ask(*arguments)`` returns; a mistake it finds is seen from one level further out."""
    try:
        return ask(*arguments)
    except InputError as error:
        raise error.within(outer) from None


def _plain(word: object) -> str:
    return str(word).replace("_", "").replace("-", "").casefold()


def nearest(word: object, names: Iterable[str]) -> str:
    """``'; did you mean 'gamma'?'`` when one of the names is close to the word, else nothing."""
    names = list(names)
    # NAGASGD is nag_asgd, however far apart the letters are
    same = [n for n in names if _plain(n) == _plain(word)]
    close = same or difflib.get_close_matches(str(word), names, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def a(noun: str) -> str:
    """The noun with its article."""
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


def expect(value: Any, kind: type, path: str, hint: str = "") -> None:
    """Raise InputError unless the value is an instance of the class; ``hint`` says what to do about it."""
    if not isinstance(value, kind):
        got = f"the class {value.__name__}; make one: {value.__name__}()" if isinstance(value, type) else repr(value)
        short = got if len(got) < 80 else got[:77] + "..."
        raise InputError(f"expected {a(kind.__name__)}, got {short}{hint}", path)
