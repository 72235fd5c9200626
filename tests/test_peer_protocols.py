"""Protocols between peers: WAGMA-SGD and its rivals, by hand, against each other, and in what they conserve."""

import itertools
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncsim.algorithms import (
    ADPSGD,
    DPSGD,
    SGD,
    SGP,
    SSGD,
    WAGMA,
    AllreduceSGD,
    EagerSGD,
    Gaia,
    LocalSGD,
    OverlapSGP,
)
from asyncsim.cluster import (
    P3,
    Cluster,
    Constant,
    Exponential,
    FixedDelays,
    Gamma,
    Horovod,
    Host,
    IndependentDelays,
    Racks,
    Recorded,
    Tensors,
    Whole,
    Workers,
)
from asyncsim.data import Blobs
from asyncsim.errors import InputError
from asyncsim.problems import MLP, Quadratic
from asyncsim.protocols import (
    EagerAllreduce,
    GradientAllreduce,
    OverlapPush,
    PairwiseAveraging,
    PeriodicAveraging,
    Push,
    RingAveraging,
    Serial,
    Synchronous,
    WaitAvoidingGroups,
)
from asyncsim.recorder import Recorder
from asyncsim.recording import Stop, record
from asyncsim.replaying import replay
from asyncsim.scenario import Scenario
from asyncsim.scenario_files import scenarios_of
from asyncsim.testing import check_protocol, nothing_is_lost
from asyncsim.trace import ARRAYS
from asyncsim.vocabulary import MERGE, MIX, PUBLISH, READ, STEP, VERBS
from asyncsim.workload import Workload

PROTOCOLS = [
    *(GradientAllreduce(), GradientAllreduce("binomial_tree"), PeriodicAveraging(), PeriodicAveraging(3, "ring")),
    *(RingAveraging(), RingAveraging(2, early=True), Push(), Push(2), Push(2, "exponential")),
    *(OverlapPush(), OverlapPush(2, staleness=2)),
    *(PairwiseAveraging(), PairwiseAveraging(2, "exponential"), PairwiseAveraging(graph="random")),
    *(EagerAllreduce(), EagerAllreduce("majority", sync_period=4, average_period=3)),
    *(WaitAvoidingGroups(), WaitAvoidingGroups(2, 3), WaitAvoidingGroups(4, 0, "fixed")),
    *(WaitAvoidingGroups(sync_period=4, groups="none"), WaitAvoidingGroups(2, 5, wait="all")),
    WaitAvoidingGroups(2, 11, average="before", count_own="always"),
]
SMALL = Workload(batch_size=4, tensor_bytes=(1_000_000, 2_000_000))
EACH = Tensors()


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=repr)
def test_battery(protocol):
    """Equal times form groups without deadlock, as do others; the same twice; nothing is lost."""
    check_protocol(protocol)


def fits(protocol, num_workers):
    try:
        protocol.check(num_workers)
    except InputError:
        return False
    return True


clusters = st.builds(
    lambda groups, host, **more: Cluster(tuple(Workers(t, c, host) for t, c in groups), **more),
    groups=st.lists(
        st.tuples(st.sampled_from([Constant(1.0), Exponential(1.0), Gamma(1.0, 0.3)]), st.integers(1, 4)),
        min_size=1,
        max_size=3,
    ),
    host=st.sampled_from(
        [Host(), Host(bandwidth=2e7, latency=0.01), Host(2, 2e7, copy_bandwidth=1e7, link_bandwidth=4e7)]
    ),
    topology=st.sampled_from([{"name": "flat"}, Racks(2, bandwidth=2e7)]),
    sharing=st.sampled_from(["fair", "fifo", "none", "rounds"]),
    eager_limit=st.sampled_from([None, 0, 1_500_000]),
    buckets=st.sampled_from([Whole(), EACH]),
)


@settings(max_examples=150, deadline=None)
@given(cluster=clusters, protocol=st.sampled_from(PROTOCOLS), seed=st.integers(0, 1000), seconds=st.floats(0.5, 12.0))
def test_nothing_is_lost_whatever_happens(cluster, protocol, seed, seconds):
    """Gradients are conserved, spans tile the run, and nobody waits for ever."""
    if not fits(protocol, cluster.num_workers):
        return
    trace = record(cluster, protocol, SMALL, stop=Stop(seconds=seconds), seed=seed)
    nothing_is_lost(trace)
    assert np.all(trace.transfers["moved"] <= trace.transfers["bytes"])


# ---------------------------------------------------------------- what mixing does to the models, without any gradients


def mixed(trace, rows=None):
    """(N, N) of each worker's model at the end, the parts of all initial models in it; and mass that is under way.

    Push-sum included: mass that was published and not merged is returned apart."""
    own, made = np.eye(trace.num_workers), {}
    for r in range(len(trace) if rows is None else rows):
        i = trace.worker[r]
        if trace.verb[r] == PUBLISH:
            made[r] = own[i].copy()
            own[i] *= trace.keep[r]
        elif trace.verb[r] == MIX:
            part = slice(trace.mix_start[r], trace.mix_start[r + 1])
            made[r] = sum(w * made[m] for m, w in zip(trace.member[part], trace.share[part], strict=True))
        elif trace.verb[r] == MERGE:
            own[i] = trace.keep[r] * own[i] + trace.take[r] * made[trace.source[r]]
    return own


