"""Server methods against theory, against optax, and against plain NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import asyncsim
from asyncsim.algorithms import ASGD, SGD, SSGD, ServerAlgorithm, algorithm, zeros_like
from asyncsim.cluster import Constant, Gamma
from asyncsim.data import Digits
from asyncsim.data.sampling import Batches
from asyncsim.problems import MLP, Quadratic
from asyncsim.protocols import Asynchronous, Serial, Synchronous
from asyncsim.recorder import Recorder
from asyncsim.recording import Stop, record
from asyncsim.replaying import Every, replay
from asyncsim.schedules import Schedule
from asyncsim.streams import Purpose
from asyncsim.trace import Trace

ENGINES = ("scan", "rows")


def delayed(staleness: int, updates: int) -> Trace:
    """Equal workers in turn: constant staleness after start-up."""
    return Trace.from_arrivals(np.arange(updates) % (staleness + 1))


def path(trace, learning_rate, **kwargs):
    """|x| at each gradient's arrival on f = x^2/2, from the loss at each gradient's point."""
    run = replay(trace, ASGD(learning_rate), Quadratic(**kwargs), precision="float64", measures=False)
    return np.sqrt(2 * run.updates["loss"])


class TestTheory:
    @pytest.mark.parametrize(("staleness", "limit"), [(0, 2.0), (1, 1.0), (3, 0.445042), (7, 0.209057)])
    def test_stability_limit(self, staleness, limit):
        """Stable iff lr lambda < 2 sin(pi / (2 (2 t + 1))): just below it shrinks, just above it grows."""
        assert 2 * np.sin(np.pi / (2 * (2 * staleness + 1))) == pytest.approx(limit, abs=1e-6)

        # the point that a worker reads lags by its wait, hence 3/2 cycles; compare late windows of the amplitude
        def grows(rate):
            x = path(delayed(staleness, 60_000), rate)
            window = 200 * (staleness + 1)
            return len(x) < 60_000 or x[-window:].max() > x[20_000 : 20_000 + window].max()

        assert not grows(limit - 1e-4)
        assert grows(limit + 1e-4)

    @pytest.mark.parametrize("staleness", [1, 3, 7])
    @pytest.mark.parametrize("rate", [0.05, 0.15])
    def test_growth_rate_is_the_largest_root(self, staleness, rate):
        """z^(t+1) - z^t + lr lambda = 0.

        Where the largest root is real, x_{k+1} / x_k tends to it; where it is one of a pair, x_k = A r^k cos(a k + b),
        for which x_k^2 - x_{k+1} x_{k-1} is exactly A^2 sin^2(a) r^2k.
        """
        roots = np.roots([1, -1, *[0] * (staleness - 1), rate])
        largest = roots[np.abs(roots).argmax()]
        run = replay(delayed(staleness, 400), ASGD(rate), Quadratic(start=1e6), precision="float64", measures=True)
        # the path itself: each gradient's point with its sign, from the updates that lead there
        x = [1e6]
        for k in range(400):
            x.append(x[-1] - rate * x[max(k - staleness, 0)])
        assert np.abs(np.diff(x)) == pytest.approx(run.updates["update_norm"], rel=1e-9)
        path, k, span = np.array(x), 150, 100
        if abs(largest.imag) < 1e-12:
            growth = (path[k + span] / path[k]) ** (1 / span)
        else:
            power = path[1:-1] ** 2 - path[2:] * path[:-2]
            growth = (power[k + span] / power[k]) ** (1 / (2 * span))
        assert growth == pytest.approx(np.abs(largest), abs=1e-6)

    def test_closed_form_of_the_delayed_recursion(self):
        """x_{k+1} = x_k - lr lambda x_{k-t}, step by step."""
        t, rate, updates = 3, 0.2, 200
        x = [1.0]
        for k in range(updates):
            x.append(x[k] - rate * x[max(k - t, 0)])
        run = replay(delayed(t, updates), ASGD(rate), Quadratic(), precision="float64")
        assert run.params["x"][0] == pytest.approx(x[-1], abs=1e-14)
        expected_gap = [abs(x[k] - x[max(k - t, 0)]) for k in range(updates)]
        assert run.updates["gap"] == pytest.approx(expected_gap, abs=1e-14)
        assert run.updates["gradient_norm"] == pytest.approx([abs(x[max(k - t, 0)]) for k in range(updates)], abs=1e-14)
        assert run.updates["update_norm"] == pytest.approx(np.abs(np.diff(x)), abs=1e-14)


OPTIMISERS = {
    "plain": (SGD(0.1), lambda: optax.sgd(0.1)),
    "Polyak": (SGD(0.05, 0.9), lambda: optax.sgd(0.05, 0.9)),
    "Nesterov": (SGD(0.05, 0.9, nesterov=True), lambda: optax.sgd(0.05, 0.9, nesterov=True)),
    "weight decay": (
        SGD(0.05, 0.9, weight_decay=1e-2),
        lambda: optax.chain(optax.add_decayed_weights(1e-2), optax.sgd(0.05, 0.9)),
    ),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", OPTIMISERS)
def test_one_worker_is_serial_optax_bit_for_bit(case, engine, make_cluster):
    method, make_optimiser = OPTIMISERS[case]
    steps, seed, problem = 60, 5, MLP(hidden=(16,))
    trace = record(make_cluster(Gamma(1.0, 0.3), 1), Serial(), stop=Stop(updates=steps))
    run = replay(trace, method, problem, seed=seed, engine=engine, precision="float64")
    with jax.enable_x64(True):
        params, _ = problem.init(jax.random.fold_in(jax.random.key(seed), Purpose.INITIALISATION))
        optimiser = make_optimiser()
        state = optimiser.init(params)
        train = Digits().load().train
        batches = Batches(seed, len(train["y"]), 32)
        x, y = jnp.asarray(train["x"], float), jnp.asarray(train["y"])

        @jax.jit
        def step(params, state, batch):
            loss, g = jax.value_and_grad(lambda p: problem.loss(p, (), {"x": x[batch], "y": y[batch]}, None)[0])(params)
            updates, state = optimiser.update(g, state, params)
            return optax.apply_updates(params, updates), state, loss

        losses = []
        for k in range(steps):
            params, state, loss = step(params, state, batches.indices(np.array([0]), np.array([k]))[0])
            losses.append(float(loss))
    assert run.updates["loss"].tolist() == losses
    for a, b in zip(jax.tree.leaves(run.params), jax.tree.leaves(params), strict=True):
        assert a.dtype == np.float64
        assert np.array_equal(a, b)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_schedule_moves_the_learning_rate_by_samples(engine):
    """Warm-up then steps on a quadratic: x <- x (1 - lr_k), lr_k by hand."""
    schedule = Schedule(decay="step", warmup=1.0, milestones=(2.0, 3.0), gamma=0.5)
    trace = Trace.from_arrivals([0] * 16, batch_size=25)  # four updates an epoch of 100 samples
    run = replay(trace, SGD(0.4), Quadratic(samples=100), schedule=schedule, engine=engine, precision="float64")
    rates = 0.4 * np.array([0, 0.25, 0.5, 0.75, 1, 1, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25])
    assert run.updates["learning_rate"] == pytest.approx(rates, abs=1e-15)
    assert run.params["x"][0] == pytest.approx(np.prod(1 - rates), abs=1e-15)


def test_the_cosine_schedule():
    schedule = Schedule(decay="cosine", warmup=2.0, warmup_start=0.1, length=12.0, final=0.2)
    assert schedule.factor([0, 1, 2, 7, 12, 20]) == pytest.approx([0.1, 0.55, 1, 0.6, 0.2, 0.2])


@pytest.mark.parametrize("engine", ENGINES)
def test_synchronous_is_serial_on_the_mean_gradient(engine, make_cluster):
    """N workers' mean gradient on a quadratic without noise is the gradient itself."""
    trace = record(make_cluster(Gamma(1.0, 0.5), 4), Synchronous(), stop=Stop(updates=20))
    problem = Quadratic(eigenvalues=(1.0, 0.1))
    run = replay(trace, SSGD(0.3, 0.5), problem, engine=engine, precision="float64")
    serial = replay(Trace.from_arrivals([0] * 20), SGD(0.3, 0.5), problem, precision="float64")
    assert run.params["x"] == pytest.approx(serial.params["x"], abs=1e-15)


