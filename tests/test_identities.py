"""Server methods against their papers' rules in NumPy, against each other where they should be equal, and by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import numpy_server
import pytest

import asyncsim
from asyncsim.algorithms import (
    ASGD,
    DCASGD,
    NAGASGD,
    SGD,
    SMEGA2,
    SSGD,
    DanaDC,
    DanaGA,
    DanaSlim,
    DanaZero,
    DelayAdaptive,
    GapAware,
    InverseDelay,
    MultiASGD,
    StalenessAware,
)
from asyncsim.data import Blobs
from asyncsim.data.sampling import Batches
from asyncsim.problems import MLP
from asyncsim.recorder import Recorder
from asyncsim.replaying import replay
from asyncsim.replaying.preparing import prepare
from asyncsim.replaying.walk import ENGINES
from asyncsim.runs import MEASURES
from asyncsim.schedules import Schedule
from asyncsim.trace import Trace

RNG = np.random.default_rng(7)
MATRIX = (lambda q: q @ np.diag([1.5, 1.0, 0.5, 0.2, 0.05]) @ q.T)(np.linalg.qr(RNG.normal(size=(5, 5)))[0])
START, CENTRE = RNG.normal(size=5), RNG.normal(size=5)
WOBBLE = RNG.normal(size=(40, 5))  # the samples: what each adds to the gradient
IRREGULAR = [int(i) for i in np.random.default_rng(3).choice(4, 80, p=[0.4, 0.3, 0.2, 0.1])]
IN_TURN = [k % 4 for k in range(80)]


def problem(curvature=1.0):
    """x'Ax/2 and a wobble from the samples, in two arrays; without curvature gradients are the same everywhere."""

    def loss(params, batch):
        x = jnp.concatenate([params["a"], params["b"].reshape(-1)])
        return curvature * ((x - CENTRE) @ MATRIX @ (x - CENTRE) / 2 + 0.1 * jnp.sum(jnp.cos(x))) + batch.mean(0) @ x

    return asyncsim.CustomProblem(loss, {"a": START[:2], "b": START[2:, None]}, WOBBLE)


def trace_of(arrivals, batch_size=4):
    return Trace.from_arrivals(arrivals, batch_size=batch_size, num_workers=4)


def history(trace, method, what=None, schedule=None, measured=None):
    """(updates, d) the parameters after each update, and (updates, d) what is sent then.

    What is measured on each gradient goes to the dict ``measured``.
    """
    with jax.enable_x64(True):
        schedule, cuts = schedule or Schedule(), [*(np.flatnonzero(trace.closes) + 1), len(trace)]
        on = {"seed": 1, "cuts": cuts, "measures": measured is not None}
        setting, _ = prepare(trace, method, what or problem(), schedule=schedule, **on)
        running, params, sent = ENGINES["rows", "server"](setting), [], []
        for cut in cuts:
            found = running.advance(int(cut))
            if measured is not None:
                for name, values in found.items():
                    measured.setdefault(name, []).extend(values.tolist())
            params.append(running.model()[0])
            sent.append(running._view)
    flat = (
        np.array([np.concatenate([np.ravel(x) for x in jax.tree.leaves(t)]) for t in trees]) for trees in (params, sent)
    )
    return tuple(x[:-1] for x in flat)  # the last is the end, after the last update


def gradient(x, worker, step):
    """The gradient of ``problem()`` at x on the mini-batch of a worker's step."""
    batch = Batches(1, len(WOBBLE), 4).indices(np.array([worker]), np.array([step]))[0]
    return MATRIX @ (x - CENTRE) - 0.1 * np.sin(x) + WOBBLE[batch].mean(0)


LAYERS = {"parameter": [[k] for k in range(5)], "layer": [[0, 1], [2, 3, 4]], "global": [list(range(5))]}
FORMS = ("constant", "adaptive", "absolute")


def cases(method, written, settings=None, momenta=(0.9,), **hyper):
    """A method at each momentum, and at the other place of weight decay, and the same in NumPy."""
    for gamma, at in [*((gamma, "server") for gamma in momenta), (momenta[-1], "worker")]:
        made = method(0.02, gamma, 0.01, decay_at=at, **(settings or {}))
        yield pytest.param(made, (written, {"gamma": gamma, "wd": 0.01, "at": at, **hyper}), id=repr(made))


