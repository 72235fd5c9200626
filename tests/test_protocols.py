"""The ways to wait for a parameter server, against closed forms and their own definitions."""

import heapq
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_timing import gradients_balance

from asyncsim.algorithms import ASGD, SMEGA2, SSGD, DanaZero, Rennala, Ringmaster
from asyncsim.cluster import (
    P3,
    Cluster,
    Constant,
    Exponential,
    FixedDelays,
    Gamma,
    Horovod,
    Host,
    Lognormal,
    Pareto,
    PyTorchDDP,
    Racks,
    Servers,
    ShiftedExponential,
    Whole,
    Workers,
)
from asyncsim.errors import Deadlock, InputError
from asyncsim.naming import trace_name
from asyncsim.problems import Quadratic
from asyncsim.protocols import (
    Asynchronous,
    BackupWorkers,
    KAsync,
    KBatchAsync,
    KBatchSync,
    KSync,
    NSoftsync,
    Protocol,
    RennalaRounds,
    RingmasterDelays,
    Serial,
    SignificantUpdates,
    StaleSynchronous,
    Synchronous,
)
from asyncsim.recording import Stop, record
from asyncsim.replaying import costs_of, replay
from asyncsim.scenario import Scenario
from asyncsim.testing import check_protocol, nothing_is_lost
from asyncsim.trace import Trace
from asyncsim.vocabulary import APPLY, CANCEL, READ
from asyncsim.workload import Costs, Workload

N, K = 8, 4
PROTOCOLS = [
    *(Asynchronous(), Synchronous(), KSync(2), KBatchSync(2), KAsync(2), KBatchAsync(2), BackupWorkers(1)),
    *(NSoftsync(2), StaleSynchronous(0), StaleSynchronous(2), RennalaRounds(3), RennalaRounds(3, stop=True)),
    *(RingmasterDelays(2), RingmasterDelays(2, stop=True), RingmasterDelays()),
]


def harmonic(n):
    return sum(1 / k for k in range(1, n + 1))


def order_statistic(step_time, k):
    """The mean of the k-th smallest of N step times."""
    ranks = harmonic(N) - harmonic(N - k)
    if isinstance(step_time, Exponential):
        return step_time.mean * ranks
    if isinstance(step_time, ShiftedExponential):
        return step_time.shift + step_time.scale * ranks
    assert isinstance(step_time, Pareto)
    g, a = math.gamma, step_time.shape
    return step_time.minimum * g(N + 1) * g(N - k + 1 - 1 / a) / (g(N - k + 1) * g(N + 1 - 1 / a))


EXPONENTIAL, SHIFTED, PARETO = Exponential(1.0), ShiftedExponential(0.5, 0.5), Pareto(2.0, 0.5)
RUNTIMES = [  # seconds an update, where there is a closed form; relative sampling error of 20,000 updates
    *((t, KSync(k), order_statistic(t, k), 0.01) for t in (EXPONENTIAL, SHIFTED, PARETO) for k in (1, K)),
    *((t, Synchronous(), order_statistic(t, N), e) for t, e in ((EXPONENTIAL, 0.01), (SHIFTED, 0.01), (PARETO, 0.05))),
    (EXPONENTIAL, KBatchSync(K), K / N, 0.01),
    (EXPONENTIAL, RennalaRounds(K, stop=True), K / N, 0.01),
    (EXPONENTIAL, KAsync(K), order_statistic(EXPONENTIAL, K), 0.01),
    *((t, KBatchAsync(K), K / N, e) for t, e in ((EXPONENTIAL, 0.01), (SHIFTED, 0.01), (PARETO, 0.05))),
    *((t, Asynchronous(), 1 / N, e) for t, e in ((EXPONENTIAL, 0.02), (SHIFTED, 0.01), (PARETO, 0.05))),
    (EXPONENTIAL, NSoftsync(2), K / N, 0.01),
    (EXPONENTIAL, BackupWorkers(0), order_statistic(EXPONENTIAL, N), 0.01),
]