@pytest.mark.parametrize("engine", ENGINES)
def test_groups_drops_weights_by_hand(engine):
    """Two gradients an update at their own weights, one dropped in between, another cancelled."""
    log = Recorder(3, "server")
    a, b, c = (log.read(i) for i in range(3))
    log.apply(0, a, weight=0.25, closes=False)
    log.apply(2, c, accepted=False)
    log.apply(1, b, weight=0.75)  # theta = 1 - 0.5 (0.25 + 0.75) 1 = 0.5
    c = log.read(2)
    a = log.read(0)
    log.cancel(0, a)
    a = log.read(0)
    log.apply(0, a, weight=2.0)  # theta = 0.5 - 0.5 2 0.5 = 0
    log.apply(2, c, weight=1.0)  # theta = 0 - 0.5 0.5 = -0.25
    run = replay(log.trace(), ASGD(0.5), Quadratic(), engine=engine, precision="float64")
    assert run.params["x"].tolist() == [-0.25]
    assert run.updates["gap"].tolist() == [0, 0, 0, 0, 0.5]
    assert run.updates["update_norm"].tolist() == [0, 0, 0.5, 0.5, 0.25]
    assert run.updates["accepted"].tolist() == [True, False, True, True, True]
    assert run.summary["dropped"] == run.summary["cancelled"] == 1


