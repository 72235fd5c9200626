"""Protocols that values steer: the timing and the learning in lockstep."""

import heapq
from typing import ClassVar

import jax
import numpy as np
import pytest

from asyncsim.algorithms import ASGD, Averaging, Gaia, PeerAlgorithm, algorithm
from asyncsim.cluster import Cluster, Constant, Gamma, Host, SiteLink, Sites, Workers
from asyncsim.data import Blobs
from asyncsim.errors import InputError
from asyncsim.naming import trace_name
from asyncsim.problems import MLP, Quadratic
from asyncsim.protocols import Asynchronous, Protocol, SignificantUpdates
from asyncsim.recording import Recording, Stop, record
from asyncsim.scenario import Scenario, run
from asyncsim.schedules import Schedule
from asyncsim.steering import steer
from asyncsim.testing import check_protocol
from asyncsim.vocabulary import MERGE, PUBLISH, READ, STEP
from asyncsim.workload import Workload

STOP = {"stop": Stop(updates=3)}
SECONDS, LATENCY, BANDWIDTH, RATE = (1.0, 1.3, 0.7), 0.45, 50.0, 0.1
EIGENVALUES = (1.0, 0.5, 0.02, 0.3)


def sites(sharing="none", **more):
    host = Host(bandwidth=BANDWIDTH)
    return Cluster(tuple(Workers(Constant(s), 1, host) for s in SECONDS), LATENCY, sharing=sharing, **more)


def by_hand(start, threshold, steps):
    """Gaia on a quadratic without noise, from its definition: a heap of events and NumPy alone."""
    x = [np.array(start, float) for _ in SECONDS]
    unsent = [np.zeros(len(start)) for _ in SECONDS]
    done = [0] * len(SECONDS)
    at = [x_i.copy() for x_i in x]  # where each site's gradient is taken
    events = [(seconds, i, 0, "step", None) for i, seconds in enumerate(SECONDS)]
    heapq.heapify(events)
    count, sent, number = 0, [], 1
    while count < steps:
        now, i, _, kind, what = heapq.heappop(events)
        if kind == "arrive":
            target, message = what
            x[target] = x[target] + message
            continue
        change = -RATE * np.array(EIGENVALUES) * at[i]
        x[i] = x[i] + change
        unsent[i] = unsent[i] + change
        done[i] += 1
        count += 1
        large = np.abs(unsent[i]) > threshold / np.sqrt(done[i]) * np.abs(x[i])
        message = np.where(large, unsent[i], 0)
        if large.any() and count < steps:
            unsent[i] = unsent[i] - message
            size = 2 * large.mean() * 4 * len(start)  # a value and an index of 4 bytes each
            for j in range(len(SECONDS)):
                if j != i:
                    heapq.heappush(events, (now + LATENCY + size / BANDWIDTH, i, number, "arrive", (j, message)))
                    sent.append((now, i, j, size))
                    number += 1
        at[i] = x[i].copy()
        heapq.heappush(events, (now + SECONDS[i], i, number, "step", None))
        number += 1
    return x, sent


@pytest.mark.parametrize("threshold", [1e-9, 0.3, 2.0])
def test_gaia_against_its_definition(threshold):
    problem = Quadratic(eigenvalues=EIGENVALUES, noise=0.0)
    method, stop = Gaia(RATE, threshold=threshold), Stop(updates=60)
    scenario = Scenario(sites(), method, problem, stop, batch_size=1, precision="float64")
    done = run(scenario)
    start = np.asarray(problem.init(None)[0]["x"])
    x, sent = by_hand(start, threshold, 60)
    assert done.params["x"] == pytest.approx(np.mean(x, axis=0), rel=1e-12)
    transfers = done.trace.transfers
    ours = sorted(zip(*(transfers[k] for k in ("start", "source", "target", "bytes")), strict=True))
    assert np.array(ours) == pytest.approx(np.array(sorted(sent)), rel=1e-12)
    shares = {round(size / (8 * len(start)), 6) for *_, size in sent}
    assert shares == {1.0} if threshold < 1e-6 else len(shares) > 1


