"""Peer methods on traces built by hand, followed in plain NumPy."""

import jax
import numpy as np
import pytest

from asyncsim.algorithms import SGP, SSGD, Averaging
from asyncsim.data import Blobs
from asyncsim.errors import InputError
from asyncsim.problems import MLP, Quadratic
from asyncsim.recorder import Recorder
from asyncsim.replaying import Every, replay
from asyncsim.testing import small_trace
from asyncsim.vocabulary import MIX
from asyncsim.workload import Workload

ENGINES = ("scan", "rows")
EIGENVALUES = np.array([1.0, 0.3])


class Peer:
    """A peer of the quadratic in plain NumPy: x, v, and the losses it met."""

    def __init__(self, losses, rate=0.1, momentum=0.9):
        self.x, self.v, self.w = np.ones(2), np.zeros(2), 1.0
        self.losses, self.rate, self.momentum = losses, rate, momentum

    def point(self):
        return self.x / self.w

    def step(self, point=None):
        point = self.point() if point is None else point
        self.losses.append(np.sum(EIGENVALUES * point**2) / 2)
        self.v = self.momentum * self.v + EIGENVALUES * point
        self.x = self.x - self.rate * self.v


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("every", [Every(updates=1), Every(updates=1000)])
def test_four_wagma_workers_of_which_one_is_late(engine, every):
    """P = 4, S = 2, butterfly groups by t, a sync point after four iterations. Worker 3 is late three times.

    Its first model is in three mixes. Then it catches up: each time it merges the newest mix of its group with its own
    at 1 / (S + 1).
    """
    log, losses = Recorder(4, "peers"), []
    peers = [Peer(losses) for _ in range(4)]
    sent = {i: (log.publish(i), peers[i].x) for i in range(4)}
    rbuff = {}
    for t in range(3):
        log.now = t + 1.0
        for i in (0, 1, 2):
            log.step(i, log.read(i))
            peers[i].step()
            sent[i] = log.publish(i), peers[i].x
        bit = 1 << (t % 2)
        for members in ((0, bit), (3 - bit, 3)):
            mix = log.mix([sent[i][0] for i in members], [0.5, 0.5])
            mean = (sent[members[0]][1] + sent[members[1]][1]) / 2
            for i in members:
                rbuff[i] = mix, mean
                if i != 3:
                    log.merge(i, mix)
                    peers[i].x = mean
    for t in range(3):  # worker 3 finishes its three iterations, late
        log.now = 5.0 + t
        log.step(3, log.read(3))
        peers[3].step()
        sent[3] = log.publish(3), peers[3].x
        log.merge(3, rbuff[3][0], keep=1 / 3, take=2 / 3)
        peers[3].x = peers[3].x / 3 + rbuff[3][1] * 2 / 3
    log.now = 10.0
    for i in range(4):  # the sync point: everybody's mean
        log.step(i, log.read(i))
        peers[i].step()
        sent[i] = log.publish(i), peers[i].x
    everyone = log.mix([sent[i][0] for i in range(4)], [0.25] * 4)
    mean = sum(sent[i][1] for i in range(4)) / 4
    spread = np.sqrt(np.mean([(p.x - mean) ** 2 for p in peers]))
    before = len(log.trace())
    for i in range(4):
        log.merge(i, everyone)
    trace = log.trace()
    first = trace.verb.tolist().index(MIX)
    uses = sum(
        3 in trace.worker[trace.member[trace.mix_start[r] : trace.mix_start[r + 1]]] for r in range(first, before - 1)
    )
    assert uses == 3
    problem = Quadratic(eigenvalues=tuple(EIGENVALUES))
    run = replay(trace, Averaging(0.1, 0.9), problem, every=every, engine=engine, precision="float64")
    assert run.updates["loss"] == pytest.approx(losses, abs=1e-15)
    assert run.params["x"] == pytest.approx(mean, abs=1e-15)
    assert run.evals["spread"][-1] == pytest.approx(0, abs=1e-15)
    apart = replay(trace.head(before), Averaging(0.1, 0.9), problem, every=every, engine=engine, precision="float64")
    assert apart.params["x"] == pytest.approx(mean, abs=1e-15)
    assert apart.evals["spread"][-1] == pytest.approx(spread, abs=1e-15)
    assert spread > 1e-3


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("every", [Every(updates=1), Every(updates=1000)])
def test_push_sum_with_a_message_under_way(engine, every):
    """Directed links 0 -> 1 -> 2 -> 0; each message arrives after its receiver has gone on. Mass leaves when sent."""
    log, losses = Recorder(3, "peers"), []
    peers = [Peer(losses, momentum=0.5) for _ in range(3)]
    under_way = []  # receiver, row, mass that will arrive

    def send(i, share):
        row = log.publish(i, keep=1 - share)
        under_way.append(((i + 1) % 3, row, share, (peers[i].x * share, peers[i].w * share)))
        peers[i].x, peers[i].w = peers[i].x * (1 - share), peers[i].w * (1 - share)

    def arrive():
        j, row, share, (x, w) = under_way.pop(0)
        log.merge(j, log.mix([row], [share]), keep=1.0, take=1.0)
        peers[j].x, peers[j].w = peers[j].x + x, peers[j].w + w

    send(0, 0.5)
    for k in range(9):
        log.now = k + 1.0
        i = k % 3
        read, point = log.read(i), peers[i].point()
        if k % 2:
            arrive()  # while the gradient is under way: it stays at the point that was read
        log.step(i, read)
        peers[i].step(point)
        send(i, 0.25 + 0.05 * k)
    mass = sum(p.w for p in peers) + sum(w for *_, (_, w) in under_way)
    assert mass == pytest.approx(3)
    assert min(p.w for p in peers) < 0.9
    problem = Quadratic(eigenvalues=tuple(EIGENVALUES))
    run = replay(log.trace(), SGP(0.1, 0.5), problem, every=every, engine=engine, precision="float64")
    assert run.updates["loss"] == pytest.approx(losses, abs=1e-14)
    assert run.params["x"] == pytest.approx(np.mean([p.point() for p in peers], 0), abs=1e-14)
    # when all has arrived, the weights tell: the peers' mass is what it was at the start
    while under_way:
        arrive()
    total = sum(p.x for p in peers)
    after = replay(log.trace(), SGP(0.1, 0.5), problem, every=every, engine=engine, precision="float64")
    assert after.params["x"] == pytest.approx(np.mean([p.point() for p in peers], 0), abs=1e-14)
    assert sum(p.w for p in peers) == pytest.approx(3)
    assert np.isfinite(total).all()


