"""The learning half: turns a trace, an algorithm and a problem into a run."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, get_args

import jax
import numpy as np
from tqdm import tqdm

from asyncsim.algorithms import Algorithm
from asyncsim.data.sampling import Sampling
from asyncsim.errors import InputError, expect, nearest
from asyncsim.problems import Problem
from asyncsim.records import in_words
from asyncsim.replaying.by_row import ByRowPeers, ByRowServer
from asyncsim.replaying.evaluation import Every, Target, evaluate, measured_names
from asyncsim.replaying.peer_program import CompiledPeers
from asyncsim.replaying.preparing import check_fit, prepare
from asyncsim.replaying.rules import Setting
from asyncsim.replaying.server_program import CompiledServer
from asyncsim.replaying.sizes import memory
from asyncsim.runs import MEASURES, Run, summarise
from asyncsim.schedules import Schedule
from asyncsim.tables import Table
from asyncsim.trace import Trace

ENGINES: dict[tuple[str, str], Any] = {
    ("scan", "server"): CompiledServer,
    ("scan", "peers"): CompiledPeers,
    ("rows", "server"): ByRowServer,
    ("rows", "peers"): ByRowPeers,
}
Statistics = Literal["mean", "first", "shared"]
EngineName = Literal["scan", "rows"]
Precision = Literal["float32", "float64"]
CHOICES = {"statistics": get_args(Statistics), "engine": get_args(EngineName), "precision": get_args(Precision)}


def replay(
    trace: Trace,
    algorithm: Algorithm,
    problem: Problem,
    *,
    seed: int = 0,
    sampling: Sampling | None = None,
    statistics: Statistics = "mean",
    schedule: Schedule | None = None,
    every: Every | None = None,
    target: Target | None = None,
    measures: bool = True,
    engine: EngineName = "scan",
    precision: Precision = "float32",
    progress: bool = False,
    label: str = "",
) -> Run:
    """Learn along a trace: real gradients on exactly the stale parameters that its timing implies.

    Arguments:
        trace: what happens when, from ``record`` or by hand
        algorithm: what each event does to the numbers, such as ``ASGD(learning_rate=0.1)``
        problem: what is learned: ``MLP()``, ``Quadratic()``, a ``CustomProblem``
        seed: fixes initialisation and mini-batches
        sampling: which samples each worker draws from, and in which order (by default from all, with replacement)
        statistics: whose is what a model keeps besides parameters (BatchNorm statistics). ``"mean"``: each worker's
            own, of which evaluations take the mean; ``"first"``: each worker's own, evaluations take worker 0's (as
            data-parallel training saves those of its first process); ``"shared"``: one for all, changed by every
            gradient, in the order in which they arrive (as on a parameter server)
        schedule: moves the learning rate
        every: when to evaluate (by default about 50 times, evenly in updates)
        target: a test figure to reach
        measures: gap, norms, effective learning rate and momentum of each gradient; without them the replay is faster
        engine: ``"scan"``, a compiled loop, or ``"rows"``, one call per row (for models that use ``lax.conv``); they
            agree to rounding
        precision: ``"float32"`` or ``"float64"``
        progress: draw a bar on standard error
        label: what tables and figures call the run (by default the algorithm)

    A loss that is not finite ends the run, and is recorded as its result. Raises InputError where trace, algorithm and
    problem do not fit together.

    Example::

        trace = Trace.from_arrivals([0, 1, 2] * 100)
        run = replay(trace, ASGD(learning_rate=0.05, momentum=0.9), MLP())
        run.summary["accuracy"], run.updates["gap"]
    """
    check_fit(trace, algorithm, problem, seed)
    schedule = Schedule() if schedule is None else schedule
    every = Every(updates=max(1, trace.updates.max(initial=0) // 50)) if every is None else every
    expect(schedule, Schedule, "schedule")
    expect(every, Every, "every")
    sampling = Sampling() if sampling is None else sampling
    expect(sampling, Sampling, "sampling")
    check_choices(statistics=statistics, engine=engine, precision=precision)
    if target is not None:
        expect(target, Target, "target")
    cuts = every.cuts(trace, problem.num_samples)
    with jax.enable_x64(precision == "float64"):
        rows = sorted({row for row, _ in cuts})
        setting, test = prepare(
            trace,
            algorithm,
            problem,
            seed=seed,
            schedule=schedule,
            cuts=rows,
            measures=bool(measures),
            sampling=sampling,
            statistics=statistics,
        )
        names = measured_names(setting, test)
        if target is not None:
            target.check(names)
        takes = memory(algorithm, setting.params, trace.num_workers, summed=setting.summed)._asdict()
        figures = {k: v for k, v in takes.items() if trace.kind == "server" or k.startswith("worker")}
        figures["learning_rate"] = float(algorithm.learning_rate)
        walk = Walk(setting, ENGINES[engine, trace.kind], cuts, target, test, problem.num_samples)
        label = label or described(algorithm)
        # None: no bar where standard error is not a terminal
        hidden = None if progress else True
        with tqdm(total=len(trace.gradients), desc=label, unit="gradient", disable=hidden, leave=False) as bar:
            run = walk.run(bar, label, figures["learning_rate"])
        run = dataclasses.replace(run, summary={**run.summary, **figures})
    tables = {"algorithm": algorithm, "problem": problem, "sampling": sampling}
    tables |= {"schedule": schedule, "evaluate": every, "target": target}
    plain = {"seed": seed, "statistics": statistics, "engine": engine, "precision": precision}
    plain["batch_size"] = trace.batch_size
    return dataclasses.replace(run, settings={**{k: in_words(v) for k, v in tables.items() if v is not None}, **plain})


def check_choices(**given: object) -> None:
    """Raise InputError unless each is one of its ``CHOICES``."""
    for name, value in given.items():
        if value not in CHOICES[name]:
            *others, last = map(repr, CHOICES[name])
            raise InputError(
                f"expected {', '.join(others)} or {last}, got {value!r}{nearest(value, CHOICES[name])}", name
            )


def described(algorithm: Algorithm) -> str:
    """``asgd momentum=0.9``: the name, and the settings that are not the defaults."""
    fields = dataclasses.fields(algorithm)  # type: ignore[arg-type]
    changed = [f"{f.name}={getattr(algorithm, f.name)}" for f in fields if getattr(algorithm, f.name) != f.default]
    return " ".join([algorithm.name, *changed])


@dataclasses.dataclass(frozen=True)
class Walk:
    """One walk along a trace, from one evaluation to the next."""

    setting: Setting
    engine: Any  # the class that does the rows
    cuts: list[tuple[int, float]]  # of each evaluation: rows of the trace that are done, and the time in seconds
    target: Target | None
    test: Any  # the test samples
    epoch: int  # samples

    def run(self, bar: Any, label: str, learning_rate: float) -> Run:
        """All the way, or to where the run ends before."""
        trace, rows = self.setting.trace, self.setting.trace.gradients
        engine = self.engine(self.setting)
        given: list[dict[str, np.ndarray]] = []
        evals: list[dict[str, float]] = []
        ended, reached, done = "budget", None, 0
        for cut, now in self.cuts:
            measured = engine.advance(cut)
            if measured:
                given.append(measured)
                bar.update(len(measured["loss"]))
                here = rows[done : done + len(measured["loss"])]
                broken = np.flatnonzero(~np.isfinite(measured["loss"]) & trace.counted[here])
                if len(broken):
                    # the run ends right there: do it again up to that row, as the loop has gone past it
                    row = int(here[broken[0]])
                    trace, ended = trace.head(row + 1), "diverged"
                    engine = self.engine(self.setting._replace(cuts=[0, row + 1]))
                    engine.advance(row + 1)
                    evals.append(self._evaluate(engine, row + 1, float(trace.end)))
                    break
                done += len(measured["loss"])
            evals.append(self._evaluate(engine, cut, now))
            if self.target is not None and reached is None and self.target.reached(evals[-1]):
                reached = now
                if self.target.stop:
                    trace, ended = trace.head(cut, now), "target"
                    break
        if ended == "budget" and not np.isfinite(evals[-1]["loss"]):
            ended = "diverged"
        updates = self._updates(trace, given, learning_rate)
        figures = Table({k: np.array([e[k] for e in evals]) for k in evals[0]})
        params = jax.tree.map(np.asarray, engine.model()[0])
        return Run(
            label=label,
            trace=trace,
            updates=updates,
            evals=figures,
            params=params,
            summary=summarise(trace, updates, figures, ended, self.target is not None, reached),
        )

    def _evaluate(self, engine: Any, cut: int, now: float) -> dict[str, float]:
        params, extra, more = engine.model()
        figures = evaluate(self.setting.rule, params, extra, self.test)
        trace = self.setting.trace
        updates, samples = (int(c[cut - 1]) if cut else 0 for c in (trace.updates, trace.samples))
        when = {"time": now, "updates": updates, "samples": samples, "epochs": samples / self.epoch}
        return {**when, **figures, **{k: float(v) for k, v in more.items()}}

    def _updates(self, trace: Trace, given: list[dict[str, np.ndarray]], learning_rate: float) -> Table:
        rows = trace.gradients
        names = [k for k in ("loss", *MEASURES) if given and k in given[0]] or ["loss"]
        measured = {k: np.concatenate([g[k] for g in given])[: len(rows)] if given else np.zeros(0) for k in names}
        columns = {
            "time": trace.time[rows],
            "worker": trace.worker[rows],
            "step": trace.step[rows],
            "staleness": trace.staleness[rows],
            "samples": trace.samples[rows],
            "accepted": trace.accepted[rows],
            "closes": trace.closes[rows] | (trace.kind == "peers"),  # a peer's step is an update of its own
            "learning_rate": learning_rate * self.setting.factor[rows],
        }
        return Table(columns | {k: v.astype(float) for k, v in measured.items()})