def test_a_replay_of_the_trace_learns_the_same():
    """The decisions belong to the trace; both ways of replaying it agree, and the trace says what was sent."""
    cluster = Cluster(
        (Workers(Gamma(0.1, 0.3), 3),),
        topology=Sites([1, 1, 1], [SiteLink(0, 1, 1e4, 0.05), SiteLink(1, 2, 1e4, 0.08)]),
    )
    problem = MLP(Blobs(features=5, classes=3, train=50, test=20), hidden=(8,))
    base = Scenario(cluster, Gaia(0.1, momentum=0.9, threshold=0.1), problem, Stop(updates=80), precision="float64")
    one = run(base)
    for engine in ("scan", "rows"):
        other = run(Scenario(**{**vars(base), "engine": engine}), trace=one.trace)
        for a, b in zip(jax.tree.leaves(one.params), jax.tree.leaves(other.params), strict=True):
            assert np.abs(a - b).max() < 1e-10
    assert np.sum(one.trace.verb == STEP) == 80
    assert 0 < one.summary["bytes_sent"] < 80 * 2 * 2 * one.trace.workload.model_bytes
    again = base.record()
    for name in ("time", "verb", "worker", "transfer_size"):
        assert np.array_equal(getattr(again, name), getattr(one.trace, name))
    # what is not significant stays at home: with a higher threshold less travels, and models lie further apart
    less = run(Scenario(**{**vars(base), "algorithm": Gaia(0.1, momentum=0.9, threshold=1.0)}))
    assert less.summary["bytes_sent"] < one.summary["bytes_sent"]


def test_one_site_is_serial():
    done = run(Scenario(Cluster((Workers(Constant(1.0)),)), Gaia(0.1), Quadratic(), Stop(updates=5)))
    assert (done.summary["seconds"], done.summary["updates"]) == (5.0, 5)
    assert not np.any(done.trace.verb == MERGE)


class UntilSmall(Protocol):
    """A steered protocol with a server: workers go twice as slowly once the server's decision says so."""

    kind: ClassVar[str] = "server"
    steered: ClassVar[bool] = True
    name = "until_small"

    def start(self, sim):
        def worker(i):
            read = sim.log.read(i)
            while True:
                yield sim.compute(i)
                sim.log.apply(i, read)
                if (yield from sim.ask(i)) < 0.5:
                    yield sim.compute(i)
                read = sim.log.read(i)

        for i in range(sim.num_workers):
            sim.env.process(worker(i))


@algorithm
class Watched(ASGD):
    """ASGD that is asked how large its first parameter is."""

    def decide(self, state, context):
        return abs(state["params"]["x"][0])


def test_a_server_can_steer_as_well():
    problem = Quadratic(eigenvalues=(1.0,))
    trace = steer(
        Cluster((Workers(Constant(1.0)),)), UntilSmall(), Watched(0.1), problem, stop=Stop(updates=12), seed=0
    )
    start = abs(float(problem.init(None)[0]["x"][0]))
    after = start * 0.9 ** np.arange(1, 13)  # its size after each update
    expected = 1.0 + np.concatenate([[0.0], np.cumsum(np.where(after[:-1] < 0.5, 2.0, 1.0))])
    assert trace.time[trace.closes] == pytest.approx(expected)
    assert len(set(np.diff(expected))) == 2


class TwoLocalSteps(Protocol):
    """Two gradients on each read, a question after the first, then an average of all."""

    kind: ClassVar[str] = "peers"
    steered: ClassVar[bool] = True
    name = "two_local_steps"

    def start(self, sim):
        def peer(i):
            while True:
                read = sim.log.read(i)
                for ask in (True, False):
                    yield sim.compute(i)
                    sim.log.step(i, read)
                    if ask:
                        yield from sim.ask(i)

        for i in range(sim.num_workers):
            sim.env.process(peer(i))


@algorithm
class Asked(Averaging):
    """Averaging that notes what it is asked with."""

    def decide(self, state, context):
        return 100 * context.step + context.learning_rate


def test_a_read_may_be_used_again_after_a_question():
    check_protocol(TwoLocalSteps())
    trace = steer(
        Cluster((Workers(Constant(1.0), 2),)),
        TwoLocalSteps(),
        Asked(0.1),
        Quadratic(eigenvalues=EIGENVALUES),
        stop=Stop(updates=12),
    )
    assert np.bincount(trace.source[trace.verb == STEP]).max() == 2


