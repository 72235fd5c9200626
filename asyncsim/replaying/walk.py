"""The learning half: turns a trace, an algorithm and a problem into a run."""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from asyncsim.algorithms import Algorithm
from asyncsim.errors import InputError
from asyncsim.problems import Problem
from asyncsim.problems.base import num_samples
from asyncsim.problems.batches import Batches
from asyncsim.replaying.by_row import ByRowPeers, ByRowServer
from asyncsim.replaying.evaluation import Every, Target, evaluate
from asyncsim.replaying.peer_program import CompiledPeers
from asyncsim.replaying.rules import MEASURES, Learning
from asyncsim.replaying.server_program import CompiledServer
from asyncsim.runs import Run, summarise
from asyncsim.schedules import Schedule
from asyncsim.streams import Purpose
from asyncsim.tables import Table
from asyncsim.trace import Trace
from asyncsim.vocabulary import APPLY

ENGINES = {
    ("scan", "server"): CompiledServer,
    ("scan", "peers"): CompiledPeers,
    ("rows", "server"): ByRowServer,
    ("rows", "peers"): ByRowPeers,
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

    ``seed`` fixes initialisation and mini-batches; ``schedule`` moves the learning rate; ``every`` says when to
    evaluate (by default each epoch) and ``target`` what to reach. ``measures`` switches gap and norms per gradient.
    ``engine``: ``"scan"``, a compiled loop, or ``"rows"``, one call per row (for models that use ``lax.conv``); the
    results agree to rounding. ``progress`` draws a bar on standard error.

    A loss that is not finite ends the run, and is recorded as its result. Raises InputError where trace, algorithm and
    problem do not fit together.
    """
    if algorithm.kind != trace.kind:
        raise InputError(
            f"{type(algorithm).__name__} is a method for kind {algorithm.kind}, the trace is of {trace.kind}"
        )
    if engine not in ("scan", "rows"):
        raise InputError(f"expected 'scan' or 'rows', got {engine!r}", "engine")
    if precision not in ("float32", "float64"):
        raise InputError(f"expected 'float32' or 'float64', got {precision!r}", "precision")
    with jax.enable_x64(precision == "float64"):
        schedule, every = schedule or Schedule(), every or Every(epochs=1)
        walk = Walk(trace, algorithm, problem, seed, schedule, every, target, measures, engine)
        label = label or algorithm.name
        with tqdm(total=len(trace.gradients), desc=label, unit="gradient", disable=not progress, leave=False) as bar:
            return walk.run(bar, label)


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
        self.learning = Learning(leaves, train, jax.random.fold_in(key, Purpose.DATA))
        self.batches = Batches(seed, num_samples(data.train), trace.batch_size)
        self.engine = ENGINES[engine, trace.kind]
        if target is not None:
            figures = jax.eval_shape(problem.rule.metrics, *self.start, self.test)
            target.check([*figures, *(["spread"] if trace.kind == "peers" else [])])

    def begin(self, cuts: list[int]) -> Any:
        """An engine at the first row."""
        rule, fixed = self.problem.rule, (self.batches, self.factor, cuts, self.measures)
        return self.engine(self.trace, self.learning, rule, self.start, *fixed)

    def run(self, bar: Any, label: str) -> Run:
        trace, rows = self.trace, self.trace.gradients
        engine = self.begin(sorted({cut for cut, _ in self.cuts}))
        given: list[dict[str, np.ndarray]] = []
        evals: list[dict[str, float]] = []
        ended, reached, done = "budget", None, 0
        for cut, now in self.cuts:
            measured = engine.advance(cut)
            if measured:
                given.append(measured)
                bar.update(len(measured["loss"]))
                broken = np.flatnonzero(~np.isfinite(measured["loss"]))
                if len(broken):
                    # the run ends right there: do it again up to that row, as the loop has gone past it
                    row = int(rows[done + broken[0]])
                    trace, ended = trace.head(row + 1), "diverged"
                    engine = self.begin([0, row + 1])
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
            "closes": trace.closes[rows] if trace.kind == "server" else trace.verb[rows] != APPLY,
            "learning_rate": rate[rows],
        }
        return Table(columns | {k: v.astype(float) for k, v in measured.items()})


def _arrays(tree: Any) -> Any:
    """All leaves as JAX arrays, numbers with a point in the precision of this replay, whole numbers in 32 bits."""

    def convert(x: Any) -> jax.Array:
        x = np.asarray(x)
        if x.dtype.kind == "f":
            return jnp.asarray(x, jnp.zeros(()).dtype)
        return jnp.asarray(x, jnp.int32) if x.dtype.kind in "iu" and x.dtype.itemsize > 4 else jnp.asarray(x)

    return jax.tree.map(convert, tree)