def whole_rounds(trace, steps):
    """The row after the last merge or step of everybody's first ``steps`` iterations."""
    ends = [r for r in range(len(trace)) if trace.verb[r] in (STEP, MERGE) and trace.step[r] <= steps]
    return max(ends) + 1


def of(times, **more):
    return Cluster(tuple(Workers(t) for t in times), **more)


@pytest.mark.parametrize("step_time", [Constant(1.0), Exponential(1.0)])
@pytest.mark.parametrize(
    "protocol",
    [
        *(PeriodicAveraging(), RingAveraging(), RingAveraging(2), Push(), Push(2), Push(2, "exponential")),
        *(PairwiseAveraging(), PairwiseAveraging(3, "random")),
        *(WaitAvoidingGroups(4, 0, wait="all"), WaitAvoidingGroups(2, 4, wait="all")),
    ],
    ids=repr,
)
def test_doubly_stochastic_mixing_conserves_the_mean(protocol, step_time):
    """Each model is an average of the initial ones, and all initial ones are in them at equal weight: at the end of an
    iteration, or where mixing is by pairs, at any time."""
    trace = record(Cluster((Workers(step_time, 8),)), protocol, stop=Stop(seconds=7.5))
    by_pairs = isinstance(protocol, PairwiseAveraging | PeriodicAveraging)
    own = mixed(trace)
    if isinstance(step_time, Constant) or not isinstance(protocol, Push):  # else a part of it is under way
        assert own.sum(1) == pytest.approx(np.ones(8), abs=1e-12)
    if isinstance(step_time, Constant) or by_pairs:
        assert own.sum(0) == pytest.approx(np.ones(8), abs=1e-12)
    assert spread(own) < 2


def spread(own):
    return np.linalg.norm(own - own.mean(0))


def test_a_ring_contracts_as_its_second_eigenvalue():
    """1/3 + 2/3 cos(2 pi / n) a round: .949253 for 16."""
    cluster = Cluster((Workers(1.0, 16),))
    after = [mixed(record(cluster, RingAveraging(), stop=Stop(updates=16 * k))) for k in (61, 81)]
    assert (spread(after[1]) / spread(after[0])) ** (1 / 20) == pytest.approx(
        1 / 3 + 2 / 3 * np.cos(np.pi / 8), abs=1e-6
    )
    assert 1 / 3 + 2 / 3 * np.cos(np.pi / 8) == pytest.approx(0.949253, abs=1e-6)


@pytest.mark.parametrize("width", [1, 2, 3, 6])
def test_a_butterfly_averages_exactly(width):
    """Groups of S among 64: the global average after log2 P / log2 S iterations, and not before."""
    cluster, rounds = Cluster((Workers(1.0, 64),)), 6 // width
    spreads = [
        spread(mixed(record(cluster, WaitAvoidingGroups(1 << width, 0), stop=Stop(seconds=k + 0.5))))
        for k in range(rounds + 1)
    ]
    assert min(spreads[:-1]) > 0.99
    assert spreads[-1] < 1e-12


def test_random_pairs_contract_as_they_should():
    """Pairs of an active and a passive worker, at random: the covariance of what is left of a vector after k of them
    follows from E[W C W^T]; among all pairs the squared distance would contract by 1 - 1/(n - 1)."""
    n = 16

    def pair(i, j):
        w = np.eye(n)
        w[[i, i, j, j], [i, j, i, j]] = 0.5
        return w

    every = [pair(i, j) for i, j in itertools.combinations(range(n), 2)]
    assert np.linalg.eigvalsh(sum(w.T @ w for w in every) / len(every) - 1 / n)[-1] == pytest.approx(1 - 1 / (n - 1))
    crossing = [pair(i, j) for i, j in itertools.product(range(1, n, 2), range(0, n, 2))]
    x = np.random.default_rng(0).normal(size=n)
    x -= x.mean()
    left = [np.outer(x, x)]
    while len(left) < 60:
        left.append(sum(w @ left[-1] @ w for w in crossing) / len(crossing))
    cluster, found = Cluster((Workers(Exponential(1.0), n),)), []
    for seed in range(400):
        trace = record(cluster, PairwiseAveraging(graph="random"), stop=Stop(updates=60), seed=seed)
        y = mixed(trace) @ x
        found.append((y @ y, np.trace(left[int(np.sum(trace.verb == MIX))])))
    mean, expected = np.mean(found, 0)
    assert mean == pytest.approx(expected, rel=0.1)
    assert expected < 0.3 * x @ x


# ---------------------------------------------------------------- followed by hand


