"""Checks that your own algorithm keeps to the contract: call ``check_algorithm`` in your tests or in a notebook."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from asyncsim.algorithms import Algorithm, ServerAlgorithm
from asyncsim.data import Blobs
from asyncsim.errors import InputError
from asyncsim.problems import MLP, Quadratic
from asyncsim.recorder import Recorder
from asyncsim.replaying import replay
from asyncsim.replaying.pools import PROGRAMS
from asyncsim.runs import MEASURES, Run
from asyncsim.trace import Trace

GRADIENTS = 40


def small_trace(
    kind: str, *, num_workers: int = 3, gradients: int = GRADIENTS, seed: int = 0, local_steps: bool = True
) -> Trace:
    """A short random trace with every verb that a method of this kind may meet.

    Servers: arrivals in random order, updates of one or two gradients, dropped and cancelled gradients, local steps (if
    wanted), a worker that starts afresh. Peers: gradients in random order, between which pairs average their models,
    also while a gradient is under way; messages that are old or under way; a peer that starts afresh.
    """
    rng = np.random.default_rng(seed)
    log = Recorder(num_workers, kind)
    log.workload = type(log.workload)(batch_size=4)
    reads = [log.read(i) for i in range(num_workers)]
    last = [log.publish(i) for i in range(num_workers)] if kind == "peers" else []
    open_update = False
    for k in range(gradients):
        log.now = float(k + 1)
        i, luck = int(rng.integers(num_workers)), rng.random()
        if kind == "server":
            if luck < 0.1:
                log.apply(i, reads[i], accepted=False)
            elif luck < 0.2:
                log.cancel(i, reads[i])
            elif luck < 0.3 and local_steps:
                log.step(i, reads[i])
                continue
            else:
                open_update = not open_update and bool(rng.random() < 0.3)
                log.apply(i, reads[i], weight=float(rng.choice([0.5, 1.0])), closes=not open_update)
            reads[i] = log.read(i)
            if luck > 0.95:
                log.reset(i, reads[i])
        else:
            j = int((i + 1) % num_workers)
            if luck < 0.1:
                log.cancel(i, reads[i])
            else:
                log.step(i, reads[i])
            if luck > 0.4:
                last[i] = log.publish(i, keep=float(rng.choice([0.5, 1.0])))
                mix = log.mix([last[i], last[j]], [0.5, 0.5])
                log.merge(i, mix, keep=0.25, take=0.75)
                if luck > 0.7 and j != i:
                    log.merge(j, mix)
            if luck > 0.95:
                log.reset(i, log.mix([last[j]], [1.0]))
            reads[i] = log.read(i)
    return log.trace()


def check_algorithm(algorithm: Algorithm) -> None:
    """Raise AssertionError, saying what is wrong, unless the algorithm keeps to its contract.

    It is a pytree; it survives every verb with finite numbers, also where the gradient is zero; both ways of replaying
    agree in float64; other hyper-parameters compile nothing; the state keeps its structure; it says what it does.
    """
    try:
        _check(algorithm)
    except InputError as error:
        raise AssertionError(str(error)) from error
    except jax.errors.ConcretizationTypeError as error:
        raise AssertionError(
            f"{type(algorithm).__name__} uses a traced number in Python (in an if, or as float(x)): use jnp.where, or "
            "make its field static()"
        ) from error


def _check(algorithm: Algorithm) -> None:
    cls = type(algorithm)
    assert not isinstance(algorithm, type), f"got the class {algorithm}; make one: check_algorithm({algorithm}())"
    assert isinstance(algorithm, Algorithm), f"{cls.__name__} is neither a ServerAlgorithm nor a PeerAlgorithm"
    leaves, shape = jax.tree.flatten(algorithm)
    is_tree = not any(x is algorithm for x in leaves) and jax.tree.unflatten(shape, leaves) == algorithm
    assert is_tree, f"{cls.__name__} is no pytree of its fields: decorate it with @algorithm"
    assert hasattr(algorithm, "learning_rate"), f"{cls.__name__} has no field learning_rate"
    assert all(isinstance(x, int | float) or hasattr(x, "dtype") for x in leaves), (
        f"{cls.__name__} has fields that are not numbers: make them static()"
    )
    steps = isinstance(algorithm, ServerAlgorithm) and type(algorithm).local is not ServerAlgorithm.local
    trace = small_trace(algorithm.kind, local_steps=steps)
    problem = MLP(Blobs(features=5, classes=3, train=50, test=20), hidden=(4,))
    scan, rows = (replay(trace, algorithm, problem, engine=e, precision="float64") for e in ("scan", "rows"))
    _same(scan, rows, 1e-10)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(scan.params)), f"{cls.__name__} leaves the finite numbers"
    before = len(PROGRAMS)
    replay(trace, jax.tree.map(_another, algorithm), problem, precision="float64")
    assert len(PROGRAMS) == before, (
        f"other hyper-parameters of {cls.__name__} compile anew: is a traced field used in Python?"
    )
    # without any gradient nothing may turn into NaN (a norm in a denominator)
    still = replay(trace, algorithm, Quadratic(eigenvalues=(0.0, 0.0)), precision="float64")
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(still.params)), (
        f"{cls.__name__} gives NaN where the gradient is zero"
    )
    # a dataclass without a docstring gets its signature for one
    documented = bool(cls.__doc__) and not (cls.__doc__ or "").startswith(f"{cls.__name__}(")
    assert documented, f"{cls.__name__} has no docstring: give the rule and its source"


def _another(x: Any) -> Any:
    """Another value of the same type."""
    return x if isinstance(x, bool) else x + 1 if isinstance(x, int) else 0.9 * x


def _same(a: Run, b: Run, tolerance: float) -> None:
    """Both runs have the same numbers, to a tolerance."""
    for name in (k for k in ("loss", *MEASURES) if k in a.updates):
        off = _distance(a.updates[name], b.updates[name])
        assert off <= tolerance, f"{name}: the two ways of replaying differ by {off:.3g}"
    for x, y in zip(jax.tree.leaves(a.params), jax.tree.leaves(b.params), strict=True):
        off = _distance(x, y)
        assert off <= tolerance, f"final parameters: the two ways of replaying differ by {off:.3g}"


def _distance(a: Any, b: Any) -> float:
    return float(np.max(np.abs(np.asarray(a) - np.asarray(b)), initial=0.0))
