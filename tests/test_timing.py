"""The timing half against closed forms."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncsim.algorithms import SGD
from asyncsim.cluster import (
    CVB,
    GPU,
    Cluster,
    Constant,
    DrawnDelays,
    Empirical,
    Exponential,
    FixedDelays,
    Gamma,
    IndependentDelays,
    Lognormal,
    Markov,
    Pareto,
    Recorded,
    ShiftedExponential,
    Uniform,
    Workers,
)
from asyncsim.errors import Deadlock, InputError
from asyncsim.problems import Quadratic
from asyncsim.protocols import Asynchronous, Protocol, Serial, Synchronous
from asyncsim.recording import Stop, record
from asyncsim.replaying import Every, replay
from asyncsim.testing import nothing_is_lost, small_trace
from asyncsim.trace import Trace
from asyncsim.vocabulary import APPLY, READ
from asyncsim.workload import Workload

DISTRIBUTIONS = [
    *(Constant(0.5), Uniform(0.5, 1.5), Gamma(1.0, 0.3), Lognormal(1.0, 0.5), Exponential(2.0)),
    *(ShiftedExponential(0.2, 0.1), Pareto(3.0, 0.5), Empirical(values=[0.5, 1.0, 4.0])),
]
STEP_TIMES = [
    *DISTRIBUTIONS,
    *(CVB(1.0, 0.1, 0.6), CVB(1.0, 0.1, 0.1), Markov(0.5, Exponential(2.0), 10, 3)),
    *(Recorded(values=[0.5, 1.0, 4.0], start="random"), GPU("T4", "fp32", 0.5, sample_flops=1e11, cv=0.2)),
]
DELAYS = [FixedDelays([0], 0.5), DrawnDelays(1, 1.0), IndependentDelays(0.2, Exponential(1.0))]


def gradients_balance(trace: Trace) -> None:
    """Staleness of applied gradients + ages of those in flight = (N - 1) x updates."""
    applied = trace.staleness[trace.gradients].sum()
    ages = (trace.updates[-1] - trace.version[trace.in_flight]).sum()
    assert applied + ages == (trace.num_workers - 1) * trace.updates[-1]


@settings(max_examples=40, deadline=None)
@given(
    groups=st.lists(st.tuples(st.sampled_from(STEP_TIMES), st.integers(1, 5)), min_size=1, max_size=3),
    latency=st.sampled_from([0.0, 0.1]),
    delays=st.lists(st.sampled_from(DELAYS), max_size=2),
    updates=st.integers(1, 300),
    seed=st.integers(0, 2**31 - 1),
)
def test_staleness_balances_for_any_busy_workers(groups, latency, delays, updates, seed):
    cluster = Cluster(tuple(Workers(step_time, count) for step_time, count in groups), latency, delays)
    trace = record(cluster, Asynchronous(), stop=Stop(updates=updates), seed=seed)
    assert trace.updates[-1] == updates
    assert len(trace.in_flight) == cluster.num_workers
    gradients_balance(trace)
    nothing_is_lost(trace)


@settings(max_examples=20, deadline=None)
@given(
    step_time=st.sampled_from(STEP_TIMES),
    count=st.integers(1, 6),
    latency=st.sampled_from([0.0, 0.1]),
    end=st.sampled_from([{"updates": 7}, {"samples": 1000}, {"seconds": 3.7}]),
    seed=st.integers(0, 2**31 - 1),
)
def test_no_gradient_of_a_barrier_is_lost(step_time, count, latency, end, seed):
    cluster = Cluster((Workers(step_time, count),), latency)
    nothing_is_lost(record(cluster, Synchronous(), stop=Stop(**end), seed=seed))


@pytest.mark.parametrize("seed", range(10))
def test_no_gradient_is_lost_where_some_are_dropped_or_cancelled(seed):
    trace = small_trace("server", seed=seed, local_steps=False)
    nothing_is_lost(trace)
    assert {"dropped", "cancelled"} <= {k for k, v in trace.summary().items() if v}


@pytest.mark.parametrize("latency", [0.0, 0.25])
@pytest.mark.parametrize("n", [1, 2, 8])
def test_equal_constant_times_give_n_minus_1_after_start_up(make_cluster, n, latency):
    trace = record(make_cluster(Constant(1.0), n, latency), Asynchronous(), stop=Stop(updates=10 * n))
    staleness = trace.staleness[trace.gradients]
    assert staleness[:n].tolist() == list(range(n))
    assert set(staleness[n:].tolist()) == {n - 1}


def test_exponential_times_give_geometric_staleness(make_cluster):
    n, updates = 8, 200_000
    trace = record(make_cluster(Exponential(1.0), n), Asynchronous(), stop=Stop(updates=updates), seed=1)
    staleness = trace.staleness[trace.gradients]
    share = np.bincount(staleness)[:20] / updates
    law = (1 / n) * (1 - 1 / n) ** np.arange(20)
    assert law[:4] == pytest.approx([0.125, 0.1094, 0.0957, 0.0837], abs=5e-5)
    # successive gradients are nearly independent: three standard deviations, doubled for what dependence there is
    assert np.all(np.abs(share - law) < 6 * np.sqrt(law / updates))


@pytest.mark.parametrize(("n", "expected"), [(8, 1.147), (32, 1.218)])
def test_asynchronous_over_synchronous_throughput(make_cluster, n, expected):
    cluster, stop = make_cluster(Gamma(1.0, 0.1), n), Stop(samples=2000 * n)
    workload = Workload(batch_size=1)
    both = [record(cluster, p, workload, stop=stop, seed=3).summary() for p in (Asynchronous(), Synchronous())]
    # sampling error: the mean of 2000 maxima has a relative deviation of about 0.06/sqrt(2000) = 0.0013
    assert both[0]["throughput"] / both[1]["throughput"] == pytest.approx(expected, abs=0.005)


def test_synchronous_time_is_the_sum_of_maxima(make_cluster):
    n, rounds, latency = 5, 30, 0.125
    cluster = make_cluster(Gamma(1.0, 0.4), n, latency)
    trace = record(cluster, Synchronous(), stop=Stop(updates=rounds), seed=4)
    times = np.array([[next(s) for _ in range(rounds)] for s in (cluster.step_times(i, 4) for i in range(n))])
    assert trace.end == pytest.approx(times.max(0).sum() + latency * (2 * rounds - 1), rel=1e-12)
    assert not trace.staleness[trace.gradients].any()
    assert trace.take[trace.gradients] == pytest.approx(1 / n)
    assert trace.closes.sum() == rounds


def test_deterministic_unequal_times_give_the_sum_of_rates():
    cluster = Cluster((Workers(Constant(1.0), 2), Workers(Constant(4.0), 3)))
    trace = record(cluster, Asynchronous(), stop=Stop(seconds=40.0))
    assert trace.updates[-1] == 2 * 40 + 3 * 10
    assert trace.end == 40.0


def test_exchanges_at_equal_times_go_by_worker():
    """At every whole second both finish; SimPy alone would let the one come first that was scheduled earlier."""
    cluster = Cluster((Workers(Constant(1.0)), Workers(Constant(2.0)), Workers(Constant(1.0))))
    trace = record(cluster, Asynchronous(), stop=Stop(seconds=20.0))
    for second in range(1, 21):
        here = (trace.time == second) & (trace.verb == APPLY)
        assert trace.worker[here].tolist() == ([0, 1, 2] if second % 2 == 0 else [0, 2])
    # an exchange is contiguous: an apply is followed by its worker's read
    applies = np.flatnonzero(trace.verb == APPLY)
    assert np.all(trace.verb[applies + 1] == READ)
    assert np.all(trace.worker[applies + 1] == trace.worker[applies])


def test_latency_delays_but_does_not_age(make_cluster):
    slow = record(make_cluster(Constant(1.0), 4, 0.5), Asynchronous(), stop=Stop(updates=100))
    fast = record(make_cluster(Constant(1.0), 4), Asynchronous(), stop=Stop(updates=100))
    assert slow.staleness.tolist() == fast.staleness.tolist()
    assert fast.end == 25.0
    assert slow.end == 25 * 2.0 - 0.5  # the first compute needs no download


def test_adding_a_worker_leaves_the_others_draws(make_cluster):
    few, many = make_cluster(Gamma(1.0, 0.5), 3), make_cluster(Gamma(1.0, 0.5), 4)
    for i in range(3):
        a, b = few.step_times(i, 7), many.step_times(i, 7)
        assert [next(a) for _ in range(600)] == [next(b) for _ in range(600)]
    traces = [record(c, Asynchronous(), stop=Stop(seconds=50.0), seed=7) for c in (few, many)]
    first = [t.time[(t.verb == APPLY) & (t.worker == 0)] for t in traces]
    assert first[0].tolist() == first[1].tolist()


def test_streams_of_workers_and_seeds_differ(make_cluster):
    cluster = make_cluster(Gamma(1.0, 0.5), 2)
    assert len({next(cluster.step_times(i, seed)) for i in (0, 1) for seed in (0, 1)}) == 4


@pytest.mark.parametrize("protocol", [Asynchronous(), Synchronous()])
@pytest.mark.parametrize("latency", [0.0, 0.3])
def test_spans_tile_every_workers_lifetime(make_cluster, protocol, latency):
    trace = record(make_cluster(Gamma(1.0, 0.5), 4, latency), protocol, stop=Stop(updates=37))
    spans = trace.spans
    for i in range(4):
        mine = spans["worker"] == i
        start, end = spans["start"][mine], spans["end"][mine]
        assert start[0] == 0
        assert end[-1] == trace.end
        assert start[1:].tolist() == end[:-1].tolist()
    shares = trace.summary()
    total = sum(shares[f"{k}_share"] for k in ("compute", "send", "receive", "wait"))
    assert total == pytest.approx(1)


@pytest.mark.parametrize("step_time", DISTRIBUTIONS)
def test_mean_of_step_times(step_time):
    draws = step_time.draw(np.random.default_rng(0), 200_000)
    assert draws.min() > 0
    assert draws.mean() == pytest.approx(step_time.mean_seconds, rel=0.02)


def test_gamma_tail():
    draws = Gamma(128.0, 0.1).draw(np.random.default_rng(0), 1_000_000)
    assert np.mean(draws > 1.25 * 128) == pytest.approx(0.0094, abs=0.0003)
    assert draws.std() / draws.mean() == pytest.approx(0.1, rel=0.005)


@pytest.mark.parametrize(
    ("stop", "updates", "end"),
    [
        (Stop(updates=7), 7, 4.0),
        (Stop(samples=100), 4, 2.0),
        (Stop(epochs=0.5), 2, 1.0),
        (Stop(seconds=3.0), 6, 3.0),
        (Stop(seconds=3.5), 6, 3.5),
        (Stop(updates=100, seconds=2.0), 4, 2.0),
        (Stop(epochs=0.75), 3, 2.0),
    ],
)
def test_stop(make_cluster, stop, updates, end):
    workload = Workload(batch_size=32, num_samples=128)
    trace = record(make_cluster(Constant(1.0), 2), Asynchronous(), workload, stop=stop)
    assert (trace.updates[-1], trace.end) == (updates, end)
    assert trace.spans["end"].max() == end


def test_rounding_adds_no_step(make_cluster):
    """0.07 epochs of 100 samples are 7.000000000000001 samples; three steps of 0.2 s end at 0.6000000000000001 s."""
    workload = Workload(batch_size=7, num_samples=100)
    for epochs, gradients in ((0.07, 1), (0.14, 2), (0.28, 4), (0.35, 5), (0.56, 8)):
        trace = record(make_cluster(Constant(1.0), 1), Serial(), workload, stop=Stop(epochs=epochs))
        assert len(trace.gradients) == gradients
    trace = record(make_cluster(Constant(0.2), 1), Serial(), stop=Stop(seconds=0.6))
    assert (len(trace.gradients), trace.end) == (3, 0.6)
    run = replay(trace, SGD(0.1), Quadratic(), every=Every(seconds=0.2))
    assert run.evals["updates"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cluster": 3}, "cluster: expected a Cluster, got 3"),
        (
            {"protocol": Asynchronous},
            r"protocol: expected a Protocol, got the class Asynchronous; make one",
        ),
        (
            {"protocol": SGD(0.1)},
            r"protocol: expected a Protocol, got SGD\(.*; SGD is an algorithm: asyncsim list sgd shows what it runs on",
        ),
        ({"workload": Quadratic()}, "workload: expected a Workload, .*problem.workload"),
        ({"stop": 3}, "stop: expected a Stop, got 3"),
        ({"stop": Stop(epochs=3)}, "stop.epochs: needs a workload with num_samples"),
        ({"stop": Stop(seconds=1e300)}, "stop: about .* gradients or more come before the end"),
        ({"seed": -1}, "seed: expected a whole number from 0"),
        ({"seed": "a"}, "seed: expected an int, got 'a'"),
    ],
)
def test_wrong_arguments_are_named(make_cluster, change, message):
    arguments = {"cluster": make_cluster(Constant(1.0), 2), "protocol": Asynchronous(), "stop": Stop(updates=3)}
    with pytest.raises(InputError, match=message):
        record(**(arguments | change))


def test_clusters_are_checked_when_made():
    for make, message in (
        (lambda: Cluster(Workers(Constant(1.0))), "workers: expected a list"),
        (lambda: Cluster((0.1,)), r"workers\[0\]: expected a Workers"),
        (lambda: Workers([0.1]), "step_time: expected a step-time model"),
        (lambda: Constant(np.array(-1.0)), "seconds: expected a number > 0 .*, got -1.0"),
        (lambda: Gamma(1.0, 1e-200), "cv: expected a number >= 1e-09"),
        (lambda: Gamma(None, 1.0), "mean: expected a number > 0"),
        (lambda: Cluster(()), "workers: a cluster has at least one group"),
    ):
        with pytest.raises(InputError, match=message):
            make()
    assert Constant(np.float32(0.5)).seconds == 0.5


def test_one_worker_and_a_thousand(make_cluster):
    for protocol in (Asynchronous(), Synchronous(), Serial()):
        trace = record(make_cluster(Constant(1.0), 1), protocol, stop=Stop(updates=5))
        assert (trace.end, trace.staleness.max()) == (5.0, 0)
    trace = record(make_cluster(Gamma(1.0, 0.1), 1000), Asynchronous(), stop=Stop(updates=20_000))
    gradients_balance(trace)


def test_serial_refuses_several_workers(make_cluster):
    with pytest.raises(InputError, match="1 worker, not 2"):
        record(make_cluster(Constant(1.0), 2), Serial(), stop=Stop(updates=1))


def test_a_deadlock_says_who_waits(make_cluster):
    class Forgetful(Protocol):
        kind = "server"

        def start(self, sim):
            def worker(i):
                yield sim.compute(i)
                yield sim.env.event()

            for i in range(sim.num_workers):
                sim.env.process(worker(i))

    with pytest.raises(Deadlock, match=r"at 1\.0 s .*worker 0 in compute, worker 1 in compute"):
        record(make_cluster(Constant(1.0), 2), Forgetful(), stop=Stop(updates=1))


def test_an_error_in_a_protocol_is_not_taken_for_a_deadlock(make_cluster):
    class Broken(Protocol):
        kind = "server"

        def start(self, sim):
            def worker():
                yield sim.compute(0)
                raise RuntimeError("of its own")

            sim.env.process(worker())

    with pytest.raises(RuntimeError, match="of its own"):
        record(make_cluster(Constant(1.0), 1), Broken(), stop=Stop(updates=1))


def test_a_number_stands_for_a_constant_step_time():
    assert Workers(0.5, 2) == Workers(Constant(0.5), 2)
    with pytest.raises(InputError, match=r"step_time\.seconds: expected a number > 0"):
        Workers(0.0)
    with pytest.raises(InputError, match="step_time: expected a step-time model"):
        Workers(True)
