"""The battery that every method goes through: one row each."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asyncsim.algorithms import (
    ADPSGD,
    ASGD,
    DCASGD,
    DPSGD,
    NAGASGD,
    SGD,
    SGP,
    SMEGA2,
    SSGD,
    WAGMA,
    Algorithm,
    AllreduceSGD,
    Averaging,
    DanaDC,
    DanaGA,
    DanaSlim,
    DanaZero,
    DelayAdaptive,
    EagerSGD,
    Gaia,
    GapAware,
    InverseDelay,
    LocalSGD,
    MultiASGD,
    OverlapSGP,
    Rennala,
    Ringmaster,
    ServerAlgorithm,
    StalenessAware,
    algorithm,
)
from asyncsim.algorithms.corrections import GapPenalty
from asyncsim.data import Blobs
from asyncsim.errors import InputError
from asyncsim.problems import MLP, Quadratic
from asyncsim.replaying import replay
from asyncsim.replaying.preparing import prepare
from asyncsim.replaying.sizes import memory
from asyncsim.replaying.walk import ENGINES
from asyncsim.runs import pack_tree, unpack_tree
from asyncsim.schedules import Schedule
from asyncsim.testing import check_algorithm, small_trace

METHODS = {
    "sgd": [SGD(0.1), SGD(0.1, 0.9), SGD(0.1, 0.9, nesterov=True)],
    "asgd": [ASGD(0.1), ASGD(0.1, 0.9, weight_decay=1e-3)],
    "ssgd": [SSGD(0.1), SSGD(0.1, 0.9)],
    "smega2": [SMEGA2(0.02), SMEGA2(0.02, advanced=False, momentum_cycle=2, dampening=0.1, weight_decay=1e-3)],
    "nag_asgd": [NAGASGD(0.02), NAGASGD(0.02, weight_decay=1e-3, decay_at="worker")],
    "multi_asgd": [MultiASGD(0.02), MultiASGD(0.02, weight_decay=1e-3)],
    "dana_zero": [DanaZero(0.02), DanaZero(0.02, weight_decay=1e-3)],
    "dana_slim": [DanaSlim(0.02), DanaSlim(0.02, weight_decay=1e-3)],
    "dana_dc": [DanaDC(0.02), DanaDC(0.02, form="adaptive")],
    "dana_ga": [DanaGA(0.02), DanaGA(0.02, weight_decay=1e-3)],
    "gap_aware": [
        GapAware(0.02, weight_decay=1e-3),
        GapAware(0.02, 0.0),
        *(GapAware(0.02, granularity=g) for g in ("layer", "global")),
    ],
    "dc_asgd": [
        DCASGD(0.1, weight_decay=1e-3),
        *(DCASGD(0.02, 0.9, compensation=2.0, form=f) for f in ("adaptive", "absolute")),
    ],
    "staleness_aware": [StalenessAware(0.1), StalenessAware(0.02, 0.9)],
    "inverse_delay": [InverseDelay(0.1), InverseDelay(0.02, 0.9, delay=5.0)],
    "delay_adaptive": [DelayAdaptive(0.1), DelayAdaptive(0.02, 0.9)],
    "rennala": [Rennala(0.1), Rennala(0.1, 0.9)],
    "ringmaster": [Ringmaster(0.1), Ringmaster(0.1, 0.9)],
    "gaia": [Gaia(0.1), Gaia(0.1, 0.9, weight_decay=1e-3, nesterov=True)],
    "averaging": [Averaging(0.1), Averaging(0.1, 0.9, weight_decay=1e-3, nesterov=True)],
    "wagma": [WAGMA(0.1, 0.9)],
    "local_sgd": [LocalSGD(0.1)],
    "d_psgd": [DPSGD(0.1, 0.9)],
    "ad_psgd": [ADPSGD(0.1, 0.9)],
    "sgp": [SGP(0.1), SGP(0.1, 0.9, weight_decay=1e-3)],
    "overlap_sgp": [OverlapSGP(0.1, 0.9)],
    "eager_sgd": [EagerSGD(0.1), EagerSGD(0.1, 0.9, weight_decay=1e-3, nesterov=True)],
    "allreduce_sgd": [AllreduceSGD(0.1)],
}


@pytest.mark.parametrize("method", [m for row in METHODS.values() for m in row], ids=repr)
def test_battery(method, tmp_path):
    """In one test, as they share a compiled program."""
    check_algorithm(method)
    with jax.enable_x64(True):
        state_survives_save_and_load(method, tmp_path / "state.npz")
        run_says_what_its_state_takes(method)


def battery_of(method):
    """The trace and the problem of ``check_algorithm``."""
    steps = method.kind == "server" and type(method).local is not ServerAlgorithm.local
    trace = small_trace(method.kind, local_steps=steps, adds=isinstance(method, EagerSGD))
    return trace, MLP(Blobs(features=5, classes=3, train=50, test=20), hidden=(4,))


def state_survives_save_and_load(method, path):
    """Half a run, all that the replay holds written to a file and read back, the other half: the same bytes."""
    trace, problem = battery_of(method)
    cuts = [len(trace) // 2, len(trace)]
    setting, _ = prepare(trace, method, problem, seed=0, schedule=Schedule(), cuts=cuts, measures=True)
    whole, first, second = (ENGINES["scan", trace.kind](setting) for _ in range(3))
    whole.advance(cuts[0])
    whole.advance(cuts[1])
    first.advance(cuts[0])
    path.write_bytes(pack_tree(first.carry))
    leaves = [jnp.asarray(x) for x in jax.tree.leaves(unpack_tree(path))]
    second.carry, second._at = jax.tree.unflatten(jax.tree.structure(first.carry), leaves), first._at
    second.advance(cuts[1])
    for a, b in zip(jax.tree.leaves(whole.carry), jax.tree.leaves(second.carry), strict=True):
        assert np.array_equal(a, b)


def run_says_what_its_state_takes(method):
    trace, problem = battery_of(method)
    run = replay(trace, method, problem, precision="float64")
    found = memory(method, problem, 3, summed=method.kind == "server")._asdict()
    assert {k: v for k, v in run.summary.items() if k in found} == {
        k: v for k, v in found.items() if method.kind == "server" or k.startswith("worker")
    }


BUFFERS = {  # on the server, for N workers, and on a worker: section by section as the papers count them
    "sgd": (SGD(), 1, 0, 0),
    "sgd with momentum": (SGD(0.1, 0.9), 2, 0, 0),
    "asgd": (ASGD(), 1, 0, 0),
    "ssgd with momentum": (SSGD(0.1, 0.9), 3, 0, 0),
    "nag_asgd": (NAGASGD(), 2, 0, 0),
    "multi_asgd": (MultiASGD(), 1, 1, 0),
    "smega2": (SMEGA2(), 3, 0, 0),
    "dana_zero": (DanaZero(), 2, 1, 0),
    "dana_slim": (DanaSlim(), 1, 0, 1),
    "dana_dc": (DanaDC(), 2, 2, 0),
    "dana_ga": (DanaGA(), 3, 2, 0),
    "gap_aware": (GapAware(), 3, 1, 0),
    "gap_aware, layers": (GapAware(granularity="layer"), 2, 1, 0),
    "dc_asgd": (DCASGD(), 1, 1, 0),
    "dc_asgd, adaptive": (DCASGD(form="adaptive"), 2, 1, 0),
    "dc_asgd with momentum": (DCASGD(0.1, 0.9), 2, 1, 0),
    "staleness_aware": (StalenessAware(), 1, 0, 0),
    "staleness_aware with momentum": (StalenessAware(0.1, 0.9), 2, 0, 0),
    "inverse_delay": (InverseDelay(), 1, 0, 0),
    "delay_adaptive": (DelayAdaptive(), 1, 0, 0),
    "rennala": (Rennala(), 2, 0, 0),
    "ringmaster": (Ringmaster(), 1, 0, 0),
    "gaia": (Gaia(0.1, 0.9), 0, 0, 3),
    "averaging": (Averaging(0.1, 0.9), 0, 0, 2),
    "wagma": (WAGMA(0.1, 0.9), 0, 0, 2),
    "sgp": (SGP(0.1), 0, 0, 1),
    "eager_sgd": (EagerSGD(0.1, 0.9), 0, 0, 3),
    "allreduce_sgd": (AllreduceSGD(0.1), 0, 0, 2),
}


@pytest.mark.parametrize("num_workers", [1, 8, 64])
@pytest.mark.parametrize("case", BUFFERS)
def test_memory_is_that_of_the_papers(case, num_workers):
    """theta + what is kept besides, + so many for each worker; counters are in the bytes alone."""
    method, base, each, own = BUFFERS[case]
    problem = MLP(Blobs(features=6, classes=3), hidden=(5,))
    found = memory(
        method, problem, num_workers, summed=method.kind == "server" and method.protocol in ("sync", "rennala")
    )
    assert (found.server_buffers, found.worker_buffers) == (base + each * num_workers, own)
    size = 4 * (6 * 5 + 5 + 5 * 3 + 3)
    counters = {"smega2": 4, "sgp": 4, "dana_ga": 8, "gap_aware": 8, "gap_aware, layers": 8 + 4 * 4}.get(case, 0)
    on_worker = counters if method.kind == "peers" else 0
    assert found.server_bytes == size * (base + each * num_workers) + counters - on_worker
    assert found.worker_bytes == size * own + on_worker


@pytest.mark.parametrize(
    ("params", "size"),
    [({"x": np.zeros(())}, 1), ({"x": np.zeros(()), "y": np.zeros((2, 3))}, 7), ({"x": np.zeros((0, 3))}, 0), ({}, 0)],
)
def test_memory_of_odd_models(params, size):
    """Single numbers and empty arrays among the parameters."""
    found = memory(SMEGA2(), params, 5)
    assert found == (3, 4 * (3 * size + 1), 0, 0)
    assert memory(DanaGA(), params, 5)[:2] == (13, 4 * (13 * size + 2))
    assert memory(DanaSlim(), params, 5) == (1, 4 * size, 1, 4 * size)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((SMEGA2, {}, 2), r"algorithm: expected an Algorithm, got the class SMEGA2; make one: SMEGA2\(\)"),
        ((SMEGA2(), {}, 0), "num_workers: expected a whole number >= 1, got 0"),
        ((SMEGA2(), {}, 2.5), "num_workers: expected a whole number >= 1, got 2.5"),
        ((SMEGA2(), {}, True), "num_workers: expected a whole number >= 1, got True"),
        ((SMEGA2(), MLP, 2), "problem: expected a Problem, or its parameters, got <class"),
        ((SMEGA2(), None, 2), "problem: expected a Problem, or its parameters, got None"),
        ((SMEGA2(), "mlp", 2), "problem: holds <U3; what a replay computes with are ordinary numbers"),
    ],
)
def test_memory_refuses(arguments, message):
    with pytest.raises(InputError, match=message):
        memory(*arguments)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (lambda: GapAware(square_decay=0.99999999), "0.99999999 is 1 in float32: .*>= 0 and < 1, got 1"),
        (lambda: SMEGA2(momentum=0.99999999), "0.99999999 is 1 in float32: .*>= 0 and < 1, got 1"),
        (lambda: InverseDelay(delay=1e39), "1e.39 is inf in float32: "),
        (lambda: DCASGD(compensation=1e300), "1e.300 is inf in float32: "),
    ],
)
def test_a_number_that_is_another_in_the_precision_of_the_replay_is_refused(method, message):
    trace, problem = small_trace("server", gradients=5, local_steps=False), Quadratic()
    with pytest.raises(InputError, match=f"^algorithm: {message}"):
        replay(trace, method(), problem)
    assert np.isfinite(replay(trace, method(), problem, precision="float64").updates["loss"][0])


@algorithm
class Both(SMEGA2, GapPenalty):
    """SMEGA2 of gradients that are penalised by their gap."""


@algorithm
class Clash(Both):
    """Calls what it keeps as its correction does."""

    def buffers(self, params):
        return {**super().buffers(params), "count": 0}


def test_smega2_composes_with_a_correction():
    check_algorithm(Both())
    trace, problem = small_trace("server", num_workers=4, local_steps=False, seed=3), Quadratic(eigenvalues=(1.0, 0.1))
    a, b = (replay(trace, m, problem, precision="float64") for m in (SMEGA2(0.02), Both(0.02, epsilon=1e30)))
    assert a.updates["loss"] == pytest.approx(b.updates["loss"], abs=1e-12)
    with pytest.raises(InputError, match="algorithm: Clash keeps two things as count"):
        replay(trace, Clash(), problem)


def test_a_cycle_has_a_bound():
    with pytest.raises(InputError, match="momentum_cycle: expected a whole number"):
        SMEGA2(momentum_cycle=2**31)


def test_every_registered_method_has_its_row():
    assert set(METHODS) == {name for name, cls in Algorithm.members.items() if cls.__module__.startswith("asyncsim.")}
    for name, row in METHODS.items():
        assert all(m.name == name for m in row)


@algorithm
class Fine(ServerAlgorithm):
    """theta = theta - eta g."""

    learning_rate: float = 0.1

    def apply(self, state, message, context):
        return {"params": _descend(state["params"], message, context.learning_rate)}


@algorithm
class Steers(Fine):
    """Uses a traced number in Python."""

    def apply(self, state, message, context):
        return super().apply(state, message, context._replace(learning_rate=float(self.learning_rate)))


@algorithm
class Divides(Fine):
    """Normalises by the gradient's norm without a guard."""

    def apply(self, state, message, context):
        norm = jnp.sqrt(sum(jnp.vdot(x, x) for x in _leaves(message)))
        return super().apply(state, _scale(message, 1 / norm), context)


