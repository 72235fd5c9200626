"""Exchanges between peers: all-reduce against its closed forms, closed exchanges against those in motion."""

import numpy as np
import pytest
import simpy

from asyncsim.cluster import Cluster, Host, Racks, Tensors, Workers
from asyncsim.errors import InputError
from asyncsim.exchanges import Exchanges, schedules
from asyncsim.network.simulation import Simulation
from asyncsim.recorder import Recorder
from asyncsim.workload import Workload

NIC = Host(bandwidth=10.0, latency=0.125)  # bytes per second; a message between two of them pays 0.25 s
SHARINGS = ("fair", "fifo", "none", "rounds")
EACH = Tensors()


def of(count, host=NIC, **more):
    return Cluster((Workers(1.0, count, host),), **more)


def begin(cluster, tensor_bytes):
    env = simpy.Environment()
    log = Recorder(cluster.num_workers, "peers", clock=env, workload=Workload(tensor_bytes=tensor_bytes))
    return Simulation(env, log, cluster, 0)


def run(cluster, tensor_bytes, ready, make, joins=0.75):
    """When each worker is done with an exchange. ``ready[i]``: when its pieces are; it ``joins`` at a share of the
    first of these. ``make(exchanges)``: the exchange."""
    sim = begin(cluster, tensor_bytes)
    exchange = make(Exchanges(sim))
    done = [float("nan")] * cluster.num_workers

    def worker(i):
        yield sim.env.timeout(joins * ready[i][0])
        yield exchange.join(i, ready[i])
        done[i] = sim.env.now

    for i in range(cluster.num_workers):
        sim.env.process(worker(i))
    sim.env.run()
    return done


def all_reduce(cluster, kind, size, late=None):
    """When all are done with an all-reduce; each joins ``late`` seconds after the beginning."""
    schedule = schedules.schedule(kind, cluster.num_workers)
    ready = [[(late or {}).get(i, 0.0)] for i in range(cluster.num_workers)]
    return max(run(cluster, [size], ready, lambda exchanges: exchanges.blocking(schedule)))


# ---------------------------------------------------------------- schedules


def heard_of(schedule):
    """For each rank whose vectors are in what it has at the end: messages of a round hold what was there before."""
    known = [{rank} for rank in range(schedule.ranks)]
    for stage in schedule.stages:
        before = [set(mine) for mine in known]
        for rank, sources in enumerate(stage.sources.tolist()):
            for source in sources:
                known[rank] |= before[source] if source != schedules.NOBODY else set()
    return known


ANY_NUMBER = [(kind, ranks) for kind in ("ring", "binomial_tree") for ranks in (3, 6)]
POWERS = [(kind, ranks) for kind in schedules.KINDS for ranks in (1, 2, 8, 16)]


@pytest.mark.parametrize(("kind", "ranks"), POWERS + ANY_NUMBER)
def test_schedules_fit_together(kind, ranks):
    schedule = schedules.schedule(kind, ranks)
    assert schedule.ranks == ranks
    assert heard_of(schedule) == [set(range(ranks))] * ranks
    sent, added = np.zeros(ranks), 0.0
    for stage in schedule.stages:
        received = stage.sources != schedules.NOBODY
        sends = stage.targets != schedules.NOBODY
        assert received.sum() == sends.sum()
        for rank, targets in enumerate(stage.targets.tolist()):
            assert all(rank in stage.sources[target] for target in targets if target != schedules.NOBODY)
        assert 0 <= stage.reduced <= stage.size
        sent += stage.size * sends.sum(1)
        added += stage.reduced * received.sum()
    if kind in ("ring", "rabenseifner"):  # the least that is possible, for every rank
        assert sent == pytest.approx([2 * (ranks - 1) / ranks] * ranks)
    # (P - 1) vectors are added in all; by recursive doubling every rank adds all by itself
    depth = (ranks - 1).bit_length()
    assert added == pytest.approx(ranks * depth if kind == "recursive_doubling" else ranks - 1)


def test_a_butterfly_makes_groups():
    schedule = schedules.butterfly(8, (2, 0))
    assert heard_of(schedule) == [{0, 1, 4, 5}] * 2 + [{2, 3, 6, 7}] * 2 + [{0, 1, 4, 5}] * 2 + [{2, 3, 6, 7}] * 2
    assert schedule.groups.tolist() == [0, 0, 2, 2, 0, 0, 2, 2]


