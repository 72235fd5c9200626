"""Signals to end, such as Ctrl-C: heard in the end, and never at a moment that would do harm."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

AGAIN = 0.5  # seconds
NUMBERS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Stopped(BaseException):
    """A signal to end: passes through whatever is under way, so that it is cleared away."""


def status(stop: BaseException) -> int:
    """The exit status of a command that was interrupted."""
    return 128 + (stop.args[0] if isinstance(stop, Stopped) else signal.SIGINT)


@contextmanager
def insisting() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, SIGTERM and SIGHUP raise Stopped, again and again until it is heard: what is
    raised in a callback (the garbage collector's, say) is lost."""

    def stop(number: int, frame: Any) -> None:
        if isinstance(sys.exc_info()[1], KeyboardInterrupt | Stopped):
            return  # heard; what was under way is being cleared away
        if hasattr(signal, "setitimer"):
            # as a signal, so that who holds signals gets it
            signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(number))
            signal.setitimer(signal.ITIMER_REAL, AGAIN)
        raise KeyboardInterrupt if number == signal.SIGINT else Stopped(number)

    former = _replace(lambda _: stop)
    try:
        yield
    finally:
        if hasattr(signal, "setitimer") and former:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in former.items():
            signal.signal(number, handler)


@contextmanager
def signals_held() -> Iterator[Callable[[], None]]:
    """Ctrl-C and the like come when they are let through, by a call of what this gives, or at the end.

    Raised wherever it arrives, an interruption can leave a lock of a future's taken, for which the pool would wait for
    ever, or be lost: in a callback of the garbage collector's, or just before a wait without end.
    """
    held: list[tuple[Any, ...]] = []

    def let_through() -> None:
        while held:
            number, frame = held.pop(0)
            former[number](number, frame)

    def hold(number: int, frame: Any) -> None:
        held.append((number, frame))

    former = _replace(lambda handler: hold if callable(handler) else None)
    try:
        yield let_through
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
        let_through()


def _replace(by: Callable[[Any], Callable[..., Any] | None]) -> dict[int, Any]:
    """Set handlers, where ``by`` has one in place of what there is; returns what there was. What is ignored (by nohup,
    or a shell, for its children in the background) stays so."""
    former: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():  # no other can be interrupted
        for number in NUMBERS:
            handler = signal.getsignal(number)
            new = None if handler in (signal.SIG_IGN, None) else by(handler)
            if new is not None:
                former[number] = handler
                signal.signal(number, new)
    return former