@pytest.mark.parametrize("engine", ENGINES)
def test_cancel_reset_and_an_overtaken_read(engine):
    """AD-PSGD's order: read, others merge, step at what was read; a cancelled gradient; a peer that starts afresh."""
    log, losses = Recorder(2, "peers"), []
    a, b = Peer(losses), Peer(losses)
    log.step(1, log.read(1))
    b.step()
    read, point = log.read(0), a.x
    messages = log.publish(0), log.publish(1)
    mix = log.mix(messages, [0.5, 0.5])
    log.merge(0, mix)
    log.merge(1, mix)
    a.x = b.x = (a.x + b.x) / 2
    log.step(0, read)
    a.step(point)
    log.cancel(1, log.read(1))
    log.reset(1, log.mix([log.publish(0)], [1.0]))
    b.x, b.v = a.x, np.zeros(2)  # afresh: the momentum is lost
    log.step(1, log.read(1))
    b.step()
    problem = Quadratic(eigenvalues=tuple(EIGENVALUES))
    run = replay(log.trace(), Averaging(0.1, 0.9), problem, engine=engine, precision="float64")
    assert run.updates["loss"] == pytest.approx(losses, abs=1e-15)
    assert run.updates["step"].tolist() == [0, 0, 2]
    assert run.updates["gap"][1] == pytest.approx(np.sqrt(np.mean((point - (1 + 1 - 0.1 * EIGENVALUES) / 2) ** 2)))
    assert run.params["x"] == pytest.approx((a.x + b.x) / 2, abs=1e-15)


