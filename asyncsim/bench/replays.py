"""A whole replay over the fastest bare loop of momentum SGD on the same model and mini-batches."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from asyncsim.algorithms import ADPSGD, ASGD, SMEGA2, WAGMA, Algorithm
from asyncsim.bench.bare import Bare
from asyncsim.bench.timing import Figures, Spent, ratio, spent
from asyncsim.cluster import Cluster, Gamma, Workers
from asyncsim.data import Blobs, Digits
from asyncsim.problems import MLP, CharTransformer, ConvNet, CustomProblem, Problem, Quadratic
from asyncsim.protocols import Asynchronous, PairwiseAveraging, Protocol, WaitAvoidingGroups
from asyncsim.recording import Stop, record
from asyncsim.replaying import Every, replay
from asyncsim.trace import Trace

ENDS = Every(updates=10**9)  # evaluate at the start and at the end only
SHAPE = (28, 28)


def mlp() -> Problem:
    """784-128-10."""
    return MLP(Blobs(features=784, classes=10, train=4096, test=256), hidden=(128,))


def trace_of(workers: int, gradients: int, protocol: Protocol | None = None) -> Trace:
    """Of workers whose step times vary by a tenth; mini-batches of 32."""
    cluster = Cluster((Workers(Gamma(1.0, 0.1), workers),), 0.001)
    return record(cluster, protocol or Asynchronous(), stop=Stop(updates=gradients))


def over_bare(trace: Trace, problem: Problem, algorithm: Algorithm, bare: Callable[[], Any], **options: Any) -> Spent:
    """Gradients per second of a replay over those of a bare loop."""
    return ratio(lambda: replay(trace, algorithm, problem, every=ENDS, **options), bare)


def both(name: str, found: Spent) -> Figures:
    """In processor time and in time."""
    for kind, value in found._asdict().items():
        yield f"{name}.{kind}", value


def servers(scale: float) -> Figures:
    """A server's methods, 784-128-10, over the fastest bare loop; and over one that copies weights for each event."""
    problem = mlp()
    for workers in (8, 64):
        trace = trace_of(workers, int(4096 * scale))
        bare = Bare(trace, problem)
        fastest = bare.fastest()
        plain = ASGD(0.05), {"measures": False}
        for name, (algorithm, options) in {
            "asgd": plain,
            "asgd_measured": (ASGD(0.05), {}),
            "smega2_measured": (SMEGA2(0.005), {}),
        }.items():
            yield from both(f"replay.{name}.{workers}", over_bare(trace, problem, algorithm, fastest, **options))
        of = trace.worker[trace.gradients]
        found = over_bare(trace, problem, plain[0], functools.partial(bare.events, of), **plain[1])
        yield from both(f"replay.asgd_over_events.{workers}", found)


def models(scale: float) -> Figures:
    """Other models, each over its own bare loop: ASGD with 8 workers, nothing measured."""
    made: dict[str, tuple[Problem, dict[str, Any], int]] = {
        "convnet": (ConvNet(Digits()), {}, 1024),
        "lax_conv": (with_lax_conv(), {"engine": "rows"}, 512),
        "transformer": (CharTransformer(), {}, 256),
    }
    for name, (problem, options, gradients) in made.items():
        trace = trace_of(8, int(gradients * scale))
        fastest = Bare(trace, problem).fastest()
        yield from both(f"models.{name}", over_bare(trace, problem, ASGD(0.05), fastest, measures=False, **options))
    trace, small = trace_of(8, int(40_000 * scale)), Quadratic(eigenvalues=(1.0,) * 100)
    replay(trace, ASGD(0.01), small, every=ENDS, measures=False)
    taken = spent(lambda: replay(trace, ASGD(0.01), small, every=ENDS, measures=False))
    yield "models.quadratic.gradients_per_second", len(trace.gradients) / taken.wall


def peers(scale: float) -> Figures:
    """Methods between peers, over the fastest bare loop."""
    ways = {
        "wagma": (WAGMA(0.05, 0.9), WaitAvoidingGroups(group_size=4)),
        "ad_psgd": (ADPSGD(0.05, 0.9), PairwiseAveraging()),
    }
    for name, (algorithm, protocol) in ways.items():
        for workers in (16, 64):
            trace, problem = trace_of(workers, int(4096 * scale), protocol), mlp()
            found = over_bare(trace, problem, algorithm, Bare(trace, problem).fastest(), measures=False)
            yield from both(f"peers.{name}.{workers}", found)
        trace, net = trace_of(16, int(1024 * scale), protocol), ConvNet(Digits())
        found = over_bare(trace, net, algorithm, Bare(trace, net).fastest(), measures=False)
        yield from both(f"peers.{name}.convnet", found)


def with_lax_conv() -> Problem:
    """A user's model, whose convolutions are those of JAX."""
    rng = np.random.default_rng(0)
    params = {
        "kernel": rng.normal(size=(3, 3, 1, 16)) / 3,
        "second": rng.normal(size=(3, 3, 16, 32)) / 12,
        "last": rng.normal(size=(7 * 7 * 32, 10)) / 40,
    }

    def loss(params: Any, batch: Any) -> Any:
        x = batch["x"]
        for name in ("kernel", "second"):
            x = lax.conv_general_dilated(x, params[name], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            n, height, width, channels = x.shape
            x = jax.nn.relu(x).reshape(n, height // 2, 2, width // 2, 2, channels).max((2, 4))
        logits = jax.nn.log_softmax(x.reshape(len(x), -1) @ params["last"])
        return -jnp.mean(jnp.take_along_axis(logits, batch["y"][:, None], 1))

    train = {"x": rng.normal(size=(512, *SHAPE, 1)), "y": rng.integers(10, size=512)}
    return CustomProblem(loss, params, train)
