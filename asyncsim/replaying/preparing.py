"""From what a user gives to what an engine needs: checked, and as arrays."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from asyncsim.algorithms import Algorithm, PeerAlgorithm, ServerAlgorithm
from asyncsim.compilation import forget_other_precision
from asyncsim.data import Batches, Data, Sampling, num_samples
from asyncsim.errors import InputError, expect, within
from asyncsim.problems import CustomProblem, Problem
from asyncsim.records import check_field
from asyncsim.replaying.rules import Learning, Setting
from asyncsim.schedules import Schedule
from asyncsim.streams import Purpose, check_seed
from asyncsim.trace import Trace


def check_fit(trace: Trace, algorithm: Algorithm, problem: Problem, seed: int) -> None:
    """Raise InputError unless these are what they should be, and fit together."""
    expect(trace, Trace, "trace")
    expect(algorithm, Algorithm, "algorithm")
    expect(problem, Problem, "problem")
    check_seed(seed)
    if any(leaf is algorithm for leaf in jax.tree.leaves(algorithm)):
        raise InputError(f"{type(algorithm).__name__} is no pytree: decorate it with @algorithm", "algorithm")
    needed, base = ("apply", ServerAlgorithm) if isinstance(algorithm, ServerAlgorithm) else ("local", PeerAlgorithm)
    if getattr(type(algorithm), needed) is getattr(base, needed):
        raise InputError(
            f"{type(algorithm).__name__} has no {needed}(state, ..., context): it would learn nothing", "algorithm"
        )
    if not hasattr(algorithm, "learning_rate"):
        raise InputError(f"{type(algorithm).__name__} has no field learning_rate", "algorithm")
    if algorithm.kind != trace.kind:
        what = f"{type(algorithm).__name__} is a method for kind {algorithm.kind}, the trace is of {trace.kind}"
        raise InputError(what, "algorithm")
    algorithm.check(trace)


def check_precision(algorithm: Algorithm) -> None:
    """Raise InputError if a number is another one in the precision of the replay than its bounds allow: .99999999 is 1
    in float32."""
    kind = jnp.zeros(()).dtype
    for f in dataclasses.fields(algorithm):  # type: ignore[arg-type]
        given = getattr(algorithm, f.name)
        if isinstance(given, float) and not f.metadata.get("static"):
            with np.errstate(over="ignore", under="ignore"):
                stored = float(np.asarray(given).astype(kind))
            try:
                check_field(type(algorithm), f.name, stored)
            except InputError as error:
                raise InputError(f"{given!r} is {stored:g} in {kind}: {error}", "algorithm") from None


def prepare(
    trace: Trace,
    algorithm: Algorithm,
    problem: Problem,
    *,
    seed: int,
    schedule: Schedule,
    cuts: list[int],
    measures: bool,
    sampling: Sampling | None = None,
    statistics: str = "mean",
) -> tuple[Setting, Any]:
    """The setting of an engine, and the test samples, in the precision that JAX is set to."""
    sampling = Sampling() if sampling is None else sampling
    ours = all(type(x).__module__.startswith("asyncsim.") for x in (algorithm, problem))
    if not ours or isinstance(problem, CustomProblem):
        forget_other_precision()
    check_precision(algorithm)
    data, key = problem.data(), jax.random.key(seed)
    params, extra = problem.init(jax.random.fold_in(key, Purpose.INITIALISATION))
    if any(np.asarray(x).dtype.kind != "f" for x in jax.tree.leaves(params)):
        kinds = ", ".join(sorted({str(np.asarray(x).dtype) for x in jax.tree.leaves(params)}))
        raise InputError(f"its parameters should be real numbers (float32, float64), not {kinds}", "problem")
    setting = Setting(
        trace=trace,
        learning=Learning(
            within("algorithm", arrays, algorithm, int, ""),
            arrays(data.train),
            jax.random.fold_in(key, Purpose.DATA),
            jnp.asarray(trace.num_workers),
        ),
        rule=problem.rule,
        params=arrays(params),
        extra=arrays(extra),
        batches=_batches(problem, data, sampling, trace, seed),
        factor=schedule.factor(trace.clock / problem.num_samples),
        cuts=cuts,
        measures=measures,
        statistics=statistics,
    )
    _check_loss(setting)
    return setting, arrays(data.test)


def _batches(problem: Problem, data: Data, sampling: Sampling, trace: Trace, seed: int) -> Batches:
    """The mini-batches. Raises InputError if there are no samples, or no labels, for such a sampling."""
    size, partition = num_samples(data.train), sampling.partition
    if not size and sampling != Sampling():
        raise InputError(f"{problem.name} has no samples to deal out or to put in order", "sampling")

    def drawn() -> Batches:
        labels = problem.labels() if partition.by_label else None
        return Batches(seed, size, trace.batch_size, sampling, trace.num_workers, labels)

    return within("sampling.partition", drawn)


def _check_loss(setting: Setting) -> None:
    def example(params: Any, extra: Any) -> Any:
        batch = jax.tree.map(lambda samples: samples[: setting.trace.batch_size], setting.learning.train)
        return setting.rule.loss(params, extra, batch, setting.learning.key)[0]

    value = jax.eval_shape(example, setting.params, setting.extra)
    if getattr(value, "shape", None) != () or not jnp.issubdtype(value.dtype, jnp.floating):
        shape = getattr(value, "shape", None)
        what = f"an array of shape {shape}; take its mean" if shape else f"{value}"
        raise InputError(f"its loss should be one real number, not {what}", "problem")


def arrays(tree: Any, whole: Any = np.int32, path: str = "problem") -> Any:
    """All leaves as JAX arrays, numbers with a point in the precision of this replay, whole numbers in 32 bits (or, for
    ``whole=int``, in as many). Raises InputError at ``path`` for what is no such number."""

    def convert(x: Any) -> jax.Array:
        x = np.asarray(x)
        if x.dtype.kind == "f":
            return jnp.asarray(x, jnp.zeros(()).dtype)
        if x.dtype.kind not in "iub":
            raise InputError(f"holds {x.dtype}; what a replay computes with are ordinary numbers", path)
        if x.dtype.itemsize > 4 or x.dtype == np.uint32:
            if x.size and (x.max() >= 2**31 or x.min() < -(2**31)):
                raise InputError("holds whole numbers that do not fit in 32 bits", path)
            x = x.astype(np.int32)
        return jnp.asarray(x, whole if x.dtype == np.int32 else None)

    return jax.tree.map(convert, tree)