def rows_of(trace):
    """Every row but reads as text: time, verb, worker, and what it takes."""
    out = []
    for r in range(len(trace)):
        verb, time, i = VERBS[trace.verb[r]], float(trace.time[r]), int(trace.worker[r])
        if verb == "mix":
            part = slice(trace.mix_start[r], trace.mix_start[r + 1])
            shares = {str(Fraction(float(w)).limit_denominator(100)) for w in trace.share[part]}
            made = [f"{trace.worker[m]}@{trace.time[m]:g}" for m in trace.member[part]]
            out.append(f"{time:g} mix {' '.join(made)} at {' '.join(sorted(shares))}")
        elif verb == "merge":
            keep, take = (Fraction(float(x)).limit_denominator(100) for x in (trace.keep[r], trace.take[r]))
            out.append(f"{time:g} merge {i} {keep} {take}")
        elif verb != "read":
            out.append(f"{time:g} {verb} {i}")
    return out


def test_four_wagma_workers_of_which_one_is_late():
    """P = 4, S = 2, tau = 4; steps of 1 s, worker 3's first takes 3.5 s. Nothing costs time but steps.

    Worker 3 is late for iterations 0, 1 and 2: what it began with is in its groups' means then, at full weight. It
    takes the newest, that of iteration 2, with its own at 1/3; is late for its iterations 1 and 2, and takes the same
    again; then all wait for it at the global average.
    """
    late = Recorded(values=(3.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0))
    trace = record(of([1.0, 1.0, 1.0, late]), WaitAvoidingGroups(2, 4), stop=Stop(seconds=7.0))
    assert rows_of(trace) == [
        *("1 step 0", "1 publish 0", "1 step 1", "1 publish 1", "1 step 2", "1 publish 2"),
        "1 publish 3",  # what it began with, put out for it
        *("1 mix 0@1 1@1 at 1/2", "1 merge 0 0 1", "1 merge 1 0 1", "1 mix 2@1 3@1 at 1/2", "1 merge 2 0 1"),
        *("2 step 0", "2 publish 0", "2 step 1", "2 publish 1", "2 step 2", "2 publish 2"),
        *("2 mix 0@2 2@2 at 1/2", "2 merge 0 0 1", "2 mix 1@2 3@1 at 1/2", "2 merge 1 0 1", "2 merge 2 0 1"),
        *("3 step 0", "3 publish 0", "3 step 1", "3 publish 1", "3 step 2", "3 publish 2"),
        *("3 mix 0@3 1@3 at 1/2", "3 merge 0 0 1", "3 merge 1 0 1", "3 mix 2@3 3@1 at 1/2", "3 merge 2 0 1"),
        *("3.5 step 3", "3.5 publish 3", "3.5 merge 3 1/3 2/3"),
        *("4 step 0", "4 publish 0", "4 step 1", "4 publish 1", "4 step 2", "4 publish 2"),
        *("4.5 step 3", "4.5 publish 3", "4.5 merge 3 1/3 2/3", "5.5 step 3", "5.5 publish 3", "5.5 merge 3 1/3 2/3"),
        *("6.5 step 3", "6.5 publish 3", "6.5 mix 0@4 1@4 2@4 3@6.5 at 1/4"),
        *(f"6.5 merge {i} 0 1" for i in range(4)),
    ]
    # the mix that worker 3 takes is the newest each time, that of iteration 2
    mixes = np.flatnonzero(trace.verb == MIX)
    assert trace.source[(trace.verb == MERGE) & (trace.worker == 3)][:3].tolist() == [mixes[5]] * 3


def test_the_same_with_latency_and_the_released_codes_order():
    """A word takes .1 s, a model as well. Worker 3 would arrive at 1.15 s; it is told at 1.1 s and takes part with what
    it has; the round of its group is over at 1.2 s. With ``before`` and ``always`` models before the step are averaged,
    with one's own at 1/3."""
    times = [1.0, 1.0, 1.0, Recorded(values=(1.15, 1.0))]
    cluster = of(times, latency=0.1)
    trace = record(cluster, WaitAvoidingGroups(2, 0, average="before", count_own="always"), stop=Stop(updates=4))
    assert rows_of(trace) == [
        *("1 publish 0", "1 publish 1", "1 publish 2", "1.1 publish 3"),
        *("1.1 mix 0@1 1@1 at 1/2", "1.1 merge 0 1/3 2/3", "1.1 step 0", "1.1 merge 1 1/3 2/3", "1.1 step 1"),
        *("1.15 publish 3", "1.2 mix 2@1 3@1.1 at 1/2", "1.2 merge 2 1/3 2/3", "1.2 step 2", "1.2 merge 3 1/3 2/3"),
        "1.2 step 3",
    ]


@pytest.mark.parametrize("initiator", ["solo", "majority"])
def test_eager_rounds_take_what_is_there(initiator):
    """Every gradient travels once: what is late comes with the next round, in one sum with the new one."""
    cluster = Cluster((Workers(Gamma(1.0, 0.3), 8),), latency=0.01)
    trace = record(cluster, EagerAllreduce(initiator), stop=Stop(updates=400), seed=2)
    published = {int(r): int(trace.worker[r]) for r in np.flatnonzero(trace.verb == PUBLISH)}
    mixes = np.flatnonzero(trace.verb == MIX)
    used = trace.member.tolist()
    assert len(used) == len(set(used))  # no message is in two rounds
    assert set(published) - set(used) <= set(list(published)[-8:])
    assert np.all(trace.share == 1 / 8)
    present = np.diff(trace.mix_start)[mixes]
    assert 1 <= present.min() <= present.max() <= 8
    if initiator == "majority":
        assert present.mean() > 4
    # a worker's messages carry all its gradients, once each
    for i in range(8):
        mine = (trace.worker == i) & np.isin(trace.verb, (STEP, PUBLISH))
        verbs = trace.verb[mine]
        assert np.all(verbs[np.flatnonzero(verbs == PUBLISH) - 1] == STEP)