FORMS = {  # of 2400 bytes at 10 bytes per second, a = .25 s, among 8; 2400 bytes are added in 4 s
    "ring": 14 * (0.25 + 30) + 7 / 8 * 4,
    "recursive_doubling": 3 * (0.25 + 240 + 4),
    "rabenseifner": 6 * 0.25 + 2 * 7 / 8 * 240 + 7 / 8 * 4,
    "binomial_tree": 6 * (0.25 + 240) + 3 * 4,
}


@pytest.mark.parametrize("kind", schedules.KINDS)
def test_closed_forms_of_all_reduce(kind):
    assert schedules.seconds(kind, 8, 2400, 0.25, 10.0, 600.0) == pytest.approx(FORMS[kind], rel=1e-12)
    assert schedules.seconds(kind, 1, 2400, 0.25, 10.0) == 0.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: schedules.schedule("rabenseifner", 6), "ranks: this all-reduce needs a power of two, not 6 ranks"),
        (lambda: schedules.seconds("recursive_doubling", 3, 1, 0, 1), "ranks: .* power of two, not 3 ranks"),
        (lambda: schedules.ring(0), "ranks: expected a whole number >= 1, got 0"),
        (lambda: schedules.binomial_tree(2.0), "ranks: expected a whole number >= 1, got 2.0"),
        (lambda: schedules.schedule("rings", 2), "kind: no all-reduce is called 'rings'; .*did you mean 'ring'"),
        (lambda: schedules.seconds("Rabenseifer", 2, 1, 0, 1), "kind: .*did you mean 'rabenseifner'"),
    ],
)
def test_an_all_reduce_that_there_is_not(make, message):
    with pytest.raises(InputError, match=message):
        make()


# ---------------------------------------------------------------- in motion, and closed


@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize(("kind", "ranks"), POWERS + ANY_NUMBER)
def test_all_reduce_takes_its_closed_form(kind, ranks, sharing):
    expected = schedules.seconds(kind, ranks, 2400, 0.25, 10.0)
    taken = all_reduce(of(ranks, sharing=sharing), kind, 2400)
    if (kind, ranks) in (("binomial_tree", 3), ("binomial_tree", 6)):
        assert taken < expected
        return
    assert taken == pytest.approx(expected, rel=1e-12)
    # announced and answered: three latencies instead of one
    held = all_reduce(of(ranks, sharing=sharing, eager_limit=0), kind, 2400)
    assert held == pytest.approx(schedules.seconds(kind, ranks, 2400, 0.75, 10.0), rel=1e-12)


@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize(
    ("kind", "seconds"),
    [
        ("ring", 7 * 0.5 + 0.5),  # each part is added; of those that are passed on, the last one's copy is seen
        ("recursive_doubling", 3 * 4),
        ("rabenseifner", 7 / 8 * 4 + 2),
        ("binomial_tree", 3 * 4 + 4),
    ],
)
def test_a_processor_that_takes_in_each_message(kind, seconds, sharing):
    """2400 bytes in 4 s, which comes on top of the rounds; while something is only passed on, it travels on."""
    expected = schedules.seconds(kind, 8, 2400, 0.25, 10.0) + seconds
    host = Host(bandwidth=10.0, latency=0.125, copy_bandwidth=600.0)
    assert all_reduce(of(8, host, sharing=sharing), kind, 2400) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("sharing", SHARINGS)
def test_a_slow_processor_holds_up_what_is_gathered(sharing):
    """Parts of 300 bytes come every 30.25 s and take 60 s each: seven of them, from the first on."""
    host = Host(bandwidth=10.0, latency=0.125, copy_bandwidth=5.0)
    gather = schedules.gather(8, 1 / 8)
    done = run(of(8, host, sharing=sharing), [2400], [[0.0]] * 8, lambda exchanges: exchanges.blocking(gather))
    assert done == pytest.approx([30.25 + 7 * 60] * 8, rel=1e-12)


@pytest.mark.parametrize("sharing", SHARINGS)
def test_passes_before_and_after(sharing):
    """Each of two pieces: a pass before (4 s of 2400 bytes), the exchange, half a pass after."""
    host = Host(bandwidth=10.0, latency=0.125, copy_bandwidth=600.0)
    cluster, sim = of(2, host, sharing=sharing, buckets=EACH), []

    def make(exchanges):
        sim.append(exchanges.sim)
        return Exchanges(exchanges.sim, before=1.0, after=0.5).blocking(schedules.recursive_doubling(2))

    each = [(4 + 0.25 + 240 + 4 + 2) * share for share in (1 / 3, 2 / 3)]
    latency = 2 * 0.25 - sum(0.25 * share for share in (1 / 3, 2 / 3))
    assert run(cluster, [1600, 800], [[0.0, 0.0]] * 2, make) == pytest.approx([sum(each) + latency] * 2, rel=1e-12)


