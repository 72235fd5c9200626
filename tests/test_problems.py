"""Problems, data and mini-batches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asyncsim.algorithms import SGD
from asyncsim.data import Blobs, Digits, SparseTeacher, Teacher, Text
from asyncsim.errors import InputError
from asyncsim.problems import MLP, CharTransformer, ConvNet, CustomProblem, Logistic, Problem, Quadratic, ResNet
from asyncsim.replaying import Every, replay
from asyncsim.replaying.evaluation import evaluate
from asyncsim.trace import Trace


def linear_loss(params, batch):
    return jnp.mean((batch["x"] @ params["w"] + params["b"] - batch["y"]) ** 2)


def linear_metrics(params, batch):
    return {"worst": jnp.max(jnp.abs(batch["x"] @ params["w"] + params["b"] - batch["y"]))}


def linear_problem(**kwargs):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3))
    data = {"x": x, "y": x @ np.array([1.0, -2.0, 0.5]) + 3.0}
    return CustomProblem(linear_loss, {"w": np.zeros(3), "b": np.zeros(())}, data, **kwargs)


PROBLEMS = {
    "quadratic": Quadratic(eigenvalues=(1.0, 0.5, 0.1)),
    "noisy quadratic": Quadratic(eigenvalues=(1.0, 0.5), noise=0.1),
    "mlp on digits": MLP(hidden=(8,)),
    "deep mlp on blobs": MLP(Blobs(features=6, classes=3, train=300, test=100), hidden=(8, 5), activation="tanh"),
    "custom": linear_problem(metrics=linear_metrics),
    "logistic on digits": Logistic(l2=0.01),
    "logistic on two classes": Logistic(Teacher(features=7, classes=2, train=200, test=100, noise=0.1)),
    "sparse logistic": Logistic(SparseTeacher(features=50, nonzeros=5, train=300, test=100), l2=0.001),
    "mlp on a deep teacher": MLP(Teacher(features=5, hidden=(6,), classes=3, train=200, test=100), hidden=(8,)),
    "convnet": ConvNet(channels=(4, 6), hidden=(8,)),
    "convnet without hidden layers": ConvNet(channels=(4,), kernel=5, hidden=()),
    "resnet with group norm": ResNet(channels=(4,), blocks=2, groups=2),
    "resnet with batch norm": ResNet(channels=(4, 8), norm="batch"),
    "resnet without norm": ResNet(channels=(4,), norm="none"),
    "char transformer": CharTransformer(Text(context=8), layers=1, width=8, heads=2),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_gradient_against_finite_differences(name):
    problem = PROBLEMS[name]
    with jax.enable_x64(True):
        params, extra = jax.tree.map(lambda x: jnp.asarray(x, float), problem.init(jax.random.key(1)))
        # off the start, where biases 0 put some activations right on the bend of a ReLU
        moved = np.random.default_rng(1)
        params = jax.tree.map(lambda x: x + 0.1 * moved.normal(size=x.shape), params)
        train = problem.data().train
        batch = jax.tree.map(lambda x: jnp.asarray(x[:16], float if x.dtype.kind == "f" else None), train)

        @jax.jit
        def loss(p):
            return problem.rule.loss(p, extra, batch, jax.random.key(2))[0]

        g = jax.jit(jax.grad(loss))(params)
        leaves, shape = jax.tree.flatten(params)
        rng = np.random.default_rng(0)
        for _ in range(3):
            direction = shape.unflatten([rng.normal(size=x.shape) for x in leaves])
            up, down = (loss(jax.tree.map(lambda x, d, s=s: x + s * d, params, direction)) for s in (1e-7, -1e-7))
            slope = sum(
                float(np.vdot(a, b)) for a, b in zip(jax.tree.leaves(g), jax.tree.leaves(direction), strict=True)
            )
            assert float(up - down) / 2e-7 == pytest.approx(slope, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("name", PROBLEMS)
def test_loss_falls_and_engines_agree(name):
    trace = Trace.from_arrivals(np.arange(50) % 3, batch_size=8)
    given = {"precision": "float64", "every": Every(updates=25)}
    runs = [replay(trace, SGD(0.05), PROBLEMS[name], engine=e, **given) for e in ("scan", "rows")]
    assert runs[0].evals["loss"][-1] < runs[0].evals["loss"][0]
    assert runs[0].updates["loss"] == pytest.approx(runs[1].updates["loss"], abs=1e-10)
    for figure in runs[0].evals.columns:
        assert runs[0].evals[figure] == pytest.approx(runs[1].evals[figure], abs=1e-10)
    for a, b in zip(jax.tree.leaves(runs[0].params), jax.tree.leaves(runs[1].params), strict=True):
        assert a == pytest.approx(b, abs=1e-10)


def test_digits_are_what_they_say():
    data = Digits().load()
    assert data.train["x"].shape == (1437, 64)
    assert data.test["x"].shape == (360, 64)
    everything = np.concatenate([data.train["x"], data.test["x"]])
    assert (everything.min(), everything.max()) == (0, 1)
    assert set(np.unique(data.train["y"])) == set(range(10))
    assert round(float(everything.sum() * 16)) == 561718  # of all pixels, as UCI publishes them


def test_blobs_are_drawn_from_their_seed_and_can_be_told_apart():
    a, b, c = Blobs().load(), Blobs().load(), Blobs(seed=1).load()
    assert np.array_equal(a.train["x"], b.train["x"])
    assert not np.array_equal(a.train["x"], c.train["x"])
    # unit variance within a class; mean squared distance of centres = features x separation^2
    spec = Blobs(features=50, classes=40, train=20_000, separation=2.0)
    data = spec.load().train
    centres = np.stack([data["x"][data["y"] == k].mean(0) for k in range(40)])
    within = np.mean([data["x"][data["y"] == k].var(0).mean() for k in range(40)])
    assert within == pytest.approx(1, rel=0.02)
    squares = ((centres[:, None] - centres[None]) ** 2).mean(-1)[np.triu_indices(40, 1)]
    assert squares.mean() == pytest.approx(4, rel=0.1)


def test_noise_of_the_quadratic_has_its_variance_and_is_fresh():
    problem, trace = Quadratic(eigenvalues=(0.0,) * 50, noise=0.3), Trace.from_arrivals([0, 1] * 200)
    run = replay(trace, SGD(1.0), problem)
    norms = run.updates["gradient_norm"]
    assert np.mean(norms**2) == pytest.approx(50 * 0.09, rel=0.05)
    assert len(set(norms.tolist())) == 400
    other = replay(trace, SGD(1.0), problem, seed=1)
    assert other.updates["gradient_norm"].tolist() != norms.tolist()


def test_test_figures_are_means_over_all_samples():
    n = Problem.evaluated_at_once + 17
    rng = np.random.default_rng(0)
    data = {"x": rng.normal(size=(n, 3)), "y": rng.normal(size=n)}
    problem = CustomProblem(linear_loss, {"w": np.ones(3), "b": np.zeros(())}, data)
    with jax.enable_x64(True):
        found = evaluate(problem.rule, {"w": np.ones(3), "b": np.zeros(())}, (), data)
    assert found["loss"] == pytest.approx(np.mean((data["x"].sum(1) - data["y"]) ** 2))


def test_a_custom_problem_learns_and_reports_its_metrics():
    run = replay(
        Trace.from_arrivals([0] * 300), SGD(0.1), linear_problem(metrics=linear_metrics), every=Every(updates=50)
    )
    assert run.evals["worst"][-1] < 0.01
    assert run.params["w"] == pytest.approx([1, -2, 0.5], abs=0.01)


def test_custom_problems_of_one_loss_compile_once():
    from asyncsim.replaying.pools import PROGRAMS

    trace = Trace.from_arrivals([0] * 10)
    replay(trace, SGD(0.1), linear_problem())
    before = len(PROGRAMS)
    for _ in range(3):
        replay(trace, SGD(0.2), linear_problem())
    assert len(PROGRAMS) == before


def noisy_loss(params, extra, batch, key):
    residual = batch["x"] @ params["w"] + params["b"] - batch["y"]
    noise = jax.random.normal(key, residual.shape)
    return jnp.mean((residual + noise) ** 2), {"seen": extra["seen"] + 1}


def test_a_custom_problem_with_extra_has_the_whole_contract():
    def metrics(params, extra, batch):
        return {"loss": jnp.mean((batch["x"] @ params["w"] + params["b"] - batch["y"]) ** 2), "seen": extra["seen"]}

    plain = linear_problem()
    params, _ = plain.init(None)
    problem = CustomProblem(noisy_loss, params, plain.data().train, metrics=metrics, extra={"seen": 0})
    trace = Trace.from_arrivals([0] * 300)
    run = replay(trace, SGD(0.1), problem)
    assert run.evals["loss"][-1] < 0.1 < run.evals["loss"][0]
    assert run.evals["seen"].tolist() == run.evals["updates"].tolist()
    assert run.updates["loss"][-50:].mean() == pytest.approx(1, rel=0.2)  # the noise that the key makes
    assert len(set(run.updates["loss"].tolist())) == 300
    without = replay(trace, SGD(0.1), CustomProblem(noisy_loss, params, plain.data().train, extra={"seen": 0}))
    assert without.evals["loss"][-1] == pytest.approx(1, rel=0.4)
    # nothing kept, but a key
    keyed = CustomProblem(
        lambda p, e, b, key: (jnp.sum(p["w"] ** 2), e), {"w": np.ones(2)}, {"x": np.ones(9)}, extra=()
    )
    assert replay(trace, SGD(0.1), keyed).evals["loss"][-1] < 1e-6


def test_functions_that_break_the_whole_contract_are_told():
    start, train, trace = {"w": np.ones(2)}, {"x": np.ones(9)}, Trace.from_arrivals([0])

    def value(params):
        return jnp.sum(params["w"] ** 2)

    for loss, metrics, message in (
        (lambda p, e, b, key: value(p), None, r"loss: gives a pair with extra: \(loss, extra\)"),
        (
            lambda p, e, b, key: (value(p), e),
            lambda p, e, b: {"other": value(p)},
            "metrics: .*with the loss among them",
        ),
        (
            lambda p, e, b, key: (value(p), {"n": 0}),
            None,
            "the problem's loss gives another structure than it got: with",
        ),
        (lambda p, e, b, key: (value(p), jnp.ones(3)), None, r"the problem's loss gives an array of shape \(3,\)"),
    ):
        extra = jnp.ones(2) if "shape" in message else ()
        with pytest.raises(InputError, match=message):
            replay(trace, SGD(0.1), CustomProblem(loss, start, train, metrics=metrics, extra=extra))


def test_wrong_data_is_refused():
    with pytest.raises(InputError, match=r"train: .*different numbers of samples: \[3, 4\]"):
        CustomProblem(linear_loss, {}, {"x": np.zeros((3, 1)), "y": np.zeros(4)})
    with pytest.raises(InputError, match="train: has no samples"):
        CustomProblem(linear_loss, {}, {"x": np.zeros((0, 1))})
    with pytest.raises(InputError, match="eigenvalues: needs at least one"):
        Quadratic(eigenvalues=())
    with pytest.raises(InputError, match="activation: expected one of: 'relu', 'tanh', got 'gelu'"):
        MLP(activation="gelu")


def test_the_workload_of_a_problem():
    workload = MLP(hidden=(16,)).workload(8)
    assert (workload.batch_size, workload.num_samples) == (8, 1437)
    assert workload.tensor_bytes == (4 * 64 * 16, 4 * 16, 4 * 16 * 10, 4 * 10)  # forward


@pytest.mark.parametrize("figure", [lambda p, b: b["y"], lambda p, b: "text", lambda p, b: jnp.sum(b["y"]) * 1j])
def test_figures_are_numbers(figure):
    problem = linear_problem(metrics=lambda params, batch: {"odd": figure(params, batch)})
    with pytest.raises(InputError, match=r"problem: its (figure odd should be one real number|metrics fail)"):
        replay(Trace.from_arrivals([0]), SGD(0.1), problem)