def test_eager_followed_by_hand():
    """Two workers, solo; worker 1's first gradient takes 1.5 s: it misses round 0, and comes with round 1."""
    times = [1.0, Recorded(values=(1.5, 0.25, 2.0))]
    trace = record(of(times), EagerAllreduce(), stop=Stop(seconds=2.5))
    assert rows_of(trace) == [
        *("1 step 0", "1 publish 0", "1 mix 0@1 at 1/2", "1 merge 0 1 1"),
        *("1.5 step 1", "1.5 merge 1 1 1"),  # takes round 0, which had worker 0's alone
        *("1.75 step 1", "1.75 publish 1", "1.75 mix 1@1.75 at 1/2", "1.75 merge 1 1 1"),  # both of its gradients
        *("2 step 0", "2 merge 0 1 1"),
    ]


def test_eager_with_full_rounds_and_averages_of_models():
    """The same; every second iteration waits for all, and is followed by an average of models."""
    times = [1.0, Recorded(values=(1.5, 1.0))]
    trace = record(of(times), EagerAllreduce(sync_period=2, average_period=2), stop=Stop(seconds=2.75))
    assert rows_of(trace) == [
        *("1 step 0", "1 publish 0", "1 mix 0@1 at 1/2", "1 merge 0 1 1"),
        *("1.5 step 1", "1.5 merge 1 1 1", "2 step 0", "2 publish 0"),
        *("2.5 step 1", "2.5 publish 1", "2.5 mix 0@2 1@2.5 at 1/2", "2.5 merge 0 1 1"),
        *("2.5 publish 0", "2.5 merge 1 1 1", "2.5 publish 1"),
        *("2.5 mix 0@2.5 1@2.5 at 1/2", "2.5 merge 0 0 1", "2.5 merge 1 0 1"),
    ]
    kept = trace.keep[trace.verb == PUBLISH]
    assert kept.tolist() == [0, 0, 0, 1, 1]  # gradients leave, models stay


def test_an_average_of_models_leaves_gradients_where_they_are():
    """Worker 1 has a gradient that no round had when models are averaged; it comes with the next round."""
    log = Recorder(2, "peers", workload=WORK)
    for i in (0, 1):
        log.step(i, log.read(i))
    first = log.mix([log.publish(0, keep=0.0)], [0.5])
    log.merge(0, first, keep=1.0)
    models = log.mix([log.publish(0), log.publish(1)], [0.5, 0.5])
    for i in (0, 1):
        log.merge(i, models)
    before = len(log.trace())
    late = log.mix([log.publish(1, keep=0.0)], [0.5])
    log.merge(0, late, keep=1.0)
    moved = [trained(trace, EagerSGD(0.1)) for trace in (log.trace().head(before), log.trace())]
    assert not same(*moved, off=1e-6)


def test_the_initiator_of_a_majority_is_drawn_evenly():
    """Workers come one after another: as many are there as come up to the initiator."""
    cluster, counts = of([1 + k / 10 for k in range(8)], latency=1e-4), np.zeros(9)
    for seed in range(400):
        trace = record(cluster, EagerAllreduce("majority"), stop=Stop(seconds=1.75), seed=seed)
        counts[np.diff(trace.mix_start).max()] += 1
    assert counts[0] == 0
    assert np.sum((counts[1:] - 50) ** 2 / 50) < 24.3  # chi-square, 7 degrees of freedom: one in a thousand


def test_a_passive_worker_answers_one_at_a_time():
    """Between what it sends and what it takes, it does neither for another."""
    cluster = Cluster((Workers(Exponential(1.0), 9),), latency=0.3)
    trace = record(cluster, PairwiseAveraging(2, "random"), stop=Stop(updates=400))
    for i in range(9):
        verbs = trace.verb[(trace.worker == i) & np.isin(trace.verb, (PUBLISH, MERGE))]
        assert np.all(verbs[::2] == PUBLISH)
        assert np.all(verbs[1::2] == MERGE)
    # on a ring first with the one after, then with the one before
    trace = record(Cluster((Workers(1.0, 6),), latency=0.01), PairwiseAveraging(2), stop=Stop(seconds=0.5))
    pairs = [
        trace.worker[trace.member[trace.mix_start[r] : trace.mix_start[r + 1]]].tolist()
        for r in np.flatnonzero(trace.verb == MIX)
    ]
    assert [[pair for pair in pairs if pair[0] == i] for i in (1, 3, 5)] == [
        [[1, 2], [1, 0]],
        [[3, 4], [3, 2]],
        [[5, 0], [5, 4]],
    ]