def test_a_decision_knows_the_steps_and_the_clock_of_who_asks():
    """Of two peers, one is three times as fast: each meets the learning rate of its own clock."""
    cluster, problem = Cluster((Workers(Constant(1.0)), Workers(Constant(3.0)))), Quadratic(samples=100)
    schedule = Schedule(warmup=10.0)
    answers = {0: [], 1: []}

    class Listening(TwoLocalSteps):
        """Keeps what it is told."""

        def start(self, sim):
            ask = sim.ask

            def heard(i):
                answer = yield from ask(i)
                answers[i].append(answer)
                return answer

            sim.ask = heard
            super().start(sim)

    given = {"stop": Stop(updates=40), "batch_size": 5, "schedule": schedule, "precision": "float64"}
    steer(cluster, Listening(), Asked(0.1), problem, **given)
    for told in answers.values():
        steps = 1 + 2 * np.arange(len(told))
        factor = schedule.factor(steps * 2 * 5 / 100)  # two peers, batches of 5
        assert told == pytest.approx(100 * steps + 0.1 * factor, rel=1e-12)


@algorithm
class Undecided(PeerAlgorithm):
    """Cannot decide."""

    learning_rate: float = 0.1

    def local(self, state, gradient, context):
        return state


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: record(sites(), SignificantUpdates(), stop=Stop(updates=3)), "gaia is steered by what is learned"),
        (
            lambda: steer(sites(), Asynchronous(), ASGD(), Quadratic(), stop=Stop(updates=3)),
            "async is not steered by values",
        ),
        (
            lambda: steer(sites(), SignificantUpdates(), Undecided(), Quadratic(), stop=Stop(updates=3)),
            "asks the algorithm to decide; Undecided has no decide",
        ),
        *(
            (lambda given=given: steer(sites(), SignificantUpdates(), Gaia(), Quadratic(), **STOP, **given), message)
            for given, message in (
                ({"schedule": 3}, "schedule: expected a Schedule, got 3"),
                ({"sampling": 3}, "sampling: expected a Sampling, got 3"),
                ({"batch_size": 0}, "batch_size: expected a whole number >= 1"),
                ({"precision": "float16"}, "precision: expected 'float32' or 'float64'"),
                ({"statistics": "x"}, "statistics: expected 'mean'"),
                ({"seed": -1}, "seed: expected"),
            )
        ),
        (
            lambda: Scenario(sites(), Averaging(), Quadratic(), Stop(updates=3), protocol="gaia"),
            "protocol.name: gaia carries changes, averaging takes models",
        ),
    ],
)
def test_what_does_not_fit_is_refused(ask, message):
    with pytest.raises(InputError, match=message):
        ask()


def test_the_name_of_a_steered_trace_has_all_that_steers_it():
    scenarios = [Scenario(sites(), Gaia(rate), Quadratic(), Stop(updates=3)) for rate in (0.1, 0.2)]
    assert len({trace_name(s) for s in scenarios}) == 2


def test_a_slow_network_is_not_flooded():
    """Everything is significant, and a message takes an hour: a site has two under way, and keeps the rest."""
    cluster = Cluster((Workers(Constant(1.0), 3, Host(bandwidth=1.0)),))
    recording = Recording(
        cluster, SignificantUpdates(under_way=2), Workload(tensor_bytes=(3600,)), stop=Stop(updates=200)
    )
    asked = 0
    while (question := recording.go_on()) is not None:
        asked += 1
        question[1].succeed(1.0)
    trace = recording.trace()
    assert asked == np.sum(trace.verb == PUBLISH) == 2 * 3
    assert np.sum(recording.live(trace) & (trace.verb != READ)) == 2 * 3  # the mixes alone
    assert trace.summary()["undelivered"] == 2 * 3 * 2


def test_messages_that_all_have_taken_are_let_go():
    problem = Quadratic(eigenvalues=EIGENVALUES)
    recording = Recording(sites(), SignificantUpdates(), problem.workload(1), stop=Stop(updates=50))
    while (question := recording.go_on()) is not None:
        question[1].succeed(1.0)
        trace = recording.trace()
        live = recording.live(trace)
        assert np.sum(live & (trace.verb == PUBLISH)) <= 2 * len(SECONDS)