class Undecorated(ServerAlgorithm):
    """theta = theta - eta g."""

    learning_rate = 0.1


@algorithm
class Silent(Fine):
    learning_rate: float = 0.1


def _leaves(tree):
    return jax.tree.leaves(tree)


def _scale(tree, factor):
    return jax.tree.map(lambda x: factor * x, tree)


def _descend(params, gradient, rate):
    return jax.tree.map(lambda x, g: x - rate * g, params, gradient)


@algorithm
class Exacting(Fine):
    """Takes its numbers for arrays, as they are in a replay."""

    def init(self, params, num_workers):
        return {"params": params, "rate": self.learning_rate.astype(float)}

    def receive(self, state, kept, message, context):
        return kept, _scale(message, 1 / (1 + context.staleness.astype(float)))

    def apply(self, state, message, context):
        return {**state, "params": _descend(state["params"], message, context.learning_rate)}


def test_memory_asks_a_method_as_a_replay_does():
    check_algorithm(Exacting())
    assert memory(Exacting(), {"x": np.zeros(3)}, 2, summed=True).server_bytes == 4 * (3 + 1 + 3)


def test_a_users_method_passes():
    check_algorithm(Fine(0.2))


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (Divides(), "NaN where the gradient is zero"),
        (Undecorated(), "decorate it with @algorithm"),
        (Silent(), "no docstring"),
        (object(), "neither a ServerAlgorithm nor a PeerAlgorithm"),
    ],
)
def test_what_breaks_the_contract_is_named(method, message):
    with pytest.raises(AssertionError, match=message):
        check_algorithm(method)