def test_fixed_groups_stay():
    trace = record(Cluster((Workers(1.0, 8),)), WaitAvoidingGroups(4, 0, "fixed"), stop=Stop(seconds=5.5))
    for r in np.flatnonzero(trace.verb == MIX):
        members = trace.worker[trace.member[trace.mix_start[r] : trace.mix_start[r + 1]]]
        assert len(set(members // 4)) == 1


def test_wagma_groups_are_those_of_the_papers_example():
    protocol = WaitAvoidingGroups(4)
    assert [protocol.bits(8, t) for t in range(3)] == [(0, 1), (2, 0), (1, 2)]
    trace = record(Cluster((Workers(1.0, 8),)), protocol, stop=Stop(updates=24))
    groups = [
        sorted(trace.worker[trace.member[trace.mix_start[r] : trace.mix_start[r + 1]]].tolist())
        for r in np.flatnonzero(trace.verb == MIX)
    ]
    assert groups[:4] == [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 4, 5], [2, 3, 6, 7]]
    assert [WaitAvoidingGroups().size_of_groups(n) for n in (1, 2, 4, 8, 16, 32, 64, 1024)] == [1, 2, 2, 2, 4, 4, 8, 32]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("sharing", ["fair", "rounds"])
def test_between_global_averages_contributions_are_at_most_tau_minus_one_old(sharing, seed):
    """By iterations: of the message and of who takes the mix in time. At global averages nobody is behind."""
    tau, n = 4, 8
    delays = (IndependentDelays(0.2, Exponential(2.0)),)
    host = Host(bandwidth=1e8, latency=1e-3)
    cluster = Cluster((Workers(Gamma(1.0, 0.1), n, host),), delays=delays, sharing=sharing)
    trace = record(cluster, WaitAvoidingGroups(2, tau), SMALL, stop=Stop(updates=n * 80), seed=seed)
    oldest = 0
    for r in np.flatnonzero(trace.verb == MERGE):
        mix, t = trace.source[r], trace.step[r]  # the worker has done t steps: it is in iteration t - 1
        members = trace.member[trace.mix_start[mix] : trace.mix_start[mix + 1]]
        ages = t - trace.step[members]
        if len(members) == n:
            assert t % tau == 0
            assert np.all(ages == 0)
        elif trace.keep[r] == 0:  # in time
            assert 0 <= ages.max() <= tau - 1
            oldest = max(oldest, ages.max())
    assert oldest >= 2


# ---------------------------------------------------------------- identities


def trained(trace, method, precision="float64"):
    problem = MLP(Blobs(features=5, classes=3, train=50, test=20), hidden=(4,))
    return jax.tree.leaves(replay(trace, method, problem, precision=precision, seed=3).params)


def same(a, b, off=1e-12):
    return all(np.abs(x - y).max() <= off for x, y in zip(a, b, strict=True))


WORK = Workload(batch_size=4)


def recorded(protocol, n, steps, step_time=None):
    """``steps`` of all workers in all."""
    return record(Cluster((Workers(step_time or Gamma(1.0, 0.2), n),)), protocol, WORK, stop=Stop(updates=steps))


@pytest.mark.parametrize("momentum", [None, 0.9])
def test_synchronous_sgd_in_five_ways(momentum):
    """On a server, by all-reduce of gradients, of models, in one group of WAGMA with nobody late, and eager with nobody
    late."""
    expected = trained(recorded(Synchronous(), 4, 8), SSGD(0.1, momentum))
    equal = Constant(1.0)
    # a run ends with a step, before its exchange: one more, so that the gradients of those before have been merged
    for trace, method in (
        (recorded(GradientAllreduce(), 4, 33), AllreduceSGD(0.1, momentum)),
        (recorded(PeriodicAveraging(), 4, 32), LocalSGD(0.1, momentum)),
        (recorded(WaitAvoidingGroups(4), 4, 32, equal), WAGMA(0.1, momentum)),
        (recorded(WaitAvoidingGroups(4, 0, wait="all"), 4, 32, equal), WAGMA(0.1, momentum)),
        (recorded(EagerAllreduce(), 4, 33, equal), EagerSGD(0.1, momentum)),
        (recorded(EagerAllreduce("majority", average_period=3), 4, 33, equal), EagerSGD(0.1, momentum)),
    ):
        assert same(trained(trace, method), expected), method


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=repr)
def test_one_worker_is_serial_sgd_bit_for_bit(protocol):
    cluster = Cluster((Workers(Gamma(1.0, 0.2)),))
    method = {"eager": EagerSGD, "allreduce": AllreduceSGD, "sgp": SGP, "overlap_sgp": OverlapSGP}.get(
        protocol.name, {"d_psgd": DPSGD, "ad_psgd": ADPSGD}.get(protocol.name, WAGMA)
    )
    if isinstance(protocol, WaitAvoidingGroups) and not fits(protocol, 1):
        protocol = WaitAvoidingGroups(1, 3)
    if isinstance(protocol, WaitAvoidingGroups) and protocol.count_own == "always":
        return  # averages with itself at 1/2
    serial = record(cluster, Serial(), WORK, stop=Stop(updates=20))
    alone = record(cluster, protocol, WORK, stop=Stop(seconds=float(serial.time[-1])))
    expected = trained(serial, SGD(0.1, 0.9))
    sums = protocol.name in ("eager", "allreduce")  # an addition of 0 lets XLA round once less
    assert same(trained(alone, method(0.1, 0.9)), expected, 1e-15 if sums else 0.0)


