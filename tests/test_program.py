"""What the compiled programs look like, and how often they are made: facts that need no stopwatch."""

import jax
import numpy as np
import pytest

from asyncsim.algorithms import ASGD, SSGD, Averaging, ServerAlgorithm, algorithm, zeros_like
from asyncsim.cluster import Gamma
from asyncsim.data import Blobs
from asyncsim.problems import MLP
from asyncsim.protocols import Asynchronous, Synchronous
from asyncsim.recording import Stop, record
from asyncsim.replaying import replay
from asyncsim.replaying.peer_plan import kept_apart, plan_peers
from asyncsim.replaying.pools import PROGRAMS
from asyncsim.replaying.preparing import prepare
from asyncsim.replaying.server_plan import plan_server
from asyncsim.replaying.slots import assign_slots, roomy
from asyncsim.replaying.walk import ENGINES
from asyncsim.schedules import Schedule
from asyncsim.testing import small_trace
from asyncsim.trace import Trace

PROBLEM = MLP(Blobs(features=37, classes=3, train=100, test=20), hidden=(29,))  # shapes that nothing else has


@algorithm
class KeepsPerWorker(ServerAlgorithm):
    """A momentum for each worker at the server, and one in each worker: stacked state on both sides."""

    learning_rate: float = 0.1

    def keep(self, params):
        return zeros_like(params)

    def start(self, params):
        return zeros_like(params)

    def local(self, own, gradient, context):
        return jax.tree.map(lambda v, g: 0.5 * v + g, own, gradient)

    def outgoing(self, own, gradient, context):
        return own, jax.tree.map(lambda v, g: 0.5 * v + g, own, gradient)

    def receive(self, state, kept, message, context):
        kept = jax.tree.map(lambda v, m: 0.9 * v + m, kept, message)
        return kept, kept

    def apply(self, state, message, context):
        return {"params": jax.tree.map(lambda x, v: x - context.learning_rate * v, state["params"], message)}


@pytest.mark.parametrize("measures", [True, False])
@pytest.mark.parametrize("case", ["async", "sync", "per worker", "every verb of servers", "peers"])
def test_no_pool_is_copied_in_the_loop(make_cluster, case, measures):
    """XLA on the CPU copies whole pools at every row where code invites it to; here nothing of a stacked shape is."""
    cluster = make_cluster(Gamma(1.0, 0.1), 8)
    trace, method = {
        "async": lambda: (record(cluster, Asynchronous(), stop=Stop(updates=100)), ASGD(0.1, 0.9)),
        "sync": lambda: (record(cluster, Synchronous(), stop=Stop(updates=20)), SSGD(0.1, 0.9)),
        "per worker": lambda: (record(cluster, Asynchronous(), stop=Stop(updates=100)), KeepsPerWorker()),
        "every verb of servers": lambda: (small_trace("server", num_workers=8, gradients=100), KeepsPerWorker()),
        "peers": lambda: (small_trace("peers", num_workers=8, gradients=100), Averaging(0.1, 0.9)),
    }[case]()
    setting, _ = prepare(trace, method, PROBLEM, seed=0, schedule=Schedule(), cuts=[0, len(trace)], measures=measures)
    engine = ENGINES["scan", trace.kind](setting)
    shapes = {f"f32[{','.join(map(str, x.shape))}]" for x in jax.tree.leaves(engine.pools)}
    assert any(shape.endswith(",37,29]") for shape in shapes)
    text = engine.compiled_text()
    assert "while(" in text
    copies = [line.strip() for line in text.splitlines() if " copy(" in line]
    assert [line for line in copies if any(shape in line for shape in shapes)] == []


def test_the_number_of_events_and_hyper_parameters_compile_nothing(make_cluster):
    cluster = make_cluster(Gamma(1.0, 0.3), 8)

    def go(updates, method, seed=0, schedule=None):
        trace = record(cluster, Asynchronous(), stop=Stop(updates=updates), seed=seed)
        replay(trace, method, PROBLEM, seed=seed, schedule=schedule)

    go(1500, ASGD(0.1, 0.9))
    before = len(PROGRAMS)
    go(3000, ASGD(0.1, 0.9))
    go(50, ASGD(1, 0.5))
    go(50, ASGD(np.float32(0.2), 0))
    go(50, ASGD(0.1, 0.9), seed=3)
    go(50, ASGD(0.1, 0.9), schedule=Schedule(decay="cosine", length=5.0))
    assert len(PROGRAMS) == before


def test_twenty_runs_leave_no_arrays_behind():
    trace = small_trace("server", local_steps=False)
    replay(trace, ASGD(0.1), PROBLEM)
    before = len(jax.live_arrays())
    for seed in range(20):
        replay(trace, ASGD(0.1), PROBLEM, seed=seed)
    assert len(jax.live_arrays()) == before


def test_slots_are_assigned_like_registers():
    slot, count = assign_slots(np.array([0, 1, 2, 3]), np.array([2, 2, 4, 5]))
    assert slot.tolist() == [0, 1, 0, 1]
    assert count == 2
    slot, count = assign_slots(np.arange(100), np.arange(100) + 1)
    assert count == 1


def test_live_versions_need_one_slot_each(make_cluster):
    trace = record(make_cluster(Gamma(1.0, 0.1), 8), Synchronous(), stop=Stop(updates=50))
    plan = plan_server(trace, np.ones(len(trace)))
    assert plan.slots == roomy(2)  # one version at a time, and the spare
    trace = record(make_cluster(Gamma(1.0, 0.1), 64), Asynchronous(), stop=Stop(updates=1000))
    assert plan_server(trace, np.ones(len(trace))).slots == roomy(65)


def test_pool_sizes_waste_little():
    assert [roomy(n) for n in (1, 4, 5, 9, 33, 65)] == [4, 4, 8, 12, 36, 72]
    assert all(n <= roomy(n) <= max(1.125 * n, n + 3) for n in range(1, 2000))


def test_only_overtaken_points_are_stored():
    trace = small_trace("peers")
    apart = kept_apart(trace)
    assert 0 < apart.sum() < len(trace.gradients)
    plan = plan_peers(trace, np.ones(len(trace)), [0, len(trace)])
    assert plan.rows["reads"].sum() == len(set(trace.source[apart].tolist()))


def test_packed_rows_are_few():
    """A worker's iteration (step, publish, mix, merge) is about one row, not four."""
    from asyncsim.recorder import Recorder

    log = Recorder(4, "peers")
    for t in range(100):
        sent = []
        for i in range(4):
            log.step(i, log.read(i))
            sent.append(log.publish(i))
        for i in range(0, 4):
            j = i ^ (1 << (t % 2))
            log.merge(i, log.mix([sent[i], sent[j]], [0.5, 0.5]))
    trace = log.trace()
    plan = plan_peers(trace, np.ones(len(trace)), [0, len(trace)])
    assert len(plan.trace_row) <= 404


def test_hand_made_and_recorded_traces_replay_alike(make_cluster):
    trace = record(make_cluster(Gamma(1.0, 0.2), 3), Asynchronous(), stop=Stop(updates=60))
    by_hand = Trace.from_arrivals(trace.worker[trace.gradients].tolist(), num_workers=3)
    a, b = (replay(t, ASGD(0.1), PROBLEM) for t in (trace, by_hand))
    assert a.updates["loss"].tolist() == b.updates["loss"].tolist()
