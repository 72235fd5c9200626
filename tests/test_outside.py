"""Server methods against numbers that other people's code gave: see ``outside/make_numbers.py``."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import asyncsim
from asyncsim.algorithms import NAGASGD, SGD, SMEGA2, GapAware

OUTSIDE = Path(__file__).parent / "outside"
ENGINES = ("scan", "rows")


def cases(name):
    file = json.loads((OUTSIDE / f"{name}.json").read_text())
    return [pytest.param(file["problem"], case, id=case["name"]) for case in file["cases"]]


@asyncsim.checked
class Factors(asyncsim.Schedule):
    """A factor for each epoch; here an epoch is an update."""

    factors: tuple[float, ...] = ()

    def factor(self, epochs):
        return np.append(self.factors, self.factors[-1])[np.asarray(epochs, int)]


def value(numbers, x, module):
    """The loss (x-c)'A(x-c)/2 + w cos x at one vector, or at each of several."""
    matrix, centre, weights = (np.array(numbers[k]) for k in ("matrix", "centre", "weights"))
    return ((x - centre) * ((x - centre) @ matrix)).sum(-1) / 2 + module.cos(x) @ weights


def problem(numbers):
    """The same as a problem, which measures its own point."""
    shapes = {k: tuple(v) for k, v in numbers["shapes"].items()}

    def flat(params):
        return jnp.concatenate([params[k].reshape(-1) for k in shapes])

    def loss(params, batch):
        return value(numbers, flat(params), jnp) + 0 * batch.mean()

    def metrics(params, batch):
        return {"loss": loss(params, batch), **{f"x{k}": x for k, x in enumerate(flat(params))}}

    ends = np.cumsum([np.prod(s) for s in shapes.values()])
    parts = np.split(np.array(numbers["start"]), ends[:-1])
    start = {k: part.reshape(shape) for (k, shape), part in zip(shapes.items(), parts, strict=True)}
    return asyncsim.CustomProblem(loss, start, np.zeros(1), np.zeros(1), metrics)


def check(numbers, case, method, engine):
    """``method`` of a learning rate goes along the recorded parameters, and takes its gradients where it should."""
    rates = np.array(case["learning_rates"])
    run = asyncsim.replay(
        asyncsim.Trace.from_arrivals(case["arrivals"], batch_size=1, num_workers=case["num_workers"]),
        method(float(rates.max())),
        problem(numbers),
        schedule=Factors(factors=tuple(rates / rates.max())),
        every=asyncsim.Every(updates=1),
        engine=engine,
        precision="float64",
    )
    if "params" in case:
        found = np.stack([run.evals[k] for k in run.evals.columns if k.startswith("x")], 1)[1:]
        assert found == pytest.approx(np.array(case["params"]), abs=1e-10)
    if "sent" in case:
        sent, points = {}, []
        for worker, reply in zip(case["arrivals"], case["sent"], strict=True):
            points.append(sent.get(worker, numbers["start"]))
            sent[worker] = reply
        assert run.updates["loss"] == pytest.approx(value(numbers, np.array(points), np), abs=1e-10)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("numbers", "case"), cases("smega2"))
def test_smega2_is_the_authors(numbers, case, engine):
    settings = {k: case[k] for k in ("momentum", "weight_decay", "momentum_cycle", "advanced")}
    check(numbers, case, lambda rate: SMEGA2(rate, **settings), engine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("numbers", "case"), cases("gap_aware"))
def test_gap_aware_is_that_of_public_code(numbers, case, engine):
    settings = {"weight_decay": case["weight_decay"], "square_decay": case["rho"], "epsilon": case["epsilon"]}
    check(numbers, case, lambda rate: GapAware(rate, case["momentum"], **settings), engine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("numbers", "case"), cases("nesterov"))
def test_nesterov_is_that_of_torch(numbers, case, engine):
    settings = {"weight_decay": case["weight_decay"], "nesterov": True}
    check(
        numbers, {k: v for k, v in case.items() if k != "sent"}, lambda r: SGD(r, case["momentum"], **settings), engine
    )


@pytest.mark.parametrize("method", [NAGASGD, SMEGA2])
def test_what_one_worker_is_sent_is_torchs_nesterov(method):
    (numbers, case) = cases("nesterov")[0].values
    assert case["weight_decay"] == 0  # it decays at theta, torch where it looks ahead
    sent = {**{k: v for k, v in case.items() if k != "params"}, "sent": case["params"]}
    check(numbers, sent, lambda rate: method(rate, case["momentum"]), "scan")
