"""Signals to end are heard, once, when they may be."""

import signal
import time
from contextlib import suppress

import pytest

from asyncsim.interruption import Stopped, insisting, signals_held, status


@pytest.fixture(autouse=True)
def _own_handlers():
    """Whoever started the tests may have them ignore Ctrl-C."""
    numbers = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    former = {number: signal.signal(number, handler) for number, handler in numbers.items()}
    yield
    assert {number: signal.getsignal(number) for number in numbers} == numbers  # as they were
    for number, handler in former.items():
        signal.signal(number, handler)


HAS_TIMER = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="has no timer")


@HAS_TIMER
@pytest.mark.parametrize(("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Stopped)])
def test_an_interruption_that_is_lost_comes_again(number, kind):
    def loses_it():
        with insisting():
            with suppress(kind):  # as in a callback
                signal.raise_signal(number)
            time.sleep(30)

    with pytest.raises(kind) as caught:
        loses_it()
    assert status(caught.value) == 128 + number
    time.sleep(0.6)  # and no more after that


def interrupted_again():
    try:
        signal.raise_signal(signal.SIGINT)
    finally:
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.7)


def ends_otherwise():
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def fails_meanwhile():
    try:
        signal.raise_signal(signal.SIGINT)
    finally:
        try:
            raise FileNotFoundError
        except FileNotFoundError:
            time.sleep(0.7)


@HAS_TIMER
@pytest.mark.parametrize(
    ("inner", "kind"),
    [(interrupted_again, KeyboardInterrupt), (fails_meanwhile, KeyboardInterrupt), (ends_otherwise, SystemExit)],
)
def test_what_is_being_cleared_away_is_not_interrupted(inner, kind):
    """Whatever comes up meanwhile."""
    cleared = []

    def clears_away():
        with insisting():
            try:
                inner()
            finally:
                time.sleep(0.7)
                cleared.append("all")

    with pytest.raises(kind):
        clears_away()
    assert cleared == ["all"]


def test_a_third_signal_ends_that_as_well():
    def hangs():
        with insisting():
            try:
                signal.raise_signal(signal.SIGINT)
            finally:
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGTERM)
                raise AssertionError("still at it")

    with pytest.raises(Stopped):
        hangs()


def test_what_is_lost_at_the_very_end_is_heard_there():
    def loses_it():
        with insisting(), suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        loses_it()


@HAS_TIMER
def test_a_timer_of_the_callers_goes_on():
    rang = []
    former = signal.signal(signal.SIGALRM, lambda *_: rang.append("alarm"))
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    with insisting():
        pass
    time.sleep(0.3)
    assert rang == ["alarm"]
    with pytest.raises(KeyboardInterrupt):
        ends_soon()
    assert callable(signal.getsignal(signal.SIGALRM))
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    signal.signal(signal.SIGALRM, former)


def ends_soon():
    with insisting():
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(("lets", "reached"), [(True, ["held"]), (False, ["held", "the end"])])
def test_signals_are_held_until_they_are_let_through(lets, reached):
    went_on = []

    def goes_on():
        with signals_held() as let_through:
            signal.raise_signal(signal.SIGINT)
            went_on.append("held")
            if lets:
                let_through()
            went_on.append("the end")

    with pytest.raises(KeyboardInterrupt):
        goes_on()
    assert went_on == reached


def test_what_is_ignored_stays_so():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with insisting(), signals_held():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    signal.signal(signal.SIGINT, signal.default_int_handler)