def test_no_groups_are_local_sgd():
    local = recorded(PeriodicAveraging(10, "recursive_doubling"), 8, 200)
    none = recorded(WaitAvoidingGroups(groups="none"), 8, 200)
    for name in ARRAYS:
        assert np.array_equal(getattr(local, name), getattr(none, name)), name


def test_push_sum_over_a_regular_graph_is_averaging():
    """Everybody sends and gets as many parts: weights stay 1, and SGP is averaging with these weights."""
    pushed = recorded(Push(2), 8, 64, Constant(1.0))
    log = Recorder(8, "peers", workload=WORK)
    for t in range(8):
        for i in range(8):
            log.step(i, log.read(i))
        sent = [log.publish(i) for i in range(8)]
        for i in range(8):
            mine = [i, *((i - 2 ** ((t + k) % 3)) % 8 for k in range(2))]
            log.merge(i, log.mix([sent[j] for j in mine], [1 / 3] * 3))
    assert same(trained(pushed.head(len(pushed) - 0), SGP(0.1, 0.9)), trained(log.trace(), DPSGD(0.1, 0.9)))


@pytest.mark.parametrize("protocol", [OverlapPush(2), OverlapPush(staleness=3)], ids=repr)
def test_overlapping_pushes_wait_for_what_is_too_old(protocol):
    """At the beginning of step t all is there that was sent in step t - 1 - staleness; nothing was awaited before that
    had to."""
    cluster = Cluster((Workers(Gamma(1.0, 0.5), 8),), latency=0.3)
    trace = record(cluster, protocol, stop=Stop(updates=400))
    merges = np.flatnonzero(trace.verb == MERGE)
    ages, found = [], {}
    for r in merges:
        (message,) = trace.member[trace.mix_start[trace.source[r]] : trace.mix_start[trace.source[r] + 1]]
        ages.append(trace.step[r] - trace.step[message])
        found.setdefault((int(trace.worker[r]), int(trace.step[message])), []).append(r)
    assert max(ages) <= protocol.staleness + 1
    assert max(ages) == protocol.staleness + 1
    assert all(len(mine) == protocol.peers for (_, step), mine in found.items() if step < 20)
    masses = mixed(trace)
    assert masses.sum() < 8 + 1e-9


# ---------------------------------------------------------------- time


def seconds_a_step(cluster, protocol, steps=2000, seed=0):
    trace = record(cluster, protocol, stop=Stop(updates=steps * cluster.num_workers), seed=seed)
    return trace.end / steps


def test_who_waits_for_whom_takes_as_long():
    """Exponential times, no network: the mean of the maximum H_8; of eight sums of ten; nobody's; with neighbours."""
    cluster = Cluster((Workers(Exponential(1.0), 8),))
    harmonic = sum(1 / k for k in range(1, 9))
    assert seconds_a_step(cluster, GradientAllreduce()) == pytest.approx(harmonic, rel=0.02)
    rng = np.random.default_rng(0)
    for protocol in (PeriodicAveraging(10), WaitAvoidingGroups(8, 10)):
        expected = rng.gamma(10, 1, (20_000, 8)).max(1).mean() / 10
        assert seconds_a_step(cluster, protocol) == pytest.approx(expected, rel=0.02)
    assert seconds_a_step(cluster, PairwiseAveraging()) == pytest.approx(1.0, rel=0.02)
    # neighbours only: between one's own time and everybody's
    assert 1.5 < seconds_a_step(cluster, RingAveraging()) < harmonic - 0.1


def test_a_delay_goes_one_hop_with_each_piece():
    """One of 16 on a ring is late by 10 s in its first step; exchanged whole that delays two neighbours in this step,
    exchanged in five pieces five on each side."""
    for tensors, delayed in (((1,), 2), ((1, 1, 1, 1, 1), 10)):
        cluster = Cluster((Workers(Recorded(values=(11.0, 1.0)), 1), Workers(1.0, 15)), buckets=Tensors(overlap=0.0))
        trace = record(cluster, RingAveraging(), Workload(tensor_bytes=tensors), stop=Stop(seconds=12.5))
        first = {int(trace.worker[r]): trace.time[r] for r in np.flatnonzero(trace.verb == STEP) if trace.step[r] == 0}
        assert sum(time > 10 for time in first.values()) == 1 + delayed