RULES = [
    *cases(ASGD, numpy_server.Server, momenta=(None, 0.9)),
    *cases(NAGASGD, numpy_server.NAG, momenta=(0.0, 0.9)),
    *cases(MultiASGD, numpy_server.Multi),
    *cases(DanaZero, numpy_server.DanaZero),
    *cases(StalenessAware, numpy_server.StalenessAware, momenta=(None, 0.9)),
    *cases(InverseDelay, numpy_server.InverseDelay),
    *cases(InverseDelay, numpy_server.InverseDelay, {"delay": 2.5}, delay=2.5),
    *cases(DelayAdaptive, numpy_server.DelayAdaptive, momenta=(None, 0.9)),
    pytest.param(
        DanaSlim(0.02, 0.9, 0.01), (numpy_server.DanaSlim, {"gamma": 0.9, "wd": 0.01, "at": "worker"}), id="slim"
    ),
    *(
        case
        for form in FORMS
        for method, written, momenta in ((DCASGD, numpy_server.DC, (None, 0.9)), (DanaDC, numpy_server.DanaDC, (0.9,)))
        for case in cases(
            method,
            written,
            {"form": form, "compensation": 0.7, "square_decay": 0.8},
            momenta,
            form=form,
            strength=0.7,
            m=0.8,
        )
    ),
    *(
        case
        for name, parts in LAYERS.items()
        for method, written, momenta in (
            (GapAware, numpy_server.GapAware, (0.0, 0.9)),
            (DanaGA, numpy_server.DanaGA, (0.9,)),
        )
        for case in cases(method, written, {"granularity": name, "square_decay": 0.99}, momenta, parts=parts, rho=0.99)
    ),
    *(
        case
        for cycle in (None, 3, 1000)
        for advanced in (True, False)
        for case in cases(
            SMEGA2,
            numpy_server.SMEGA2,
            {"momentum_cycle": cycle, "advanced": advanced, "dampening": 0.2},
            cycle=cycle,
            advanced=advanced,
            dampening=0.2,
        )
    ),
]


def in_turn(arrivals):
    """The events of an asynchronous server, and their trace."""
    events = [event for i in arrivals for event in (("apply", i, 1.0, True), ("read", i))]
    return trace_of(arrivals), events


def awkward(seed=5):
    """Updates of one to three gradients at several weights, dropped and cancelled ones, workers that start afresh."""
    rng = np.random.default_rng(seed)
    log = Recorder(4, "server")
    log.workload = asyncsim.Workload(batch_size=4)
    reads, events, left = [log.read(i) for i in range(4)], [], 0
    for _ in range(60):
        i, luck = int(rng.integers(4)), rng.random()
        if luck < 0.12:
            log.apply(i, reads[i], accepted=False)
            events.append(("drop", i))
        elif luck < 0.2:
            log.cancel(i, reads[i])
            events.append(("cancel", i))
        else:
            left = (left or int(rng.integers(1, 4))) - 1
            weight = float(rng.choice([0.25, 0.5, 1.0]))
            log.apply(i, reads[i], weight=weight, closes=left == 0)
            events.append(("apply", i, weight, left == 0))
        reads[i] = log.read(i)
        events.append(("read", i))
        if luck > 0.93:
            log.reset(i, reads[i])
            events.append(("reset", i))
    return log.trace(), events


@pytest.mark.parametrize("order", ["irregular", "awkward"])
@pytest.mark.parametrize(("method", "written"), RULES)
def test_each_rule_is_that_of_its_paper(method, written, order):
    """At a learning rate that rises from 0, stays and falls; parameters, what is sent, and all that is measured."""
    trace, events = in_turn(IRREGULAR) if order == "irregular" else awkward()
    schedule = Schedule(decay="step", warmup=1.0, milestones=(3.0,))  # epochs of ten gradients
    make, settings = written
    path, views, measured = numpy_server.walk(
        make(START, 4, **settings),
        events,
        gradient,
        lambda arrivals: 0.02 * float(schedule.factor(np.array([arrivals / 10]))[0]),
    )
    seen = {}
    found, sent = history(trace, method, schedule=schedule, measured=seen)
    assert found == pytest.approx(path, abs=1e-12)
    assert sent == pytest.approx(views, abs=1e-12)
    assert np.abs(path[-1] - START).max() > 0.05
    assert set(measured) == set(seen) - {"loss"} <= set(MEASURES)
    for name, values in measured.items():
        assert seen[name] == pytest.approx(values, abs=1e-9), name