@algorithm
class Collect(ServerAlgorithm):
    """Local steps add up in the worker; what it sends is their sum, and the server keeps the last sum per worker."""

    learning_rate: float = 0.5

    def init(self, params, num_workers):
        return {"params": params, "seen": jnp.zeros(num_workers)}

    def start(self, params):
        return {"at": params, "sum": zeros_like(params)}

    def keep(self, params):
        return zeros_like(params)

    def point(self, own, sent):
        return own["at"]

    def local(self, own, gradient, context):
        moved = jax.tree.map(lambda x, g: x - context.learning_rate * g, own["at"], gradient)
        return {"at": moved, "sum": jax.tree.map(jnp.add, own["sum"], gradient)}

    def outgoing(self, own, gradient, context):
        return {"at": own["at"], "sum": zeros_like(own["sum"])}, own["sum"]

    def receive(self, state, kept, message, context):
        both = jax.tree.map(jnp.add, kept, message)
        return message, (both, jnp.zeros_like(state["seen"]).at[context.worker].set(1.0 + context.staleness))

    def apply(self, state, message, context):
        both, seen = message
        return {
            "params": jax.tree.map(lambda x, m: x - context.learning_rate * m, state["params"], both),
            "seen": state["seen"] + seen,
        }

    def final(self, state):
        return jax.tree.map(lambda x: x + 0 * state["seen"].sum(), state["params"])


@pytest.mark.parametrize("engine", ENGINES)
def test_what_workers_and_server_keep_by_hand(engine):
    """Two local steps and a sent one, an arrival of another worker, then again, and a worker that starts afresh."""
    log = Recorder(2, "server")
    a, b = log.read(0), log.read(1)
    log.step(0, a)
    log.step(0, a)
    log.apply(0, a)
    log.apply(1, b)
    a = log.read(0)
    log.apply(0, a)
    a = log.read(0)
    log.reset(0, a)
    log.apply(0, a)
    run = replay(log.trace(), Collect(), Quadratic(), engine=engine, precision="float64")
    # worker 0: at 1, .5, .25 -> sum 1.75, at .125. server 1 - .875 = .125. worker 1: at 1, sum 1: .125 - .5 = -.375
    # worker 0: g = .125, sent .125, kept 1.75: -.375 - .5 (1.875) = -1.3125; afresh at -1.3125: g = -1.3125
    # kept .125: -1.3125 - .5 (-1.1875) = -.71875
    assert run.params["x"].tolist() == [-0.71875]
    points = [1, 0.5, 0.25, 1, 0.125, -1.3125]
    assert run.updates["loss"].tolist() == [p * p / 2 for p in points]
    assert run.updates["staleness"].tolist() == [0, 0, 0, 1, 0, 0]