@pytest.mark.parametrize(("step_time", "protocol", "expected", "error"), RUNTIMES, ids=repr)
def test_seconds_of_an_update(make_cluster, step_time, protocol, expected, error):
    trace = record(make_cluster(step_time, N), protocol, stop=Stop(updates=20_000), seed=1)
    assert trace.end / 20_000 == pytest.approx(expected, rel=error)


def test_published_examples():
    """N = 8, K = 4, exponential of mean 1: the figures that the formulas are quoted with."""
    forms = [order_statistic(EXPONENTIAL, K), order_statistic(EXPONENTIAL, N), order_statistic(SHIFTED, K)]
    forms += [order_statistic(SHIFTED, N), order_statistic(PARETO, K), order_statistic(PARETO, N)]
    assert forms == pytest.approx([0.6345, 2.718, 0.817, 1.859, 0.696, 2.546], abs=6e-4)


def same_rows(a: Trace, b: Trace) -> None:
    for name in ("time", "verb", "worker", "source", "take", "accepted", "closes"):
        assert np.array_equal(getattr(a, name), getattr(b, name)), name
    assert np.array_equal(a.span_time, b.span_time)


SAME = [
    (KSync(N), Synchronous()),
    (KAsync(N), Synchronous()),
    (BackupWorkers(0), Synchronous()),
    (KAsync(1), Asynchronous()),
    (KBatchAsync(1), Asynchronous()),
    (NSoftsync(N), Asynchronous()),
    (NSoftsync(2), KBatchAsync(N // 2)),
    (StaleSynchronous(10**9), Asynchronous()),
    (RingmasterDelays(10**9), Asynchronous()),
    (RingmasterDelays(10**9, stop=True), Asynchronous()),
    (RennalaRounds(K, stop=True), KBatchSync(K)),
    (RingmasterDelays(1), RennalaRounds(1)),
    (RingmasterDelays(1, stop=True), RennalaRounds(1, stop=True)),
    (KSync(1), KBatchSync(1)),
]


@pytest.mark.parametrize("latency", [0.0, 0.25])
@pytest.mark.parametrize("step_time", [Constant(1.0), Gamma(1.0, 0.5)], ids=["equal", "gamma"])
@pytest.mark.parametrize(("one", "other"), SAME, ids=repr)
def test_reductions(make_cluster, one, other, step_time, latency):
    """The special cases of one protocol that are another one: the same rows at the same times."""
    cluster = make_cluster(step_time, N, latency)
    traces = [record(cluster, p, stop=Stop(seconds=20.0), seed=2) for p in (one, other)]
    same_rows(*traces)
    assert len(traces[0]) > 100


def test_ssp_without_slack_is_bsp(make_cluster):
    """All compute at the same parameters, at the same times; N gradients one by one are N times their mean."""
    cluster, rounds = make_cluster(Gamma(1.0, 0.5), N), 40
    ssp = record(cluster, StaleSynchronous(0), stop=Stop(updates=rounds * N), seed=3)
    bsp = record(cluster, Synchronous(), stop=Stop(updates=rounds), seed=3)
    assert ssp.end == bsp.end
    applied = [np.sort(t.time[t.verb == APPLY]) for t in (ssp, bsp)]
    assert np.array_equal(*applied)
    problem = Quadratic(eigenvalues=(1.0, 0.3), noise=0.5)
    runs = [
        replay(ssp, ASGD(0.01), problem, precision="float64"),
        replay(bsp, SSGD(0.01 * N), problem, precision="float64"),
    ]
    assert runs[0].params["x"] == pytest.approx(runs[1].params["x"], rel=1e-12)


@pytest.mark.parametrize("slack", [0, 1, 3])
def test_ssp_blocks_at_the_predicted_instants(slack):
    """Times 1, 1, 1, 10: a fast worker does slack + 1 iterations, then waits for each one of the slow worker's."""
    cluster = Cluster((Workers(Constant(1.0), 3), Workers(Constant(10.0))))
    trace = record(cluster, StaleSynchronous(slack), stop=Stop(seconds=60.0))
    waits = {i: [] for i in range(4)}
    spans = trace.spans
    for worker, kind, start, end in zip(*(spans[k] for k in ("worker", "kind", "start", "end")), strict=True):
        if kind == "wait":
            waits[worker].append((start, end))
    first = slack + 1.0  # seconds, as its iterations take one each
    expected = [(first, 10.0), *((t + 1.0, t + 10.0) for t in (10.0, 20.0, 30.0, 40.0, 50.0))]
    for fast in range(3):
        assert waits[fast] == expected
    assert waits[3] == []
    slack_is_kept(trace, slack)


def slack_is_kept(trace: Trace, slack: int) -> None:
    """At every event: who begins an iteration is at most ``slack`` ahead of who has done the fewest."""
    done = np.zeros(trace.num_workers, int)
    for verb, worker in zip(trace.verb, trace.worker, strict=True):
        if verb == APPLY:
            done[worker] += 1
        else:
            assert verb == READ
            assert done[worker] - done.min() <= slack


@settings(max_examples=30, deadline=None)
@given(
    means=st.lists(st.floats(0.1, 10.0), min_size=1, max_size=6),
    slack=st.integers(0, 4),
    latency=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 1000),
)
def test_ssp_keeps_its_slack(means, slack, latency, seed):
    cluster = Cluster(tuple(Workers(Exponential(m)) for m in means), latency)
    trace = record(cluster, StaleSynchronous(slack), stop=Stop(updates=200), seed=seed)
    slack_is_kept(trace, slack)
    nothing_is_lost(trace)


def by_heap(cluster, protocol, size, seed, gradients):
    """Arrivals (time, worker, staleness, accepted) from the definitions alone: a heap, each message as if alone."""
    n, server = cluster.num_workers, cluster.servers.host
    hosts = [group.host for group in cluster.workers for _ in range(group.count)]
    latency = [host.latency + cluster.latency + server.latency for host in hosts]
    up = [a + size / min(host.sends, server.receives) for a, host in zip(latency, hosts, strict=True)]
    down = [a + size / min(server.sends, host.receives) for a, host in zip(latency, hosts, strict=True)]
    steps = [cluster.step_times(i, seed) for i in range(n)]
    quorum, slack = protocol.size(n), getattr(protocol, "slack", None)
    version, arrived, queue, out = 0, 0, [], []
    read, begun, done, waiting = [0] * n, [0] * n, [0] * n, set()

    def begin(i, now, receive=True):
        read[i], begun[i] = version, begun[i] + 1
        heapq.heappush(queue, (now + down[i] * receive + next(steps[i]) + up[i], i, begun[i]))

    for i in range(n):
        begin(i, 0.0, receive=False)
    while len(out) < gradients:
        now, i, number = heapq.heappop(queue)
        if number != begun[i]:
            continue  # it was stopped
        fits = version == read[i] or not getattr(protocol, "fresh", False)
        out.append((now, i, version - read[i], fits))
        if not fits:
            begin(i, now)
            continue
        waiting.add(i)
        done[i] += 1
        arrived += 1
        if arrived == quorum:
            version, arrived = version + 1, 0
            goes = range(n) if getattr(protocol, "stops", False) else sorted(waiting)
            for j in [j for j in goes if slack is None or done[j] <= min(done) + slack]:
                begin(j, now)
                waiting.discard(j)
    return out


@settings(max_examples=150, deadline=None)
@given(
    groups=st.lists(
        st.builds(
            Workers,
            st.sampled_from([Exponential(0.5), Gamma(0.3, 0.6), ShiftedExponential(0.1, 0.3)]),
            st.integers(1, 3),
            st.builds(Host, bandwidth=st.sampled_from([None, 3e5, 2e6]), latency=st.sampled_from([0.0, 0.03])),
        ),
        min_size=1,
        max_size=3,
    ),
    server=st.builds(Host, bandwidth=st.sampled_from([None, 1e6]), latency=st.sampled_from([0.0, 0.01])),
    latency=st.sampled_from([0.0, 0.15]),
    size=st.sampled_from([1, 200_000]),
    k=st.integers(1, 4),
    seed=st.integers(0, 10_000),
)
def test_protocols_against_their_definitions(groups, server, latency, size, k, seed):
    """Event for event against a heap: asynchronous, synchronous, SSP, K-sync, K-async, backup workers."""
    cluster = Cluster(tuple(groups), latency, servers=Servers(host=server), sharing="none")
    k = min(k, cluster.num_workers)
    backup = BackupWorkers(cluster.num_workers - k)
    for protocol in (Asynchronous(), Synchronous(), StaleSynchronous(k - 1), KSync(k), KAsync(k), backup):
        trace = record(cluster, protocol, Workload(tensor_bytes=(size,)), stop=Stop(updates=40), seed=seed)
        rows = trace.gradients
        expected = by_heap(cluster, protocol, size, seed, len(rows))
        times, *rest = (np.array(column) for column in zip(*expected, strict=True))
        assert trace.time[rows] == pytest.approx(times, rel=1e-9)
        for ours, theirs in zip((trace.worker, trace.staleness, trace.accepted), rest, strict=True):
            assert np.array_equal(ours[rows], theirs), protocol


BIG = Workload(tensor_bytes=(100_000, 2_000_000, 30_000))
step_times = st.sampled_from(
    [Constant(1.0), Constant(0.5), Exponential(1.0), Gamma(1.0, 0.3), Lognormal(1.0, 1.0), ShiftedExponential(0.5, 0.5)]
)
hosts = st.sampled_from(
    [
        *(Host(), Host(bandwidth=1e7), Host(workers=2, bandwidth=1e7, link_bandwidth=1e8, link_latency=0.001)),
        *(Host(bandwidth=3e6, receive_bandwidth=1e7, latency=0.01), Host(bandwidth=2e7, copy_bandwidth=1e7)),
    ]
)
clusters = st.builds(
    Cluster,
    st.lists(st.builds(Workers, step_times, st.integers(1, 3), hosts), min_size=1, max_size=3).map(tuple),
    st.sampled_from([0.0, 0.05]),
    servers=st.builds(
        Servers,
        st.integers(1, 3),
        hosts,
        update_seconds=st.sampled_from([None, 0.1, Exponential(0.05)]),
        update_bandwidth=st.sampled_from([None, 1e8]),
        lock=st.booleans(),
    ),
    topology=st.sampled_from([{"name": "flat"}, Racks(2, bandwidth=2e7), Racks(1, bandwidth=5e6, latency=0.01)]),
    sharing=st.sampled_from(["fair", "fifo", "none"]),
    eager_limit=st.sampled_from([None, 0, 1_000_000]),
    buckets=st.sampled_from([Whole(), PyTorchDDP(bucket_bytes=500_000), Horovod(cycle=0.1), P3(slice_bytes=400_000)]),
)


@settings(max_examples=150, deadline=None)
@given(cluster=clusters, protocol=st.sampled_from(PROTOCOLS), seed=st.integers(0, 1000), seconds=st.floats(0.5, 12.0))
def test_nothing_is_lost_whatever_happens(cluster, protocol, seed, seconds):
    """Gradients and bytes are conserved, spans tile the run, and nobody waits for ever."""
    try:
        protocol.check(cluster.num_workers)
    except InputError:
        return
    trace = record(cluster, protocol, BIG, stop=Stop(seconds=seconds), seed=seed)
    nothing_is_lost(trace)
    bytes_are_conserved(trace, cluster)
    spans = trace.spans
    for i in range(trace.num_workers):
        mine = spans["worker"] == i
        assert np.array_equal(spans["start"][mine][1:], spans["end"][mine][:-1])
        assert (spans["start"][mine][0], spans["end"][mine][-1]) == (0.0, trace.end)


def bytes_are_conserved(trace: Trace, cluster: Cluster) -> None:
    """What was sent has arrived, was given up, or is on its way; what was applied has arrived whole; no interface moves
    more than it can."""
    t = trace.transfers
    assert np.all(t["moved"] <= t["bytes"])
    up = (t["kind"] == "up") & np.isfinite(t["end"]) & (t["moved"] == t["bytes"])
    arrived = np.bincount(t["worker"][up], weights=t["bytes"][up], minlength=trace.num_workers)
    applied = np.bincount(trace.worker[trace.verb == APPLY], minlength=trace.num_workers)
    # a gradient may be in line at the server, or have parts of it there
    model = trace.workload.model_bytes
    assert np.all(arrived >= applied * model * (1 - 1e-9))
    given_up = np.bincount(trace.worker[trace.verb == CANCEL], minlength=trace.num_workers)
    assert np.all(arrived <= (applied + given_up + 1) * model * (1 + 1e-9))
    if cluster.sharing == "none":
        return
    for number, host in enumerate(cluster.hosts):
        for end, bandwidth in (("source", host.sends), ("target", host.receives)):
            through = (t[end] == number) & (t["source"] != t["target"])
            if bandwidth < float("inf") and through.any():
                lasted = min(float(t["end"][through].max()), trace.end) - t["start"][through].min()
                assert t["moved"][through].sum() <= bandwidth * lasted * (1 + 1e-9) + 1e-3


@pytest.mark.parametrize("protocol", [*PROTOCOLS, Serial(), SignificantUpdates()], ids=repr)
def test_battery(protocol):
    """Equal times never deadlock, nor do others; the same twice; nothing is lost."""
    check_protocol(protocol)


def test_the_battery_finds_what_is_wrong():
    class Lost(Protocol):
        """Reads twice, and uses one."""

        kind = "server"

        def start(self, sim):
            def worker(i):
                while True:
                    sim.log.read(i)
                    read = sim.log.read(i)
                    yield sim.compute(i)
                    sim.log.apply(i, read)

            for i in range(sim.num_workers):
                sim.env.process(worker(i))

    class Stuck(Protocol):
        """Waits for what nobody does."""

        kind = "server"

        def start(self, sim):
            def worker(i):
                yield sim.compute(i)
                yield from sim.wait(i, sim.env.event(), "nobody")

            sim.env.process(worker(0))

    for wrong, message in (
        (Lost(), r"worker 0 read at 0\.0 s \(row 0\), and nothing came of it"),
        (Stuck(), r"on 1 workers: at 1\.0 s nothing is left to happen; worker 0 waits for nobody"),
    ):
        with pytest.raises(AssertionError, match=message):
            check_protocol(wrong)


def test_completion_wins_over_cancellation(make_cluster):
    """Four workers finish at the same instant, two are enough: the others have arrived as well, and are dropped."""
    trace = record(make_cluster(Constant(1.0), 4), KSync(2), stop=Stop(updates=3))
    assert not np.any(trace.verb == CANCEL)
    first = (trace.verb == APPLY) & (trace.time == 1.0)
    assert trace.worker[first].tolist() == [0, 1, 2, 3]
    assert trace.accepted[first].tolist() == [True, True, False, False]
    # one that would finish later is cancelled, at the instant of the update, and begins anew
    cluster = Cluster((Workers(Constant(1.0), 2), Workers(Constant(1.5))))
    trace = record(cluster, KSync(2), stop=Stop(updates=3))
    cancels = np.flatnonzero(trace.verb == CANCEL)
    assert (trace.worker[cancels].tolist(), trace.time[cancels].tolist()) == ([2, 2], [1.0, 2.0])
    assert trace.time[trace.closes].tolist() == [1.0, 2.0, 3.0]


def test_backup_workers_drop_what_is_late():
    cluster = Cluster((Workers(Constant(1.0), 3), Workers(Constant(2.5))))
    trace = record(cluster, BackupWorkers(1), stop=Stop(seconds=5.0))
    assert trace.time[trace.closes].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    late = (trace.verb == APPLY) & ~trace.accepted
    assert (trace.worker[late].tolist(), trace.time[late].tolist()) == ([3, 3], [2.5, 5.0])


def test_ringmaster_keeps_its_delay():
    cluster = Cluster((Workers(Exponential(1.0), 4), Workers(Exponential(10.0), 2)))
    for stop in (False, True):
        trace = record(cluster, RingmasterDelays(5, stop=stop), stop=Stop(updates=2000), seed=1)
        rows = trace.gradients
        assert trace.staleness[rows][trace.accepted[rows]].max() == 4
        assert np.all(trace.staleness[rows][~trace.accepted[rows]] >= 5)
        assert bool(np.any(trace.verb == CANCEL)) == stop
        assert bool(np.any(~trace.accepted)) != stop
        if stop:  # a worker is stopped by the very update that makes it too old
            cancels = np.flatnonzero(trace.verb == CANCEL)
            assert set((trace.version[cancels] - trace.version[trace.source[cancels]]).tolist()) == {5}


def test_staleness_of_softsync_is_about_its_number_of_parts(make_cluster):
    for parts in (1, 2, 4):
        trace = record(make_cluster(Exponential(1.0), 32), NSoftsync(parts), stop=Stop(updates=4000), seed=1)
        # N - 1 gradients that arrive in between are (N - 1) / c updates of c each
        assert trace.summary()["staleness_mean"] == pytest.approx(31 / (32 // parts), rel=0.03)


@pytest.mark.parametrize("lock", [True, False])
@pytest.mark.parametrize("sharing", ["fair", "fifo", "none"])
def test_gradients_in_a_queue_age_like_the_others(sharing, lock):
    """N - 1 is a matter of who is busy, not of why: with a network and a server that takes time as well."""
    cluster = Cluster(
        (Workers(Gamma(1.0, 0.5), 6, Host(bandwidth=1e7)),),
        servers=Servers(host=Host(bandwidth=1e7, copy_bandwidth=1e7), update_seconds=0.2, lock=lock),
        sharing=sharing,
    )
    gradients_balance(record(cluster, Asynchronous(), BIG, stop=Stop(updates=300), seed=5))


def test_an_update_stops_who_still_receives():
    """Two fast workers, and one whose new parameters take 2.5 s to arrive: an update stops it on its way, and it never
    begins to compute on parameters that are old already."""
    cluster = Cluster((Workers(Constant(1.0), 2), Workers(Constant(0.1), 1, Host(receive_bandwidth=4e5))))
    trace = record(cluster, KSync(2), Workload(tensor_bytes=(1_000_000,)), stop=Stop(seconds=20.0))
    computes = trace.spans["start"][(trace.spans["worker"] == 2) & (trace.spans["kind"] == "compute")]
    assert computes.tolist() == [0.0]
    assert np.all(trace.staleness[trace.gradients][trace.accepted[trace.gradients]] == 0)
    assert np.sum(trace.cancels) == 19


def test_a_sum_of_gradients_takes_its_time():
    """N gradients that arrive together: each is added to the sum (two buffers), then the update touches its own."""
    for n in (2, 16):
        cluster = Cluster((Workers(Constant(1.0), n),), servers=Servers(update_bandwidth=1e6))
        workload, costs = Workload(tensor_bytes=(100_000,)), Costs(update=3)
        trace = record(cluster, Synchronous(), workload, costs, stop=Stop(updates=1))
        assert trace.end == pytest.approx(1 + 0.1 * (2 * n + 3))
    # an update of one gradient is no sum
    trace = record(cluster, Asynchronous(), workload, costs, stop=Stop(updates=16))
    assert trace.end == pytest.approx(1 + 0.1 * 3 * 16)


def test_the_buffers_of_an_update_are_the_methods(make_cluster):
    """The server moves what the method keeps; where it takes no time for that, methods share their traces."""
    problem = Quadratic(eigenvalues=(1.0, 2.0))
    assert [costs_of(m, problem).update for m in (ASGD(), ASGD(0.1, 0.9), SMEGA2(), DanaZero())] == [2, 3, 4, 4]
    assert costs_of(SSGD(), problem, summed=True).update == 2
    slow = Cluster((Workers(Constant(1.0), 4),), servers=Servers(update_bandwidth=1e3))
    for cluster, different in ((slow, 2), (make_cluster(Constant(1.0), 4), 1)):
        scenarios = [Scenario(cluster, m, problem, Stop(updates=9)) for m in (ASGD(), SMEGA2())]
        assert len({trace_name(s) for s in scenarios}) == different
        assert len({s.record().end for s in scenarios}) == different


def test_injected_delays_come_before_the_step_they_delay():
    """Also where its gradient is sent in pieces: the first one is ready in the backward pass, not during the sleep."""
    buckets = PyTorchDDP(first_bucket_bytes=1, bucket_bytes=1)
    cluster = Cluster((Workers(Constant(0.3)),), delays=(FixedDelays((0,), 9.0),), buckets=buckets)
    trace = record(cluster, Asynchronous(), Workload(tensor_bytes=(100, 100)), stop=Stop(updates=1))
    assert trace.transfers["start"][:2].tolist() == pytest.approx([9.2, 9.3])
    assert trace.end == pytest.approx(9.3)


def test_a_thousand_workers(make_cluster):
    cluster = Cluster((Workers(Gamma(1.0, 0.2), 1000, Host(bandwidth=1e9)),), servers=Servers(host=Host(bandwidth=1e9)))
    for protocol in (Asynchronous(), Synchronous(), KSync(500), StaleSynchronous(2)):
        trace = record(cluster, protocol, BIG, stop=Stop(seconds=4.0))
        nothing_is_lost(trace)
        assert trace.updates[-1] >= 1


def test_who_waits_for_whom_is_said(make_cluster):
    class Forgets(StaleSynchronous):
        """Nobody tells those who wait."""

        def start(self, sim):
            def worker(i):
                yield sim.compute(i)
                yield from sim.wait(i, sim.env.event(), f"the key that worker {1 - i} has")

            for i in range(2):
                sim.env.process(worker(i))

    with pytest.raises(Deadlock, match=r"at 1.0 s .*worker 0 waits for the key that worker 1 has, worker 1 waits for"):
        record(make_cluster(Constant(1.0), 2), Forgets(0), stop=Stop(updates=1))


def test_a_barrier_that_one_never_reaches_is_said(make_cluster):
    class Loses(Synchronous):
        """Waits for one more than there are."""

        def size(self, num_workers):
            return num_workers + 1

    with pytest.raises(Deadlock, match="worker 0 waits for an update of 3 gradients, of which 2 have arrived"):
        record(make_cluster(Constant(1.0), 2), Loses(), stop=Stop(updates=1))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"name": "ssp", "slack": -1}, "protocol.slack: expected a whole number >= 0"),
        ({"name": "k_sync", "gradients": 5}, "protocol.gradients: expected at most the number of workers, 4, got 5"),
        ({"name": "k_async", "gradients": 5}, "protocol.gradients: expected at most the number of workers, 4, got 5"),
        ({"name": "k_batch_sync", "gradients": 5}, "protocol.gradients: expected at most the number of workers"),
        ({"name": "k_batch_async", "gradients": 0}, "protocol.gradients: expected a whole number >= 1"),
        ({"name": "k_sync"}, "protocol.gradients: is missing"),
        ({"name": "backup", "spare": 4}, "protocol.spare: leaves none of the 4 workers"),
        ({"name": "n_softsync", "parts": 5}, "protocol.parts: expected at most the number of workers, 4, got 5"),
        ({"name": "rennala", "gradients": 0}, "protocol.gradients: expected a whole number >= 1"),
        ({"name": "ringmaster", "max_delay": 0}, "protocol.max_delay: expected a whole number >= 1"),
        ({"name": "k_sink"}, "no protocol is called 'k_sink'.*did you mean 'k_sync'"),
        ({"name": "gaia"}, "gaia is for a method of kind peers"),
    ],
)
def test_bad_input_is_refused_when_built(make_cluster, table, message):
    with pytest.raises(InputError, match=message):
        Scenario(make_cluster(Constant(1.0), 4), ASGD(), Quadratic(), Stop(updates=3), protocol=table)


def test_methods_bring_their_protocols(make_cluster):
    for method, protocol in ((Rennala(), RennalaRounds()), (Ringmaster(), RingmasterDelays())):
        scenario = Scenario(make_cluster(Constant(1.0), 4), method, Quadratic(), Stop(updates=3))
        assert scenario.runs_on == protocol


def test_a_protocol_that_does_not_fit_a_cluster_is_refused_by_record(make_cluster):
    with pytest.raises(InputError, match="gradients: expected at most"):
        record(make_cluster(Constant(1.0), 2), KSync(3), stop=Stop(updates=1))
    assert issubclass(KSync, Protocol)
