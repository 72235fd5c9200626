"""The learning half: turns a trace, an algorithm and a problem into a run."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from asyncsim.algorithms import Algorithm
from asyncsim.errors import InputError, expect
from asyncsim.problems import Problem
from asyncsim.problems.base import num_samples
from asyncsim.problems.batches import Batches
from asyncsim.replaying.by_row import ByRowPeers, ByRowServer
from asyncsim.replaying.evaluation import Every, Target, evaluate
from asyncsim.replaying.peer_program import CompiledPeers
from asyncsim.replaying.rules import MEASURES, Learning, Setting
from asyncsim.replaying.server_program import CompiledServer
from asyncsim.runs import Run, summarise
from asyncsim.schedules import Schedule
from asyncsim.streams import Purpose, check_seed
from asyncsim.tables import Table
from asyncsim.trace import Trace
from asyncsim.vocabulary import SPANS

ENGINES: dict[tuple[str, str], Any] = {
    ("scan", "server"): CompiledServer,
    ("scan", "peers"): CompiledPeers,
    ("rows", "server"): ByRowServer,
    ("rows", "peers"): ByRowPeers,
}


# figures of a run that a problem's own may not be mistaken for
RESERVED = {"time", "updates", "samples", "epochs", "spread", "ended", "seconds", "throughput", "time_to_target"} | {
    *("gradients", "dropped", "cancelled", "staleness_mean", "staleness_max", "bytes_sent"),
    *MEASURES,
    *(f"{kind}_share" for kind in SPANS),
}


def replay(
    trace: Trace,
    algorithm: Algorithm,
    problem: Problem,
    *,
    seed: int = 0,
    schedule: Schedule | None = None,
    every: Every | None = None,
    target: Target | None = None,
    measures: bool = True,
    engine: Literal["scan", "rows"] = "scan",
    precision: Literal["float32", "float64"] = "float32",
    progress: bool = False,
    label: str = "",
) -> Run:
    """Learn along a trace: real gradients on exactly the stale parameters that its timing implies.

    Arguments:
        trace: what happens when, from ``record`` or by hand
        algorithm: what each event does to the numbers, such as ``ASGD(learning_rate=0.1)``
        problem: what is learned: ``MLP()``, ``Quadratic()``, a ``CustomProblem``
        seed: fixes initialisation and mini-batches
        schedule: moves the learning rate
        every: when to evaluate (by default about 50 times, evenly in updates)
        target: a test figure to reach
        measures: gap and norms of each gradient; without them the replay is faster
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
    for name, value, kind in (
        ("trace", trace, Trace),
        ("algorithm", algorithm, Algorithm),
        ("problem", problem, Problem),
        ("schedule", schedule or Schedule(), Schedule),
        ("every", every or Every(updates=1), Every),
        ("target", target or Target(value=0.0), Target),
    ):
        expect(value, kind, name)
    if any(leaf is algorithm for leaf in jax.tree.leaves(algorithm)):
        raise InputError(f"{type(algorithm).__name__} is no pytree: decorate it with @algorithm", "algorithm")
    if algorithm.kind != trace.kind:
        what = f"{type(algorithm).__name__} is a method for kind {algorithm.kind}, the trace is of {trace.kind}"
        raise InputError(what, "algorithm")
    if engine not in ("scan", "rows"):
        raise InputError(f"expected 'scan' or 'rows', got {engine!r}", "engine")
    if precision not in ("float32", "float64"):
        raise InputError(f"expected 'float32' or 'float64', got {precision!r}", "precision")
    check_seed(seed)
    algorithm.check(trace)
    every = every or Every(updates=max(1, trace.summary()["updates"] // 50))
    with jax.enable_x64(precision == "float64"):
        walk = Walk(trace, algorithm, problem, seed, schedule or Schedule(), every, target, measures, engine)
        label = label or described(algorithm)
        # None: no bar where standard error is not a terminal
        hidden = None if progress else True
        with tqdm(total=len(trace.gradients), desc=label, unit="gradient", disable=hidden, leave=False) as bar:
            return walk.run(bar, label)


def described(algorithm: Algorithm) -> str:
    """``asgd momentum=0.9``: the name, and the settings that are not the defaults."""
    fields = dataclasses.fields(algorithm)  # type: ignore[arg-type]
    changed = [f"{f.name}={getattr(algorithm, f.name)}" for f in fields if getattr(algorithm, f.name) != f.default]
    return " ".join([algorithm.name, *changed])


class Walk:
    """One replay: what is fixed, and the walk from one evaluation to the next."""

    def __init__(
        self,
        trace: Trace,
        algorithm: Algorithm,
        problem: Problem,
        seed: int,
        schedule: Schedule,
        every: Every,
        target: Target | None,
        measures: bool,
        engine: str,
    ):
        self.trace, self.algorithm, self.problem, self.target, self.measures = (
            trace,
            algorithm,
            problem,
            target,
            measures,
        )
        self.epoch = problem.num_samples
        self.factor = schedule.factor(trace.clock / self.epoch)
        self.cuts = every.cuts(trace, self.epoch)
        data = problem.data()
        train, self.test = _arrays(data.train), _arrays(data.test)
        key = jax.random.key(seed)
        params, extra = problem.init(jax.random.fold_in(key, Purpose.INITIALISATION))
        self.start = _arrays(params), _arrays(extra)
        leaves = _arrays(jax.tree.map(np.asarray, algorithm))
        learning = Learning(leaves, train, jax.random.fold_in(key, Purpose.DATA))
        batches = Batches(seed, num_samples(data.train), trace.batch_size)
        cuts = sorted({cut for cut, _ in self.cuts})
        self.setting = Setting(trace, learning, problem.rule, *self.start, batches, self.factor, cuts, measures)
        self.engine = ENGINES[engine, trace.kind]
        value = jax.eval_shape(self._example_loss, *self.start)[0]
        if getattr(value, "shape", None) != () or not jnp.issubdtype(value.dtype, jnp.floating):
            raise InputError(f"its loss should be one real number, not {value}", "problem")
        figures = jax.eval_shape(problem.rule.metrics, *self.start, self.test)
        taken = RESERVED & set(figures)
        if taken:
            raise InputError(f"its figures may not be called {', '.join(sorted(taken))}", "problem")
        if target is not None:
            target.check([*figures, *(["spread"] if trace.kind == "peers" else [])])

    def _example_loss(self, params: Any, extra: Any) -> Any:
        batch = jax.tree.map(lambda samples: samples[: self.trace.batch_size], self.setting.learning.train)
        return self.problem.rule.loss(params, extra, batch, self.setting.learning.key)

    def run(self, bar: Any, label: str) -> Run:
        trace, rows = self.trace, self.trace.gradients
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
        updates = self._updates(trace, given)
        table = Table({k: np.array([e[k] for e in evals]) for k in evals[0]})
        params = jax.tree.map(np.asarray, engine.model()[0])
        return Run(
            label=label,
            trace=trace,
            updates=updates,
            evals=table,
            params=params,
            summary=summarise(trace, updates, table, ended, self.target is not None, reached),
        )

    def _evaluate(self, engine: Any, cut: int, now: float) -> dict[str, float]:
        params, extra, more = engine.model()
        figures = evaluate(self.problem.rule, params, extra, self.test)
        updates, samples = (int(c[cut - 1]) if cut else 0 for c in (self.trace.updates, self.trace.samples))
        when = {"time": now, "updates": updates, "samples": samples, "epochs": samples / self.epoch}
        return {**when, **figures, **{k: float(v) for k, v in more.items()}}

    def _updates(self, trace: Trace, given: list[dict[str, np.ndarray]]) -> Table:
        rows = trace.gradients
        names = ("loss", *(MEASURES if self.measures else ()))
        measured = {k: np.concatenate([g[k] for g in given])[: len(rows)] if given else np.zeros(0) for k in names}
        rate = np.asarray(self.algorithm.learning_rate, float) * self.factor
        columns = {
            "time": trace.time[rows],
            "worker": trace.worker[rows],
            "step": trace.step[rows],
            "staleness": trace.staleness[rows],
            "samples": trace.samples[rows],
            "accepted": trace.accepted[rows],
            "closes": trace.closes[rows] | (trace.kind == "peers"),  # a peer's step is an update of its own
            "learning_rate": rate[rows],
        }
        return Table(columns | {k: v.astype(float) for k, v in measured.items()})


def _arrays(tree: Any) -> Any:
    """All leaves as JAX arrays, numbers with a point in the precision of this replay, whole numbers in 32 bits."""

    def convert(x: Any) -> jax.Array:
        x = np.asarray(x)
        if x.dtype.kind == "f":
            return jnp.asarray(x, jnp.zeros(()).dtype)
        if x.dtype.kind not in "iub":
            raise InputError(f"holds {x.dtype}; parameters and samples are numbers", "problem")
        if x.dtype.itemsize > 4 or x.dtype == np.uint32:
            if x.size and (x.max() >= 2**31 or x.min() < -(2**31)):
                raise InputError("holds whole numbers that do not fit in 32 bits", "problem")
            x = x.astype(np.int32)
        return jnp.asarray(x)

    return jax.tree.map(convert, tree)