@pytest.mark.parametrize("engine", ENGINES)
def test_evaluations_are_cuts_in_time(engine, make_cluster):
    """What an evaluation finds is what a run that ends there finds."""
    trace = record(make_cluster(Constant(1.0), 2), Asynchronous(), stop=Stop(updates=12))
    problem = Quadratic(eigenvalues=(1.0, 0.5))
    run = replay(trace, ASGD(0.1, 0.5), problem, every=Every(seconds=2.5), engine=engine, precision="float64")
    assert run.evals["time"].tolist() == [0, 2.5, 5.0, 6.0]
    assert run.evals["updates"].tolist() == [0, 4, 10, 12]
    for time, loss in zip(run.evals["time"], run.evals["loss"], strict=True):
        rows = int(np.searchsorted(trace.time, time, side="right")) if time else 0
        short = replay(trace.head(rows), ASGD(0.1, 0.5), problem, engine=engine, precision="float64")
        assert short.summary["loss"] == loss


@pytest.mark.parametrize(
    ("every", "updates"),
    [
        (Every(updates=5), [0, 5, 10, 12]),
        (Every(updates=4), [0, 4, 8, 12]),
        (Every(samples=100), [0, 4, 7, 10, 12]),
        (Every(epochs=0.25), [0, 4, 8, 12]),
        (Every(updates=100), [0, 12]),
    ],
)
def test_when_to_evaluate(every, updates):
    run = replay(Trace.from_arrivals([0] * 12), SGD(0.1), Quadratic(samples=512), every=every)
    assert run.evals["updates"].tolist() == updates


@pytest.mark.parametrize("engine", ENGINES)
def test_divergence_is_a_result(engine):
    trace = delayed(3, 3000)
    run = replay(trace, ASGD(1.5), Quadratic(), engine=engine, every=Every(updates=100))
    assert run.summary["ended"] == "diverged"
    finite = np.isfinite(run.updates["loss"])
    assert finite[:-1].all()
    assert not finite[-1]
    assert len(run.updates) == run.summary["gradients"] < 3000
    assert run.evals["time"][-1] == run.trace.end == run.updates["time"][-1]
    assert run.evals["loss"][-1] > 1e30
    assert "diverged" in repr(run)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_target_is_reached_and_may_end_the_run(engine):
    trace = Trace.from_arrivals([0] * 50)
    for stop in (False, True):
        target = asyncsim.Target(metric="loss", value=0.01, stop=stop)
        run = replay(trace, SGD(0.1), Quadratic(), target=target, every=Every(updates=3), engine=engine)
        # 0.9^(2k)/2 <= 0.01 from k = 18.6 on: the evaluation at 21
        assert run.summary["time_to_target"] == 21.0
        assert run.summary["ended"] == ("target" if stop else "budget")
        assert run.trace.end == (21.0 if stop else 50.0)
        assert len(run.updates) == (21 if stop else 50)
    missed = replay(trace, SGD(0.1), Quadratic(), target=asyncsim.Target(metric="loss", value=1e-9), engine=engine)
    assert np.isnan(missed.summary["time_to_target"])


