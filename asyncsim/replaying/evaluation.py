"""When a run is evaluated, and on what."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from asyncsim.data.base import num_samples
from asyncsim.errors import InputError, nearest
from asyncsim.problems.base import Problem
from asyncsim.records import Count, Positive, checked
from asyncsim.replaying.rules import Setting
from asyncsim.replaying.sizes import Memory
from asyncsim.runs import MEASURES
from asyncsim.trace import Trace
from asyncsim.vocabulary import READ, ROUNDING, SPANS

MAX_EVALUATIONS = 100_000

# figures of a run that a problem's own may not be mistaken for
RESERVED = {"run", "status", "failure", "name", "seed", "batch_size", "statistics", "engine", "precision"} | {
    *("measures", "time", "updates", "samples", "epochs", "spread", "ended", "seconds", "throughput", "time_to_target"),
    *("gradients", "dropped", "cancelled", "in_flight", "staleness_mean", "staleness_max", "bytes_sent"),
    *("message_age_mean", "message_age_max"),
    *("learning_rate", *MEASURES, *Memory._fields),
    *(f"{kind}_share" for kind in SPANS),
}


@checked
class Every:
    """Evaluate every so many updates, samples, epochs or simulated seconds (one of these), and at start and end."""

    updates: Count | None = None
    samples: Count | None = None
    epochs: Positive | None = None
    seconds: Positive | None = None

    def validate(self) -> None:
        given = [k for k in ("updates", "samples", "epochs", "seconds") if getattr(self, k) is not None]
        if len(given) != 1:
            raise InputError(f"give one of: updates, samples, epochs, seconds; got {', '.join(given) or 'none'}")

    def cuts(self, trace: Trace, num_samples: int) -> list[tuple[int, float]]:
        """The evaluations of a trace: (rows that are done, time in seconds). Every row before a cut is done."""
        hair = 1 + ROUNDING
        if self.seconds is not None:
            number = trace.end / self.seconds * hair
            if number > MAX_EVALUATIONS:
                raise InputError(f"makes {number:.3g} evaluations; {MAX_EVALUATIONS} is the limit", "evaluate.seconds")
            times = self.seconds * np.arange(1, np.floor(number) + 1)
            rows = np.searchsorted(trace.time, times * hair, side="right")
            inner = list(zip(rows.tolist(), np.minimum(times, trace.end).tolist(), strict=True))
        else:
            if self.updates is not None:
                clock, unit = trace.updates, float(self.updates)
            else:
                clock = trace.samples
                unit = float(self.samples) if self.samples is not None else float(self.epochs or 0) * num_samples
            # the row by which each multiple of the unit is reached; one may reach several
            reached = np.floor(clock / max(unit, 1.0) * hair)
            rows = np.flatnonzero(np.diff(reached, prepend=0.0) > 0)
            inner = [(int(r) + 1, float(trace.time[r])) for r in rows]
        end = (len(trace), float(trace.end))
        # an evaluation after which nothing happens any more (but reads) is that of the end
        last = int(np.flatnonzero(trace.verb != READ)[-1]) + 1 if np.any(trace.verb != READ) else 0
        inner = [cut for cut in inner if cut[0] < last or cut[1] < trace.end * (1 - ROUNDING)]
        return list(dict.fromkeys([(0, 0.0), *inner, end]))


@checked
class Target:
    """A test figure to reach: ``time_to_target`` is when an evaluation first finds it; ``stop`` ends the run there.

    The loss is to fall to the value, anything else to rise to it.
    """

    value: float
    metric: str = "accuracy"
    stop: bool = False

    def check(self, measured: Iterable[str]) -> None:
        """Raise InputError unless the metric is one of those measured."""
        measured = list(measured)
        if self.metric not in measured:
            what = f"no {self.metric!r} is measured; there are: {', '.join(measured)}{nearest(self.metric, measured)}"
            raise InputError(what, "target.metric")

    def reached(self, figures: Mapping[str, float]) -> bool:
        """Whether an evaluation has reached the target."""
        value = figures[self.metric]
        return value <= self.value if self.metric == "loss" else value >= self.value


def measured_names(setting: Setting, test: Any) -> list[str]:
    """What an evaluation measures. Raises InputError if a problem's own figure has a name that means something else."""
    try:
        figures = jax.eval_shape(setting.rule.metrics, setting.params, setting.extra, test)
    except TypeError as error:
        raise InputError(f"its metrics fail: {str(error).splitlines()[0]}", "problem") from error
    for name, value in figures.items():
        if getattr(value, "shape", None) != () or jnp.issubdtype(value.dtype, jnp.complexfloating):
            raise InputError(f"its figure {name} should be one real number, not {value}", "problem")
    taken = RESERVED & set(figures)
    if taken:
        raise InputError(f"its figures may not be called {', '.join(sorted(taken))}", "problem")
    return [*figures, *(["spread"] if setting.trace.kind == "peers" else [])]


def evaluate(rule: Any, params: Any, extra: Any, test: Any) -> dict[str, float]:
    """The test figures, each a mean over all test samples."""
    total: dict[str, float] = {}
    size, at_once = num_samples(test), getattr(rule, "evaluated_at_once", Problem.evaluated_at_once)
    for first in range(0, max(size, 1), at_once):
        part = jax.tree.map(lambda x, first=first: x[first : first + at_once], test)
        share = (min(at_once, size - first) / size) if size else 1.0
        for name, value in _metrics(rule, params, extra, part).items():
            total[name] = total.get(name, 0.0) + share * float(value)
    return total


@functools.partial(jax.jit, static_argnames="rule")
def _metrics(rule: Any, params: Any, extra: Any, batch: Any) -> dict[str, jax.Array]:
    return {name: jnp.asarray(value) for name, value in rule.metrics(params, extra, batch).items()}