@pytest.mark.parametrize("name", ["allreduce", "local_sgd", "d_psgd", "eager", "wagma"])
def test_closed_forms_are_the_network_in_motion(name):
    """The same rows at the same times, where messages do not meet (each interface has one at a time)."""
    protocol = {p.name: p for p in (GradientAllreduce(), PeriodicAveraging(2), RingAveraging(), EagerAllreduce())}.get(
        name, WaitAvoidingGroups(4, 5)
    )
    host = Host(latency=0.01) if name == "d_psgd" else Host(bandwidth=1e8, latency=0.01)
    both = [
        record(
            Cluster((Workers(Gamma(1.0, 0.3), 8, host),), sharing=sharing, buckets=EACH),
            protocol,
            SMALL,
            stop=Stop(updates=200),
        )
        for sharing in ("none", "rounds")
    ]
    for i in range(8):  # at one instant in another order
        mine = [trace.worker == i for trace in both]
        for array in ("verb", "time", "keep", "take"):
            a, b = (getattr(trace, array)[which] for trace, which in zip(both, mine, strict=True))
            assert a == pytest.approx(b, rel=1e-9), array
    sent = [trace.transfers["bytes"].sum() for trace in both]
    assert sent[0] == pytest.approx(sent[1], rel=0.1)  # in closed form what is under way at the end is not written


# ---------------------------------------------------------------- what is refused, and what fits


@pytest.mark.parametrize(
    ("protocol", "workers", "message"),
    [
        (WaitAvoidingGroups(), 6, "partial collectives run on a power of two of workers .*, not on 6; 4 or 8 would do"),
        (WaitAvoidingGroups(3), 8, "group_size: expected a power of two of at most 8 workers, got 3"),
        (WaitAvoidingGroups(16), 8, "group_size: expected a power of two of at most 8 workers, got 16"),
        (WaitAvoidingGroups(groups="none", sync_period=0), 8, "sync_period: without groups, and never global"),
        (WaitAvoidingGroups(1, 0), 8, "sync_period: without groups, and never global"),
        (WaitAvoidingGroups(4, groups="none"), 8, "group_size: goes with groups; there are none"),
        (
            PairwiseAveraging(0),
            8,
            "averages: without pause worker 1 averages more than 10000 times a step, each in 0 s",
        ),
        (EagerAllreduce(), 12, "partial collectives run on a power of two"),
        (GradientAllreduce("rabenseifner"), 6, "all_reduce: rabenseifner needs a power of two of workers, not 6"),
        (Push(4), 8, "peers: 8 workers have at most 3 peers to send to, got 4"),
    ],
    ids=repr,
)
def test_what_cannot_run_is_refused(protocol, workers, message):
    with pytest.raises(InputError, match=message):
        record(Cluster((Workers(1.0, workers),)), protocol, stop=Stop(updates=10))


@pytest.mark.parametrize(
    ("method", "protocol", "message"),
    [
        (EagerSGD(0.1), WaitAvoidingGroups(4), r"row \d+, merge: keeps 0\.2"),
        (EagerSGD(0.1), WaitAvoidingGroups(4, wait="all"), "trace: no message of this trace carries gradients"),
        (AllreduceSGD(0.1), PeriodicAveraging(), "trace: .*; allreduce_sgd normally runs on allreduce"),
        (AllreduceSGD(0.1), RingAveraging(), "trace: no message of this trace carries gradients"),
        (EagerSGD(0.1), Push(2), r"row \d+, publish: keeps 0\.33"),
        (WAGMA(0.1), GradientAllreduce(), "weighs own and received models by 2 in all"),
        (LocalSGD(0.1), EagerAllreduce(), "weighs own and received models"),
        (LocalSGD(0.1), Push(2), "weighs own and received models"),
    ],
    ids=repr,
)
def test_a_method_on_a_protocol_of_another_is_right_or_refused(method, protocol, message):
    with pytest.raises(InputError, match=message):
        trained(recorded(protocol, 4, 40), method)


@pytest.mark.parametrize(
    ("method", "protocol", "message"),
    [
        (
            EagerSGD(0.1),
            PeriodicAveraging(),
            "local_sgd carries models, eager_sgd takes gradients; .*: allreduce, eager$",
        ),
        (Gaia(0.1), WaitAvoidingGroups(), "wagma carries models, gaia takes changes"),
        (SGP(0.1), GradientAllreduce(), "allreduce carries gradients, sgp takes mass or models"),
        (LocalSGD(0.1), Push(), "sgp carries mass, local_sgd takes models"),
    ],
    ids=repr,
)
def test_a_scenario_says_which_protocols_fit(method, protocol, message):
    with pytest.raises(InputError, match=f"^protocol.name: {message}"):
        Scenario(Cluster((Workers(1.0, 4),)), method, Quadratic(), protocol=protocol, stop=Stop(updates=10))


def test_settings_of_a_protocol_say_of_which():
    tables = {
        **{"algorithm": "local_sgd", "problem": "quadratic", "stop": {"updates": 10}},
        **{"cluster": {"workers": [{"count": 4, "step_time": 1.0}]}, "protocol": {"period": 7}},
    }
    with pytest.raises(InputError, match=r"^protocol.name: is missing; that of local_sgd is normally 'local_sgd'$"):
        scenarios_of(tables, "mine")
    (found,) = scenarios_of(tables, "mine", ["protocol.name=local_sgd"]).values()
    assert found.protocol == PeriodicAveraging(period=7)
    variants = {"mine": {"algorithm": {"name": "wagma"}, "protocol": {"group_size": 4}}}
    with pytest.raises(InputError, match=r"^variants.mine.protocol.name: is missing; .* normally 'wagma'$"):
        scenarios_of({**tables, "protocol": {}, "variants": variants}, "mine")


