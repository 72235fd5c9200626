"""Signals to end, such as Ctrl-C: heard in the end, and never at a moment that would do harm."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

AGAIN = 0.5  # seconds
PATIENCE = 3  # so many signals end also what is being cleared away
NUMBERS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Stopped(BaseException):
    """A signal to end: passes through whatever is under way, so that it is cleared away."""


def status(stop: BaseException) -> int:
    """The exit status of a command that was interrupted."""
    return 128 + (stop.args[0] if isinstance(stop, Stopped) else signal.SIGINT)


def _raise(number: int) -> None:
    raise KeyboardInterrupt if number == signal.SIGINT else Stopped(number)


@contextmanager
def insisting() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, SIGTERM and SIGHUP raise Stopped, again and again until it is heard, at the
    latest at the end: what is raised in a callback (the garbage collector's, say) is lost."""
    came: list[int] = []  # the signals so far
    alarm: list[Any] = []  # what SIGALRM did before, and its timer, once they are taken

    def stop(number: int, frame: Any) -> None:
        came.append(number)
        raised_again(number)

    def raised_again(number: int) -> None:
        if _heard() and len(came) < PATIENCE:
            return  # what was under way is being cleared away
        if hasattr(signal, "setitimer"):
            if not alarm:
                alarm.extend((signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)))
            # by way of the handler that is set then: who holds signals gets it
            signal.signal(signal.SIGALRM, lambda *_: again(number))
            signal.setitimer(signal.ITIMER_REAL, AGAIN)
        _raise(number)

    def again(number: int) -> None:
        if signal.getsignal(number) is stop:
            raised_again(number)
        else:
            signal.raise_signal(number)

    former = _replace(lambda _: stop)
    try:
        yield
        if came:
            _raise(came[0])
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
        if alarm:
            handler, (seconds, interval) = alarm
            signal.setitimer(signal.ITIMER_REAL, seconds, interval)
            signal.signal(signal.SIGALRM, handler)


def _heard() -> bool:
    """Whether an interruption is being handled, or something that came up meanwhile."""
    error = sys.exc_info()[1]
    while error is not None and not isinstance(error, KeyboardInterrupt | Stopped):
        error = error.__context__
    return error is not None


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