@pytest.mark.parametrize("members", [1, 2, 3, 5, 7])
def test_wide_mixes_are_summed_in_pieces(members):
    """One mix of many among many mixes of two."""
    log = Recorder(8, "peers")
    for i in range(8):
        log.step(i, log.read(i))
    sent = [log.publish(i) for i in range(8)]
    for i in range(8):
        log.merge(i, log.mix([sent[i], sent[(i + 1) % 8]], [0.5, 0.5]))
    wide = log.mix(sent[:members], np.arange(1, members + 1) / (members * (members + 1) / 2))
    log.merge(0, wide, keep=0.5, take=0.5)
    log.merge(1, wide)
    log.step(0, log.read(0))
    problem = MLP(Blobs(features=5, classes=3, train=50, test=20), hidden=(4,))
    scan, rows = (replay(log.trace(), Averaging(0.1, 0.9), problem, engine=e, precision="float64") for e in ENGINES)
    assert scan.updates["loss"] == pytest.approx(rows.updates["loss"], abs=1e-13)
    assert scan.evals["spread"] == pytest.approx(rows.evals["spread"], abs=1e-13)


def test_averaging_refuses_weights_that_are_no_average():
    """Push-sum's weights would blow it up without a word."""
    log = Recorder(2, "peers")
    log.merge(1, log.mix([log.publish(0, keep=0.5)], [0.5]), keep=1.0, take=1.0)
    with pytest.raises(InputError, match=r"row 2, merge: weighs own and received models by 1\.5 in all"):
        replay(log.trace(), Averaging(0.1), Quadratic())
    assert replay(log.trace(), SGP(0.1), Quadratic()).summary["ended"] == "budget"
    log = Recorder(2, "peers")
    log.reset(1, log.mix([log.publish(0)], [0.25]))
    with pytest.raises(InputError, match=r"row 2, reset: weighs own and received models by 0\.25 in all"):
        replay(log.trace(), Averaging(0.1), Quadratic())


@pytest.mark.parametrize("seed", range(6))
def test_both_engines_agree_at_every_cut(seed):
    trace = small_trace("peers", num_workers=2 + seed, gradients=50, seed=seed)
    problem = MLP(Blobs(features=5, classes=3, train=50, test=20), hidden=(4,))
    both = [
        replay(trace, Averaging(0.1, 0.9), problem, every=Every(updates=3), engine=e, precision="float64")
        for e in ENGINES
    ]
    for name in ("loss", "spread", "accuracy"):
        assert both[0].evals[name] == pytest.approx(both[1].evals[name], abs=1e-10)
    for name in ("loss", "gap", "gradient_norm", "update_norm"):
        assert both[0].updates[name] == pytest.approx(both[1].updates[name], abs=1e-10)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_peer_that_diverges_ends_the_run_there(engine):
    trace = small_trace("peers", gradients=400)
    run = replay(trace, Averaging(3e3), Quadratic(), engine=engine)
    assert run.summary["ended"] == "diverged"
    assert np.isfinite(run.updates["loss"][:-1]).all()
    assert not np.isfinite(run.updates["loss"][-1])
    assert run.trace.end == run.evals["time"][-1] == run.updates["time"][-1]


