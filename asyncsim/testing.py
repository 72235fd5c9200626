"""Checks that your own algorithm, or protocol, keeps to the contract.

Call ``check_algorithm`` or ``check_protocol`` in your tests or in a notebook.
"""

from __future__ import annotations

import itertools
from typing import Any

import jax
import numpy as np

from asyncsim.algorithms import Algorithm, ServerAlgorithm
from asyncsim.data import Blobs
from asyncsim.errors import Deadlock, InputError
from asyncsim.problems import MLP, Quadratic
from asyncsim.recorder import Recorder
from asyncsim.replaying import replay
from asyncsim.replaying.pools import PROGRAMS
from asyncsim.runs import MEASURES, Run
from asyncsim.trace import ARRAYS, Trace
from asyncsim.vocabulary import READ

GRADIENTS = 40


def small_trace(
    kind: str,
    *,
    num_workers: int = 3,
    gradients: int = GRADIENTS,
    seed: int = 0,
    local_steps: bool = True,
    adds: bool = False,
) -> Trace:
    """A short random trace with every verb that a method of this kind may meet.

    Servers: arrivals in random order, updates of one or two gradients, dropped and cancelled gradients, local steps (if
    wanted), a worker that starts afresh. Peers: gradients in random order, between which pairs average their models,
    also while a gradient is under way; messages that are old or under way; a peer that starts afresh. ``adds``: what is
    mixed is added to one's own, in place of averages.
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
                last[i] = log.publish(i, keep=float(rng.choice([0.0 if adds else 0.5, 1.0])))
                mix = log.mix([last[i], last[j]], [0.5, 0.5])
                log.merge(i, mix, keep=1.0 if adds else 0.25, take=0.75)
                if luck > 0.7 and j != i:
                    log.merge(j, mix, keep=float(adds))
            if luck > 0.95:
                log.reset(i, log.mix([last[j]], [1.0]))
            reads[i] = log.read(i)
    return log.trace()


def check_protocol(protocol: Any) -> None:
    """Raise AssertionError, saying what is wrong, unless the protocol runs well wherever it says that it can.

    On clusters of 1 to 5 workers, with equal and with random step times, without a network, with latency, and with
    interfaces and a server that are slow (between peers: also in closed form): it comes to an end, twice with the same
    trace; each gradient that was begun is accepted, dropped, cancelled or in flight at the end; spans tile each
    worker's time. One that is steered gets decisions that change.
    """
    from asyncsim.cluster import Cluster, Constant, Gamma, Host, Servers, Tensors, Workers
    from asyncsim.protocols import Protocol
    from asyncsim.recording import Recording, Stop
    from asyncsim.workload import Workload

    assert isinstance(protocol, Protocol), f"expected a Protocol, got {protocol!r}"
    slow = Host(bandwidth=1e5, copy_bandwidth=1e6)
    networks: list[tuple[Host, dict[str, Any]]] = [(Host(), {}), (Host(latency=0.1), {})]
    networks.append((slow, {"servers": Servers(2, slow, update_seconds=Constant(0.1))}))
    if protocol.kind == "peers":
        networks.append((slow, {"sharing": "rounds", "buckets": Tensors()}))
    ran = 0
    for n in (1, 2, 3, 4, 5):
        for step_time in (Constant(1.0), Gamma(1.0, 0.7)):
            for host, more in networks:
                cluster = Cluster((Workers(step_time, n, host),), **more)
                try:
                    protocol.check(n)
                except InputError:
                    continue  # it says that it does not
                traces = []
                for _ in range(2):
                    workload = Workload(tensor_bytes=(10_000, 20_000))
                    recording = Recording(cluster, protocol, workload, stop=Stop(seconds=12.0))
                    try:
                        for decision in itertools.cycle((0.0, 0.3, 1.0)):
                            if (question := recording.go_on()) is None:
                                break
                            question[1].succeed(decision)
                    except Deadlock as error:
                        raise AssertionError(f"{protocol} on {n} workers: {error}") from None
                    traces.append(recording.trace())
                for name in ARRAYS:
                    same = np.array_equal(*(getattr(trace, name) for trace in traces))
                    assert same, f"{protocol} on {n} workers: {name} differs between two equal recordings"
                nothing_is_lost(traces[0])
                ran += 1
    assert ran, f"{protocol} runs on none of 1 to 5 workers"


def nothing_is_lost(trace: Trace) -> None:
    """Raise AssertionError unless each gradient of each worker that was begun was accepted, dropped, cancelled, or is
    in flight at the end, and spans, where there are any, tile each worker's time."""
    uses = trace.source[np.concatenate([trace.gradients, np.flatnonzero(trace.cancels)])]
    unused = np.setdiff1d(np.flatnonzero(trace.verb == READ), np.concatenate([uses, trace.in_flight]))
    assert not len(unused), (
        f"worker {trace.worker[unused[0]]} read at {trace.time[unused[0]]} s (row {unused[0]}), and nothing came of "
        "it: no gradient there was applied, made a local step, was cancelled, or is in flight at the end"
    )
    spans = trace.spans
    for worker in np.unique(spans["worker"]):
        mine = spans["worker"] == worker
        start, end = spans["start"][mine], spans["end"][mine]
        tiles = start[0] == 0 and end[-1] == trace.end and np.array_equal(start[1:], end[:-1])
        assert tiles, f"the spans of worker {worker} do not tile its time"


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
    if algorithm.kind == "peers":
        try:
            algorithm.check(trace)
        except InputError:  # it averages no models
            trace = small_trace("peers", adds=True)
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