def test_measures_change_nothing_and_can_be_left_out(make_cluster):
    trace = record(make_cluster(Gamma(1.0, 0.5), 4), Asynchronous(), stop=Stop(updates=200))
    problem = MLP(hidden=(8,))
    on, off = (replay(trace, ASGD(0.02, 0.9), problem, measures=m) for m in (True, False))
    assert "gap" in on.updates
    assert "gap" not in off.updates
    assert on.updates["loss"].tolist() == off.updates["loss"].tolist()
    assert jax.tree.all(jax.tree.map(np.array_equal, on.params, off.params))
    often = replay(trace, ASGD(0.02, 0.9), problem, every=Every(updates=7))
    assert often.updates == on.updates
    assert jax.tree.all(jax.tree.map(np.array_equal, on.params, often.params))


def test_precision():
    run = replay(Trace.from_arrivals([0]), SGD(0.1), Quadratic())
    assert run.params["x"].dtype == np.float32
    with pytest.raises(asyncsim.InputError, match=r"precision: expected 'float32' or 'float64'"):
        replay(Trace.from_arrivals([0]), SGD(0.1), Quadratic(), precision="half")
    with pytest.raises(asyncsim.InputError, match="engine"):
        replay(Trace.from_arrivals([0]), SGD(0.1), Quadratic(), engine="fast")


def test_a_loss_that_closes_over_an_array_runs_in_both_precisions():
    """JAX keeps the type that such an array had when it was first compiled."""
    centre = np.array([0.25, -1.0])
    problem = asyncsim.CustomProblem(
        lambda p, batch: jnp.sum((p["x"] - centre) ** 2) + 0 * batch.mean(), {"x": np.zeros(2)}, np.zeros(4)
    )
    for precision in ("float32", "float64", "float32"):
        run = replay(Trace.from_arrivals([0] * 80), SGD(0.1), problem, precision=precision)
        assert run.params["x"].dtype == precision
        assert run.params["x"] == pytest.approx(centre, abs=1e-6)


@algorithm
class NamesAnArray(ServerAlgorithm):
    """theta = theta - eta k g, for an array k from outside."""

    learning_rate: float = 0.1

    def apply(self, state, message, context):
        return {"params": jax.tree.map(lambda x, g: x - context.learning_rate * FACTORS * g, state["params"], message)}


FACTORS = np.array([0.5, 0.25])


@pytest.mark.parametrize("engine", ENGINES)
def test_a_method_that_names_an_array_runs_in_both_precisions(engine):
    for precision in ("float32", "float64", "float32"):
        trace, problem = Trace.from_arrivals([0] * 3), Quadratic(eigenvalues=(1.0, 1.0))
        run = replay(trace, NamesAnArray(), problem, precision=precision, engine=engine)
        assert run.params["x"] == pytest.approx([0.95**3, 0.975**3], abs=1e-6)


def test_a_dropped_gradient_that_is_not_finite_ends_nothing():
    """The server never took it."""
    log = Recorder(2, "server")
    reads = [log.read(i) for i in range(2)]
    log.apply(0, reads[0], accepted=False)
    log.apply(1, reads[1])

    def loss(params, batch):
        return jnp.where(batch[0] == first, jnp.nan, 1.0) * params["w"]

    first = float(Batches(0, 10, 32).indices(np.array([0]), np.array([0]))[0, 0])
    second = float(Batches(0, 10, 32).indices(np.array([1]), np.array([0]))[0, 0])
    assert first != second
    problem = asyncsim.CustomProblem(loss, {"w": np.ones(())}, np.arange(10.0), np.full(1, 99.0))
    run = replay(log.trace(), ASGD(0.5), problem)
    assert np.isnan(run.updates["loss"][0])
    assert (run.summary["ended"], float(run.params["w"])) == ("budget", 0.5)


@algorithm
class WrongState(ServerAlgorithm):
    """Gives its state another shape."""

    learning_rate: float = 0.1

    def apply(self, state, message, context):
        return {"params": jax.tree.map(lambda x: jnp.stack([x, x]), state["params"])}


@algorithm
class WrongTree(ServerAlgorithm):
    """Gives parameters in place of its state."""

    learning_rate: float = 0.1

    def apply(self, state, message, context):
        return state["params"]