def test_doubly_stochastic_mixing_keeps_the_mean():
    """Without gradients to speak of, averages over a ring contract by 1/3 + 2/3 cos(2 pi / n) a round."""
    n, rounds = 16, 40
    log = Recorder(n, "peers")
    log.step(0, log.read(0))  # one peer moves away
    for _ in range(rounds):
        sent = [log.publish(i) for i in range(n)]
        for i in range(n):
            log.merge(i, log.mix([sent[i - 1], sent[i], sent[(i + 1) % n]], [1 / 3] * 3))
    trace = log.trace()
    start = trace.gradients[0] + 1
    runs = [
        replay(trace.head(start + k * 3 * n), Averaging(0.5), Quadratic(), precision="float64") for k in (0, 30, 40)
    ]
    spreads = [r.evals["spread"][-1] for r in runs]
    assert (spreads[2] / spreads[1]) ** (1 / 10) == pytest.approx(1 / 3 + 2 / 3 * np.cos(2 * np.pi / n), abs=1e-4)
    assert runs[2].params["x"] == pytest.approx(runs[0].params["x"], abs=1e-15)


def rounds_of_mixing(n, rounds, *mixings):
    """Each round: everybody one gradient, then, for each mixing, everybody merges a mix of all messages; mixing[i, j]:
    the weight that i gives to j's."""
    log = Recorder(n, "peers")
    log.workload = Workload(batch_size=4)
    for k in range(rounds):
        log.now = float(k + 1)
        for i in range(n):
            log.step(i, log.read(i))
        for mixing in mixings:
            messages = [log.publish(i, keep=0.0) for i in range(n)]
            for i in range(n):
                log.merge(i, log.mix(messages, list(mixing[i])))
    return log.trace()


def trained(trace, method):
    problem = MLP(Blobs(features=5, classes=3, train=50, test=20), hidden=(4,))
    return jax.tree.leaves(replay(trace, method, problem, precision="float64", seed=3).params)


@pytest.mark.parametrize("momentum", [None, 0.9])
def test_push_sum_with_doubly_stochastic_mixing_is_decentralised_sgd(momentum):
    n = 5
    ring = (np.eye(n) + np.roll(np.eye(n), 1, 0) + np.roll(np.eye(n), -1, 0)) / 3
    trace = rounds_of_mixing(n, 8, ring)
    for a, b in zip(trained(trace, SGP(0.1, momentum)), trained(trace, Averaging(0.1, momentum)), strict=True):
        assert np.abs(a - b).max() < 1e-12


def test_local_sgd_of_period_one_is_synchronous_sgd():
    """The mean of models after one step each from the same one is that model after a step along the mean gradient; with
    momentum as well, as the momenta's mean is the momentum of the mean."""
    n, rounds = 4, 8
    local = rounds_of_mixing(n, rounds, np.full((n, n), 1 / n))
    log = Recorder(n, "server")
    log.workload = Workload(batch_size=4)
    for k in range(rounds):
        log.now = float(k)
        reads = [log.read(i) for i in range(n)]
        for i in range(n):
            log.apply(i, reads[i], weight=1 / n, closes=i == n - 1)
    for momentum in (None, 0.9):
        pair = trained(local, Averaging(0.1, momentum)), trained(log.trace(), SSGD(0.1, momentum))
        assert all(np.abs(a - b).max() < 1e-12 for a, b in zip(*pair, strict=True))


def test_wagma_in_one_group_with_nobody_late_is_model_averaging():
    """Butterfly exchanges of pairs, log2 P of them with nobody late, are the average of all."""
    n, rounds = 4, 6
    pairs = []
    for bit in (1, 2):
        mixing = np.zeros((n, n))
        for i in range(n):
            mixing[i, [i, i ^ bit]] = 0.5
        pairs.append(mixing)
    everybody = rounds_of_mixing(n, rounds, np.full((n, n), 1 / n))
    pair = trained(rounds_of_mixing(n, rounds, *pairs), Averaging(0.1, 0.9)), trained(everybody, Averaging(0.1, 0.9))
    assert all(np.abs(a - b).max() < 1e-12 for a, b in zip(*pair, strict=True))