@pytest.mark.parametrize("sharing", ["fair", "rounds"])
@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("kind", schedules.KINDS)
def test_all_wait_for_the_last_to_join(kind, ranks, sharing):
    """Its own part goes through every round. (So late that nothing else is on the links any more.)"""
    expected = schedules.seconds(kind, ranks, 2400, 0.25, 10.0)
    taken = all_reduce(of(ranks, sharing=sharing), kind, 2400, late={ranks - 1: 1e4})
    assert taken == pytest.approx(1e4 + expected, rel=1e-12)


@pytest.mark.parametrize("sharing", ["fair", "rounds"])
@pytest.mark.parametrize(
    ("kind", "seconds"),
    [
        ("ring", 6 * (0.25 + 2 * 60)),  # one message at a time leaves a rack, at half of a NIC's bandwidth
        ("recursive_doubling", 0.25 + 240 + 0.25 + 4 * 240),  # within, then two at a time
        ("rabenseifner", 4 * 0.25 + 2 * (120 + 4 * 60)),  # the halves stay within
        ("binomial_tree", 4 * 0.25 + 2 * (240 + 2 * 240)),
    ],
)
def test_all_reduce_between_racks(kind, seconds, sharing):
    """Two racks of two; the uplink carries half of what one NIC does."""
    cluster = of(4, topology=Racks(2, oversubscription=4.0), sharing=sharing)
    assert all_reduce(cluster, kind, 2400) == pytest.approx(seconds, rel=1e-12)
    assert seconds > schedules.seconds(kind, 4, 2400, 0.25, 10.0)


@pytest.mark.parametrize("sharing", ["fair", "rounds"])
@pytest.mark.parametrize("kind", schedules.KINDS)
def test_all_reduce_with_one_slow_host_is_longer(kind, sharing):
    slow = Cluster((Workers(1.0, 3, NIC), Workers(1.0, 1, Host(bandwidth=5.0, latency=0.125))), sharing=sharing)
    assert all_reduce(slow, kind, 2400) > schedules.seconds(kind, 4, 2400, 0.25, 10.0) * 1.4


def ring_of(n, reach=1):
    steps = [k for k in range(-reach, reach + 1) if k]
    return schedules.neighbours([[(i + k) % n for k in steps] for i in range(n)])


def pushing(n, distances=(1, 2)):
    return schedules.neighbours([[(i - d) % n for d in distances] for i in range(n)])


BLOCKING = {
    **{kind: lambda kind=kind: schedules.schedule(kind, 8) for kind in schedules.KINDS},
    "groups": lambda: schedules.butterfly(8, (2, 0)),
    "ring of peers": lambda: ring_of(8),
    "push": lambda: pushing(8),
}
# an interface that is not limited: then messages that meet do not disturb each other, as in closed form
HOSTS = {
    "limited": Host(bandwidth=10.0, latency=0.125),
    "busy": Host(latency=0.125, copy_bandwidth=50.0),
    "far": Host(latency=2.0),
}


def times(rng, n, pieces, spread):
    return [np.cumsum(rng.exponential(spread, pieces) * (1 + 9 * (rng.random() < 0.2))).tolist() for _ in range(n)]


@pytest.mark.parametrize("eager_limit", [None, 20.0])
@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("name", BLOCKING)
def test_closed_is_as_in_motion(name, host, eager_limit):
    """Whenever pieces get ready; without what closed forms leave out: messages of different rounds that meet."""
    schedule = BLOCKING[name]()
    if host == "limited" and max(stage.sources.shape[1] for stage in schedule.stages) > 1:
        pytest.skip("several messages at once share an interface")
    rng, tensors = np.random.default_rng(hash_of(name, host)), [50, 10, 40, 7]
    for spread in (0.0, 1.0, 30.0):
        ready = times(rng, 8, 4, spread)
        if host == "busy":  # one piece: what of the next one has come already stands in the same line
            tensors, ready = [50], [mine[:1] for mine in ready]
        both = [
            run(
                of(8, HOSTS[host], sharing=sharing, eager_limit=eager_limit, buckets=EACH),
                tensors,
                ready,
                lambda exchanges: exchanges.blocking(schedule),
            )
            for sharing in ("none", "rounds")
        ]
        if host == "busy" and name not in ("ring of peers", "push"):
            # a rank that is late finds what several rounds sent it
            assert max(both[1]) <= max(both[0]) * (1 + 1e-12)
        else:
            assert both[1] == pytest.approx(both[0], rel=1e-12)


def hash_of(*names):
    return sum(ord(letter) * (k + 1) for k, letter in enumerate("".join(names)))


