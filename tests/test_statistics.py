"""Whose statistics a model keeps and is evaluated with: moving averages by hand, in both engines."""

import jax.numpy as jnp
import numpy as np
import pytest

from asyncsim.algorithms import ASGD, Averaging
from asyncsim.data.sampling import Batches
from asyncsim.errors import InputError
from asyncsim.problems import CustomProblem, Quadratic
from asyncsim.recorder import Recorder
from asyncsim.replaying import Every, replay
from asyncsim.replaying.peer_plan import kept_apart, pack
from asyncsim.testing import small_trace
from asyncsim.trace import Trace

X = np.random.default_rng(0).normal(size=20)


def loss(params, extra, batch, key):
    return jnp.mean((params["w"] - batch["x"]) ** 2), {"mean": 0.75 * extra["mean"] + 0.25 * jnp.mean(batch["x"])}


def metrics(params, extra, batch):
    return {"loss": jnp.mean((params["w"] - batch["x"]) ** 2), "kept": extra["mean"]}


PROBLEM = CustomProblem(loss, {"w": np.zeros(())}, {"x": X}, metrics=metrics, extra={"mean": np.ones(())})
METHODS = {"server": ASGD(0.1), "peers": Averaging(0.1)}


def by_hand(trace, statistics, rows):
    """The moving average that an evaluation takes after so many rows of the trace."""
    batches = Batches(0, 20, trace.batch_size)
    kept = np.ones(1 if statistics == "shared" else trace.num_workers)
    for r in trace.gradients[trace.gradients < rows]:
        i = trace.worker[r]
        x = X[batches.indices(np.array([i]), np.array([trace.step[r]]))[0]]
        holder = 0 if statistics == "shared" else i
        kept[holder] = 0.75 * kept[holder] + 0.25 * x.mean()
    return kept.mean() if statistics == "mean" else kept[0]


@pytest.mark.parametrize("engine", ["scan", "rows"])
@pytest.mark.parametrize("statistics", ["mean", "first", "shared"])
@pytest.mark.parametrize("kind", ["server", "peers"])
@pytest.mark.parametrize("seed", range(3))
def test_moving_averages_by_hand(engine, statistics, kind, seed):
    trace = small_trace(kind, local_steps=False, seed=seed)
    run = replay(
        trace,
        METHODS[kind],
        PROBLEM,
        statistics=statistics,
        engine=engine,
        every=Every(seconds=7.0),
        precision="float64",
    )
    rows = [int(np.searchsorted(trace.time, t, side="right")) if t else 0 for t in run.evals["time"]]
    assert len(rows) > 4
    assert run.evals["kept"] == pytest.approx([by_hand(trace, statistics, r) for r in rows], abs=1e-12)


def test_the_mean_is_what_is_taken_unless_told_otherwise_and_the_run_says_so():
    trace = Trace.from_arrivals([0, 1, 2, 2])
    plain, mean, first = (
        replay(trace, ASGD(0.1), PROBLEM, **more) for more in ({}, {"statistics": "mean"}, {"statistics": "first"})
    )
    assert plain.evals["kept"].tolist() == mean.evals["kept"].tolist() != first.evals["kept"].tolist()
    assert [run.settings["statistics"] for run in (plain, first)] == ["mean", "first"]
    with pytest.raises(
        InputError, match="statistics: expected 'mean', 'first' or 'shared', got 'shard'; did you mean 'shared'"
    ):
        replay(trace, ASGD(0.1), PROBLEM, statistics="shard")


def test_without_anything_kept_the_choice_compiles_nothing():
    from asyncsim.replaying.pools import PROGRAMS

    for kind, method in METHODS.items():
        trace = small_trace(kind, local_steps=False)
        replay(trace, method, Quadratic())
        before = len(PROGRAMS)
        for statistics in ("first", "shared"):
            replay(trace, method, Quadratic(), statistics=statistics)
        assert len(PROGRAMS) == before


@pytest.mark.parametrize("seed", range(20))
def test_steps_keep_their_order_where_all_share(seed):
    trace = small_trace("peers", num_workers=5, gradients=100, seed=seed)
    cuts, apart = [0, 70, len(trace)], kept_apart(trace)
    rows, done = pack(trace, 2, cuts, apart, in_order=True)
    steps = [row.step for row in rows if row.step >= 0]
    assert steps == np.flatnonzero(np.isin(np.arange(len(trace)), trace.gradients)).tolist()
    assert [row.step for row in rows[: done[1]] if row.step >= 0] == [r for r in steps if r < 70]
    places = {id(row): k for k, row in enumerate(rows)}
    assert all(places[id(other)] < k for k, row in enumerate(rows) for other in row.needs)
    free, _ = pack(trace, 2, cuts, apart)
    assert len(rows) < 1.5 * len(free)


def test_a_mix_that_a_later_step_hangs_on_comes_first():
    """Peer 0 sums a mix, peer 1 takes it and steps, then peer 0 steps: not both in the row of peer 0's merge."""
    log = Recorder(2, "peers")
    for i in range(2):
        log.step(i, log.read(i))
    mix = log.mix([log.publish(i) for i in range(2)], [0.5, 0.5])
    for i in range(2):
        log.merge(i, mix)
    for i in (1, 0):
        log.step(i, log.read(i))
    trace = log.trace()
    rows, _ = pack(trace, 2, [0, len(trace)], kept_apart(trace), in_order=True)
    assert [row.step for row in rows if row.step >= 0] == trace.gradients.tolist()
    a, b = (
        replay(trace, Averaging(0.1), PROBLEM, statistics="shared", engine=e, precision="float64")
        for e in ("scan", "rows")
    )
    assert a.evals["kept"] == pytest.approx(b.evals["kept"], abs=1e-12)


def test_a_thousand_peers_in_order():
    log = Recorder(1500, "peers")
    for i in range(1500):
        log.step(i, log.read(i))
    trace = log.trace()
    rows, _ = pack(trace, 2, [0, len(trace)], kept_apart(trace), in_order=True)
    assert [row.worker for row in rows] == list(range(1500))