HUGE = 1e30  # an epsilon, beside which no gap counts
EQUAL = {  # two methods, and orders of arrivals in which they do the same
    "momentum 0: SMEGA2": (SMEGA2(0.05, 0.0, 0.01), ASGD(0.05, None, 0.01), IRREGULAR),
    "momentum 0: NAG-ASGD": (NAGASGD(0.05, 0.0, 0.01), ASGD(0.05, None, 0.01), IRREGULAR),
    "momentum 0: Multi-ASGD": (MultiASGD(0.05, 0.0, 0.01), ASGD(0.05, None, 0.01), IRREGULAR),
    "momentum 0: DANA-Zero": (DanaZero(0.05, 0.0, 0.01), ASGD(0.05, None, 0.01), IRREGULAR),
    "momentum 0: DANA-Slim": (
        DanaSlim(0.05, 0.0, 0.01),
        ASGD(0.05, None, 0.01, decay_at="worker"),
        IRREGULAR,
    ),
    **{
        f"DC-ASGD, {form}, lambda 0": (DCASGD(0.05, 0.5, compensation=0.0, form=form), ASGD(0.05, 0.5), IRREGULAR)
        for form in FORMS
    },
    "DANA-DC, lambda 0": (DanaDC(0.05, 0.5, compensation=0.0), DanaZero(0.05, 0.5), IRREGULAR),
    **{
        f"Gap-Aware, {g}, penalty 1": (GapAware(0.05, 0.5, epsilon=HUGE, granularity=g), ASGD(0.05, 0.5), IRREGULAR)
        for g in ("parameter", "layer", "global")
    },
    "DANA-GA, penalty 1": (DanaGA(0.05, 0.5, epsilon=HUGE), DanaZero(0.05, 0.5), IRREGULAR),
    "staleness-aware, staleness 0 and 1": (StalenessAware(0.05, 0.5), ASGD(0.05, 0.5), [0, 1] * 30),
    "delay-adaptive, workers in turn": (DelayAdaptive(0.05, 0.5), ASGD(0.05, 0.5), IN_TURN),
    "learning rate over delay": (InverseDelay(0.05, 0.5, delay=2.0), ASGD(0.025, 0.5), IRREGULAR),
    "learning rate over N - 1": (InverseDelay(0.06, 0.5), ASGD(0.02, 0.5), IRREGULAR),
    "one momentum in turn": (SMEGA2(0.05, 0.9, momentum_cycle=1), NAGASGD(0.05, 0.9), IRREGULAR),
}


@pytest.mark.parametrize("case", EQUAL)
def test_methods_that_are_equal(case):
    method, other, arrivals = EQUAL[case]
    for a, b in zip(history(trace_of(arrivals), method), history(trace_of(arrivals), other), strict=True):
        assert a == pytest.approx(b, abs=1e-12)


ONE = [0] * 60
LOOKING_AHEAD = [SMEGA2(0.05), SMEGA2(0.05, advanced=False), DanaZero(0.05), NAGASGD(0.05)]
STAYING = [
    *(MultiASGD(0.05), GapAware(0.05), StalenessAware(0.05, 0.9), InverseDelay(0.05, 0.9), DelayAdaptive(0.05, 0.9)),
    *(DCASGD(0.05, 0.9, form=form) for form in FORMS),
    *(GapAware(0.05, granularity=g) for g in ("layer", "global")),
]


@pytest.mark.parametrize("method", LOOKING_AHEAD, ids=repr)
def test_one_worker_looking_ahead_is_nesterov(method):
    """theta + eta gamma v of Sutskever's form is theta here; what is sent is what that form calls its parameters."""
    trace = Trace.from_arrivals(ONE, batch_size=4)
    _, sent = history(trace, method)
    assert sent == pytest.approx(history(trace, SGD(0.05, 0.9, nesterov=True))[0], abs=1e-12)
    assert history(trace, DanaSlim(0.05))[0] == pytest.approx(sent, abs=1e-12)


@pytest.mark.parametrize("method", STAYING, ids=repr)
def test_one_worker_without_a_gap_is_momentum_sgd(method):
    trace = Trace.from_arrivals(ONE, batch_size=4)
    assert history(trace, method)[0] == pytest.approx(history(trace, SGD(0.05, 0.9))[0], abs=1e-12)


def test_nag_asgd_in_the_other_variables():
    """What NAG-ASGD sends are the parameters of ASGD with Nesterov's momentum, in any order."""
    _, sent = history(trace_of(IRREGULAR), NAGASGD(0.05))
    assert sent == pytest.approx(history(trace_of(IRREGULAR), ASGD(0.05, 0.9, nesterov=True))[0], abs=1e-12)