def partial_exchange(cluster, ready, schedule, activator):
    """When all are done, and when each contributes."""
    given, clock = {}, []

    def make(exchanges):
        clock.append(exchanges.sim.env)
        return exchanges.partial(schedule, lambda i: given.setdefault(i, clock[0].now), activator)

    done = run(cluster, [50, 10, 40, 7], ready, make, joins=0.0)
    return done, [given[i] for i in range(8)]


@pytest.mark.parametrize("activator", [None, 5])
@pytest.mark.parametrize("bits", [(0, 1, 2), (2, 0), (1,), ()])
@pytest.mark.parametrize("host", ["limited", "far"])
def test_closed_partial_exchanges_are_as_in_motion(bits, host, activator):
    schedule, rng = schedules.butterfly(8, bits), np.random.default_rng(7 + len(bits))
    for spread in (0.0, 1.0, 30.0, 1000.0):
        ready = times(rng, 8, 4, spread)
        clusters = [of(8, HOSTS[host], sharing=sharing, buckets=EACH) for sharing in ("none", "rounds")]
        moving, closed = (partial_exchange(cluster, ready, schedule, activator) for cluster in clusters)
        assert closed[0] == pytest.approx(moving[0], rel=1e-12)
        assert closed[1] == pytest.approx(moving[1], rel=1e-12)


@pytest.mark.parametrize("bits", [(0, 1, 2), (2, 0)])
def test_passes_in_partial_exchanges(bits):
    """A pass before (.5 s of 50 bytes) and two after (1 s), also of a worker that comes when all is over, and has not
    joined before."""
    schedule = schedules.butterfly(8, bits)
    host = Host(bandwidth=10.0, latency=0.01, copy_bandwidth=100.0)
    ready = [[4.0]] * 6 + [[400.0], [500.0]]
    found = []
    for sharing in ("none", "rounds"):

        def make(exchanges):
            return Exchanges(exchanges.sim, before=1.0, after=2.0).partial(schedule, lambda i: None)

        found.append(run(of(8, host, sharing=sharing), [50], ready, make, joins=0.5))
    assert found[1] == pytest.approx(found[0], rel=1e-12)
    exchange = len(bits) * (0.02 + 5 + 0.5)
    assert found[0][0] == pytest.approx(4 + 0.5 + exchange + 1, abs=0.05)  # who is told begins a word later
    assert found[0][6:] == pytest.approx([401.5, 501.5])


@pytest.mark.parametrize("sharing", ["none", "rounds"])
@pytest.mark.parametrize("partial", [True, False])
@pytest.mark.parametrize(
    ("ready", "message"),
    [
        ([1.0, 2.0], r"join\(0\), ready: expected 4 times, got 2"),
        ([1.0, 2.0, 1.5, 3.0], r"expected ascending times from 0.* s on, got \[1.0, 2.0, 1.5, 3.0\]"),
        ([-1.0, 2.0, 2.0, 3.0], "expected ascending times"),
        ([1.0, float("nan"), 2.0, 3.0], "expected ascending times"),
    ],
)
def test_pieces_that_cannot_be_joined_with(ready, message, partial, sharing):
    exchanges, schedule = (
        Exchanges(begin(of(2, sharing=sharing, buckets=EACH), [50, 10, 40, 7])),
        schedules.recursive_doubling(2),
    )
    exchange = exchanges.partial(schedule, lambda i: None) if partial else exchanges.blocking(schedule)
    with pytest.raises(InputError, match=message):
        exchange.join(0, ready)


def test_an_activation_that_is_slower_than_a_step():
    """Word comes 4 s after 0 arrived, at 5 s; 1 joins at 2 s and arrives at 2.5 s, of which no closed form knows."""
    schedule, joined = schedules.recursive_doubling(2), {0: (0.75, 1.0), 1: (2.0, 2.5)}

    def both(sharing, activator=None):
        sim = begin(of(2, HOSTS["far"], sharing=sharing), [50])
        exchange, done = Exchanges(sim).partial(schedule, lambda i: None, activator), {}

        def worker(i):
            joins, ready = joined[i]
            yield sim.env.timeout(joins)
            yield exchange.join(i, [ready])
            done[i] = sim.env.now

        for i in joined:
            sim.env.process(worker(i))
        sim.env.run()
        return done

    assert both("none") == {0: 6.5, 1: 6.5}
    with pytest.raises(InputError, match=r"cluster.sharing: a round's activation reached worker 1 later than a piece"):
        both("rounds")
    assert both("rounds", 0) == both("none", 0) == {0: 9.0, 1: 9.0}