def test_push_sum_runs_on_averages_as_well():
    for protocol in (PeriodicAveraging(), WaitAvoidingGroups(2), PairwiseAveraging()):
        trace = recorded(protocol, 4, 40)
        assert same(trained(trace, SGP(0.1, 0.9)), trained(trace, LocalSGD(0.1, 0.9)))


@pytest.mark.parametrize("count", [2, 8])
def test_workers_behind_one_processor_in_closed_form(count):
    """As if all of a host went over theirs at once: in motion the first in line goes on before that."""
    host = Host(count, 1e8, latency=0.01, link_bandwidth=1e9, copy_bandwidth=5e7)
    ends = []
    for sharing in ("fair", "rounds"):
        cluster = Cluster((Workers(1.0, 8, host),), sharing=sharing)
        trace = record(cluster, PeriodicAveraging(all_reduce="recursive_doubling"), SMALL, stop=Stop(updates=9))
        ends.append(np.max(trace.time[trace.verb == MERGE], initial=0.0))
    assert ends[0] * (1 - 1e-9) <= ends[1] < ends[0] * 1.1


@pytest.mark.parametrize("buckets", [Horovod(), P3()])
def test_what_goes_to_a_server_is_refused_between_peers(buckets):
    cluster = Cluster((Workers(1.0, 4),), buckets=buckets)
    with pytest.raises(InputError, match=r"cluster\.buckets\.name: .* sends gradients to a server; peers exchange by"):
        record(cluster, GradientAllreduce(), SMALL, stop=Stop(updates=10))


def test_sparse_rows_are_gathered_after_the_rest():
    """Steps of 1 s; 3 MB at 10 MB/s among 4 by Rabenseifner, then 3 rounds of 1 MB."""
    cluster = Cluster((Workers(1.0, 4, Host(bandwidth=1e7, latency=0.05)),))
    trace = record(cluster, GradientAllreduce(gathered_bytes=1e6), SMALL, stop=Stop(updates=9))
    dense, rows = 4 * 0.1 + 2 * 0.75 * 0.3, 3 * (0.1 + 0.1)
    reads = np.unique(trace.time[trace.verb == READ])
    assert np.diff(reads) == pytest.approx([1 + dense + rows] * 2)
    with pytest.raises(
        InputError, match="gathered_bytes: needs the sizes of the tensors: a workload with tensor_bytes"
    ):
        record(cluster, GradientAllreduce(gathered_bytes=1e6), stop=Stop(updates=9))


def test_shares_of_time_tell_waiting_from_exchanging():
    """One of four is late by 2 s: three wait for it, then all exchange for .1 + .1 s."""
    cluster = Cluster((Workers(1.0, 4, Host(latency=0.05)),), delays=(FixedDelays((2,), 2.0),))
    trace = record(cluster, PeriodicAveraging(all_reduce="recursive_doubling"), stop=Stop(seconds=6.5))
    spans = trace.spans
    for i in range(4):
        mine = spans["worker"] == i
        kinds = ["compute", "send"] if i == 2 else ["compute", "wait", "send"]
        assert spans["kind"][mine][:-1].tolist() == kinds * 2
        lasted = (spans["end"] - spans["start"])[mine][:-1]
        assert lasted == pytest.approx([3, 0.2] * 2 if i == 2 else [1, 2, 0.2] * 2)


MEMORY = """
import asyncsim
cluster = asyncsim.Cluster((asyncsim.Workers(asyncsim.Gamma(1.0, 0.1), 64),), latency=0.01)
problem = asyncsim.MLP(asyncsim.Blobs(features=300, classes=10, train=512, test=128), hidden=(320,))
workload = problem.workload(batch_size=8)
assert workload.model_bytes > 390_000
trace = asyncsim.record(cluster, asyncsim.WaitAvoidingGroups(8, 10), workload, stop=asyncsim.Stop(updates=64 * 25))
asyncsim.replay(trace, asyncsim.WAGMA(0.01, 0.9), problem)
# not ru_maxrss, which begins with that of the process that started this one
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def test_64_peers_of_100_000_parameters_fit_in_a_gigabyte():
    if not Path("/proc/self/status").exists():
        pytest.skip("needs Linux to say how much memory a process took")
    out = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    assert float(out.stdout) < 1024 * 1024  # kilobytes


def test_a_delayed_worker_delays_whom_it_should():
    """One of eight is always late by 3 s: everybody waits for it, or nobody, or all at the global average."""
    cluster = Cluster((Workers(1.0, 8),), delays=(FixedDelays((5,), 3.0),))
    assert seconds_a_step(cluster, GradientAllreduce(), 40) == pytest.approx(4.0)
    trace = record(cluster, WaitAvoidingGroups(2, 4), stop=Stop(seconds=32.0))
    steps = [np.sum((trace.verb == STEP) & (trace.worker == i)) for i in range(8)]
    assert steps == [8] * 8
    reads = trace.time[(trace.verb == READ) & (trace.worker == 0)]
    assert reads.tolist() == [0.0, 1.0, 2.0, 3.0, 16.0, 17.0, 18.0, 19.0, 32.0]