def test_a_traced_number_used_in_python_is_named():
    with pytest.raises(AssertionError, match="Steers uses a traced number in Python"):
        check_algorithm(Steers())


@algorithm
class Whole(Fine):
    """Has a whole number and a flag among its traced fields, and Python numbers in its state."""

    period: int = 5
    flag: bool = True

    def init(self, params, num_workers):
        return {"params": params, "count": 0, "level": 0.0}

    def apply(self, state, message, context):
        rate = context.learning_rate * jnp.where((context.step % self.period == 0) & self.flag, 2.0, 1.0)
        level = state["level"] + rate
        return {"params": _descend(state["params"], message, rate), "count": state["count"] + 1, "level": level}


def test_whole_numbers_are_fine():
    check_algorithm(Whole())


@algorithm
class Half(Fine):
    """The gradient travels in half precision."""

    def outgoing(self, own, gradient, context):
        return own, _cast(gradient, jnp.bfloat16)


@algorithm
class HalfPeers(Averaging):
    """The model travels in half precision, with a whole number beside it."""

    def outgoing(self, state, context):
        return state, {"params": _cast(state["params"], jnp.bfloat16), "step": jnp.int32(context.step)}

    def merge(self, state, mix, context):
        take = mix["step"] / (1.0 + mix["step"])
        return super().merge(state, mix["params"], context._replace(keep=1 - take, take=take))

    def restart(self, mix):
        return self.init(mix["params"])


def _cast(tree, kind):
    return jax.tree.map(lambda x: x.astype(kind), tree)


@pytest.mark.parametrize("method", [Half(), HalfPeers(0.1)], ids=repr)
def test_messages_may_travel_in_other_types(method):
    check_algorithm(method)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ASGD(-1.0), "learning_rate: expected a number > 0, got -1"),
        (lambda: ASGD(0.1, 1.0), "momentum: expected a number >= 0 and < 1, got 1"),
        (lambda: ASGD(0.1, "much"), "momentum: expected a number >= 0 and < 1, got 'much'"),
        (lambda: SGD(0.1, nesterov=True), "nesterov: needs a momentum"),
    ],
)
def test_wrong_hyper_parameters(make, message):
    with pytest.raises(InputError, match=message):
        make()