@algorithm
class WrongPair(ServerAlgorithm):
    """Returns one thing where there should be two."""

    learning_rate: float = 0.1

    def receive(self, state, kept, message, context):
        return message

    def apply(self, state, message, context):
        return state


@algorithm
class GrowingMemory(WrongPair):
    """What the server keeps for a worker grows."""

    def receive(self, state, kept, message, context):
        return jnp.zeros(3), message


@algorithm
class NoRate(ServerAlgorithm):
    """Forgot its learning rate."""

    rate: float = 0.1

    def apply(self, state, message, context):
        return state


class NotAnAlgorithm(ServerAlgorithm):
    """Forgot its decorator."""

    learning_rate = 0.1


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("method", "message"),
    [
        (WrongState(), r"WrongState.apply gives an array of shape \(2, 1\) in place of \(1,\)"),
        (
            WrongTree(),
            r"WrongTree.apply gives another structure than it got: without \['params'\]\['x'\], with \['x'\]",
        ),
        (NoRate(), "algorithm: NoRate has no field learning_rate"),
        (WrongPair(), "WrongPair.receive returns dict; it should return a pair"),
        (GrowingMemory(), "GrowingMemory.receive gives another structure than it got: with the whole"),
        (NotAnAlgorithm(), "algorithm: NotAnAlgorithm is no pytree: decorate it"),
        (ASGD, r"algorithm: expected an Algorithm, got the class ASGD; make one: ASGD\(\)"),
    ],
)
def test_methods_that_break_the_contract_are_named(method, message, engine):
    with pytest.raises(asyncsim.InputError, match=message):
        replay(Trace.from_arrivals([0, 0]), method, Quadratic(), engine=engine)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trace": None}, "trace: expected a Trace, got None"),
        ({"algorithm": Quadratic()}, "algorithm: expected an Algorithm, got Quadratic"),
        ({"problem": ASGD(0.1)}, "problem: expected a Problem, got ASGD"),
        ({"every": 5}, "every: expected an Every, got 5"),
        ({"schedule": "cosine"}, "schedule: expected a Schedule, got 'cosine'"),
        ({"seed": 2**32}, "seed: expected a whole number from 0"),
        ({"problem": "vector"}, r"problem: its loss should be one real number, not .*\(3,\)"),
        ({"problem": "taken"}, "problem: its figures may not be called seconds"),
        ({"problem": "large"}, "problem: holds whole numbers that do not fit in 32 bits"),
    ],
)
def test_wrong_arguments_are_named(change, message):
    problems = {
        "vector": asyncsim.CustomProblem(lambda p, b: b[:3], {"w": np.ones(())}, np.arange(50.0)),
        "taken": asyncsim.CustomProblem(
            lambda p, b: p["w"], {"w": np.ones(())}, np.arange(5.0), metrics=lambda p, b: {"seconds": p["w"]}
        ),
        "large": asyncsim.CustomProblem(lambda p, b: p["w"], {"w": np.ones(())}, np.array([2**40])),
    }
    arguments = {"trace": Trace.from_arrivals([0]), "algorithm": ASGD(0.1), "problem": Quadratic()} | change
    if isinstance(arguments["problem"], str):
        arguments["problem"] = problems[arguments["problem"]]
    with pytest.raises(asyncsim.InputError, match=message):
        replay(**arguments)


def test_local_steps_are_refused_by_methods_that_have_none():
    log = Recorder(1, "server")
    read = log.read(0)
    log.step(0, read)
    log.apply(0, read)
    with pytest.raises(asyncsim.InputError, match="row 1, step: ASGD has no local steps"):
        replay(log.trace(), ASGD(0.1), Quadratic())


def test_an_empty_trace_and_a_wrong_kind():
    run = replay(Recorder(2, "server").trace(), ASGD(0.1), Quadratic())
    assert (len(run.updates), len(run.evals)) == (0, 1)
    with pytest.raises(asyncsim.InputError, match="kind peers, the trace is of server"):
        replay(Trace.from_arrivals([0]), asyncsim.Averaging(0.1), Quadratic())