@pytest.mark.parametrize("arrivals", [IRREGULAR, IN_TURN], ids=["irregular", "in turn"])
def test_dana_zero_sends_what_dana_slim_keeps(arrivals):
    _, sent = history(trace_of(arrivals), DanaZero(0.02))
    assert sent == pytest.approx(history(trace_of(arrivals), DanaSlim(0.02))[0], abs=1e-12)


def in_cycles(arrivals, size):
    """The same arrivals, in updates that are the mean of so many."""
    log = Recorder(4, "server")
    log.workload = asyncsim.Workload(batch_size=4)
    reads = [log.read(i) for i in range(4)]
    for k, i in enumerate(arrivals):
        log.apply(i, reads[i], weight=1 / size, closes=(k + 1) % size == 0)
        reads[i] = log.read(i)
    return log.trace()


@pytest.mark.parametrize("arrivals", [IRREGULAR, IN_TURN], ids=["irregular", "in turn"])
def test_smega2_at_the_end_of_a_cycle_is_synchronous_heavy_ball(arrivals):
    """On the mean of the cycle's gradients, at N times the learning rate; and it sends the look ahead of that."""
    flat = problem(curvature=0.0)
    params, sent = history(trace_of(arrivals), SMEGA2(0.02), flat)
    synchronous = history(in_cycles(arrivals, 4), SSGD(4 * 0.02, 0.9), flat)[0]
    assert params[3::4] == pytest.approx(synchronous, abs=1e-12)
    assert sent[3::4] == pytest.approx(history(in_cycles(arrivals, 4), NAGASGD(4 * 0.02), flat)[1], abs=1e-12)


def test_smega2_at_the_end_of_a_cycle_is_dana_zero_with_workers_in_turn():
    flat = problem(curvature=0.0)
    a, b = (history(trace_of(IN_TURN), method, flat) for method in (SMEGA2(0.02), DanaZero(0.02)))
    for mine, other in zip(a, b, strict=True):
        assert mine[3::4] == pytest.approx(other[3::4], abs=1e-12)
        assert np.abs(mine[1::4] - other[1::4]).max() > 1e-3


def test_compensation_by_hand():
    """x^4/4 at staleness 1: the backup is the old point, not the present one (which would compensate nothing)."""
    what = asyncsim.CustomProblem(lambda p, b: p["x"] ** 4 / 4 + 0 * b.mean(), {"x": np.array(1.5)}, np.zeros(4))
    eta, lam, x0 = 0.1, 0.5, 1.5
    x1 = x0 - eta * x0**3
    g = x0**3
    x2 = x1 - eta * (g + lam * g * g * (x1 - x0))
    g = x1**3
    x3 = x2 - eta * (g + lam * g * g * (x2 - x1))
    found, _ = history(Trace.from_arrivals([0, 1, 0]), DCASGD(eta, compensation=lam), what)
    assert found[:, 0] == pytest.approx([x1, x2, x3], abs=1e-15)


def test_danas_sum_of_momenta_does_not_drift():
    """20,000 updates in float32: the sum that follows the changes is the sum."""
    arrivals = np.random.default_rng(0).integers(8, size=20_000)
    trace, method = Trace.from_arrivals(arrivals, batch_size=4), DanaZero(0.01)
    setting, _ = prepare(trace, method, problem(), seed=0, schedule=Schedule(), cuts=[len(trace)], measures=False)
    running = ENGINES["scan", "server"](setting)
    running.advance(len(trace))
    state, _, (_, kept, _), _, _ = running.carry
    total = jax.tree.map(lambda v: np.asarray(v, float).sum(0), kept["momentum"])
    off, size = (
        max(float(np.abs(x).max()) for x in jax.tree.leaves(tree))
        for tree in (jax.tree.map(lambda a, b: np.asarray(a) - b, state["momenta"], total), total)
    )
    assert jax.tree.leaves(state["momenta"])[0].dtype == np.float32
    assert 0 < off < 2e-4 * size


