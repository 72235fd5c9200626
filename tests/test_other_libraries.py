"""Models of other libraries plug in as a loss: the README's examples."""

import numpy as np
import pytest

import asyncsim

FLAX = """
import asyncsim
import flax.linen as nn
import jax
import optax


class Net(nn.Module):
    @nn.compact
    def __call__(self, x, training):
        x = nn.relu(nn.BatchNorm(use_running_average=not training)(nn.Dense(32)(x)))
        return nn.Dense(10)(nn.Dropout(0.2, deterministic=not training)(x))


def loss(params, extra, batch, key):  # extra: what the model keeps besides parameters; key: fresh for each gradient
    variables = {"params": params, "batch_stats": extra}
    logits, new = net.apply(
        variables, batch["x"], training=True, mutable=["batch_stats"], rngs={"dropout": key}
    )
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean(), new["batch_stats"]


def metrics(params, extra, batch):
    logits = net.apply({"params": params, "batch_stats": extra}, batch["x"], training=False)
    test_loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()
    return {"loss": test_loss, "accuracy": (logits.argmax(-1) == batch["y"]).mean()}


net, data = Net(), asyncsim.Digits().load()
start = net.init(jax.random.key(0), data.train["x"][:1], training=False)
problem = asyncsim.CustomProblem(
    loss, start["params"], data.train, data.test, metrics, extra=start["batch_stats"]
)
trace = asyncsim.Trace.from_arrivals([0, 1, 2, 3] * 100)
run = asyncsim.replay(trace, asyncsim.ASGD(learning_rate=0.02, momentum=0.9), problem, statistics="mean")
print(run)
"""

EQUINOX = """
import asyncsim
import equinox as eqx
import jax
import optax

data = asyncsim.Digits().load()
net = eqx.nn.MLP(in_size=64, out_size=10, width_size=32, depth=1, key=jax.random.key(0))
params, rest = eqx.partition(net, eqx.is_inexact_array)


def loss(params, batch):
    logits = jax.vmap(eqx.combine(params, rest))(batch["x"])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()


problem = asyncsim.CustomProblem(loss, params, data.train, data.test)
trace = asyncsim.Trace.from_arrivals([0, 1, 2, 3] * 100)
run = asyncsim.replay(trace, asyncsim.ASGD(learning_rate=0.01, momentum=0.9), problem)
print(run)
"""


@pytest.mark.parametrize(("library", "code"), [("flax", FLAX), ("equinox", EQUINOX)])
def test_it_learns_and_both_engines_agree(library, code, capsys, tmp_path):
    pytest.importorskip(library)
    names = {"__name__": "readme"}
    exec(compile(code, library, "exec"), names)
    run, problem = names["run"], names["problem"]
    assert "4 workers, 400 updates" in capsys.readouterr().out
    assert run.evals["loss"][-1] < 0.5 < 2 < run.evals["loss"][0]
    if library == "flax":
        assert run.evals["accuracy"][-1] > 0.85
    trace = asyncsim.Trace.from_arrivals(np.arange(50) % 3, batch_size=8)
    scan, rows = (
        asyncsim.replay(trace, asyncsim.ASGD(0.05), problem, engine=engine, precision="float64")
        for engine in ("scan", "rows")
    )
    assert scan.updates["loss"] == pytest.approx(rows.updates["loss"], abs=1e-10)
    assert scan.evals["loss"] == pytest.approx(rows.evals["loss"], abs=1e-10)
    run.save(tmp_path / "run")
    assert asyncsim.load(tmp_path / "run").summary == run.summary