def test_gaps_of_look_ahead_methods_are_measured_from_what_was_sent():
    """By hand on x^2/2, two workers in turn; momentum .5, learning rate .1."""
    quadratic = asyncsim.Quadratic()
    run = replay(Trace.from_arrivals([0, 1, 0]), NAGASGD(0.1, 0.5), quadratic, precision="float64")
    # worker 0: g = 1, v = 1, x = .9, sent .85; worker 1: g = 1, v = 1.5, x = .75
    assert run.updates["gap"] == pytest.approx([0, 0.1, 0.85 - 0.75], abs=1e-15)
    assert run.updates["normalised_gap"] == pytest.approx([0, 0.1, 0.1 / 0.85], abs=1e-15)
    assert run.updates["momentum_norm"] == pytest.approx([0, 1, 1.5], abs=1e-15)
    assert run.updates["momentum_cosine"] == pytest.approx([0, 1, 1], abs=1e-15)
    rates = [0.1, 0.15, 0.1 * (0.85 + 0.75) / 0.85]
    assert run.updates["effective_learning_rate"] == pytest.approx(rates, abs=1e-15)


@pytest.mark.parametrize("engine", ["scan", "rows"])
def test_nothing_is_measured_where_there_is_no_gradient(engine):
    """A hinge's flat side: no gradient, a gap all the same, and no infinite figure."""
    hinge = asyncsim.CustomProblem(
        lambda p, batch: jnp.sum(jnp.maximum(p["x"] - 1, 0)) + 0 * batch.mean(), {"x": np.array([1.15])}, np.zeros(4)
    )
    run = replay(Trace.from_arrivals([0, 1] * 4), ASGD(0.1, 0.9), hinge, engine=engine)
    still = run.updates["gradient_norm"] == 0
    assert still.any()
    assert (run.updates["gap"][still] > 0).any()
    for name in ("normalised_gap", "effective_learning_rate", "momentum_cosine"):
        assert (run.updates[name][still] == 0).all()
    assert all(np.isfinite(v) for v in run.summary.values() if isinstance(v, float))


def test_figures_of_updates_are_means_over_updates():
    """Of a barrier of four: the effective learning rate is that of the update, not a quarter of it."""
    log = Recorder(4, "server")
    for _ in range(3):
        reads = [log.read(i) for i in range(4)]
        for i in range(4):
            log.apply(i, reads[i], weight=0.25, closes=i == 3)
    run = replay(log.trace(), SSGD(0.1), asyncsim.Quadratic(), precision="float64")
    assert run.summary["effective_learning_rate"] == pytest.approx(0.1, abs=1e-12)
    assert run.summary["update_norm"] == pytest.approx(0.1 * (1 + 0.9 + 0.81) / 3, abs=1e-12)
    assert run.updates["effective_learning_rate"] == pytest.approx([0, 0, 0, 0.1] * 3, abs=1e-12)


def test_the_effective_learning_rate_is_the_scaled_one():
    arrivals = IRREGULAR
    run = replay(trace_of(arrivals), StalenessAware(0.1), problem(), precision="float64")
    assert "momentum_norm" not in run.updates
    assert run.updates["effective_learning_rate"] == pytest.approx(0.1 / np.maximum(run.updates["staleness"], 1))


def test_momentum_is_measured_where_it_is_kept():
    """At the server, at the server for each worker, on the worker: with one worker it is the same."""
    trace = Trace.from_arrivals(ONE, batch_size=4)
    norms = [replay(trace, m, problem(), precision="float64").updates for m in (NAGASGD(), DanaZero(), DanaSlim())]
    for name in ("momentum_norm", "momentum_cosine"):
        for other in norms[1:]:
            assert other[name] == pytest.approx(norms[0][name], abs=1e-12)
    assert norms[0]["momentum_norm"][0] == 0
    assert (norms[0]["momentum_norm"][1:] > 0).all()


def test_gaps_at_equal_staleness_are_in_the_papers_order():
    """NAG-ASGD far above the others; DANA-Zero close to ASGD without momentum at the same learning rate."""
    trace = Trace.from_arrivals(np.arange(1600) % 8, batch_size=16)
    what = MLP(Blobs(features=8, classes=4, train=400, test=40), hidden=(16,))
    methods = {"plain": ASGD(0.002), "nag": NAGASGD(0.002), "dana": DanaZero(0.002), "smega2": SMEGA2(0.002)}
    gap = {k: replay(trace, m, what).summary["gap"] for k, m in methods.items()}
    assert gap["nag"] > 3 * gap["dana"]
    assert gap["dana"] == pytest.approx(gap["plain"], rel=0.5)
    assert gap["smega2"] == pytest.approx(gap["dana"], rel=0.2)
