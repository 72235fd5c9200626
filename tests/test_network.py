"""The network and the server against closed forms and a slow twin. Latencies in seconds, sizes in bytes."""

import gc
import itertools
import math
import weakref
from fractions import Fraction

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncsim.cluster import (
    P3,
    Cluster,
    Constant,
    Exponential,
    Gamma,
    Horovod,
    Host,
    PyTorchDDP,
    Racks,
    Servers,
    SiteLink,
    Sites,
    Tensors,
    Whole,
    Workers,
)
from asyncsim.cluster.named_hosts import PizDaint
from asyncsim.errors import Deadlock, InputError
from asyncsim.network.sharing import FairSharing, Flow, Link
from asyncsim.network.transfers import Transfers
from asyncsim.network.turns import MANY
from asyncsim.protocols import (
    Asynchronous,
    BackupWorkers,
    KAsync,
    KBatchSync,
    KSync,
    Protocol,
    RennalaRounds,
)
from asyncsim.recording import Recording, Stop, record
from asyncsim.records import build
from asyncsim.testing import small_trace
from asyncsim.vocabulary import APPLY, BETWEEN
from asyncsim.workload import Workload

MIB = 2**20
NIC = Host(bandwidth=10.0, latency=0.125)  # bytes per second; a message between two of them pays 0.25 s
SHARINGS = ("fair", "fifo", "none")


def deliver(cluster, sends):
    """The arrivals, in order, of messages (time, source place, target place, bytes[, time at which it can receive])."""
    env, arrivals = simpy.Environment(), [math.nan] * len(sends)
    transfers = Transfers(env, cluster, lambda *_: None)

    def message(k, at, source, target, size, ready_at=None):
        ready = None if ready_at is None else env.timeout(ready_at)
        yield env.timeout(at)
        transfers.send(k % cluster.num_workers, BETWEEN, source, target, size, lambda: note(k), ready=ready)

    def note(k):
        arrivals[k] = env.now

    for k, send in enumerate(sends):
        env.process(message(k, *send))
    env.run()
    return arrivals


def of(count, host=NIC, **more):
    """A cluster of so many workers on hosts of one kind, and a server (the place after them) on another such host."""
    more.setdefault("servers", Servers(host=host))
    return Cluster((Workers(1.0, count, host),), **more)


# ---------------------------------------------------------------- links and how they are shared


@pytest.mark.parametrize("direction", ["incast", "outcast"])
@pytest.mark.parametrize(
    ("sharing", "seconds"),
    [("fair", [50.0] * 5), ("fifo", [10.0, 20.0, 30.0, 40.0, 50.0]), ("none", [10.0] * 5)],
)
def test_flows_that_share_one_interface(direction, sharing, seconds):
    """P flows of n bytes at bandwidth B: all at P n/B; one after another; as if alone. P = 5, n/B = 10 s."""
    ways = [(k, 5) if direction == "incast" else (5, k) for k in range(5)]
    arrivals = deliver(of(5, sharing=sharing), [(1.0, *way, 100.0) for way in ways])
    assert arrivals == pytest.approx([1.25 + s for s in seconds], rel=1e-12)


@pytest.mark.parametrize("sharing", SHARINGS)
def test_sending_and_receiving_do_not_disturb_each_other(sharing):
    around = [(0.0, 0, 1, 100.0), (0.0, 1, 2, 100.0), (0.0, 2, 0, 100.0)]
    assert deliver(of(2, sharing=sharing), around) == pytest.approx([10.25] * 3)


@pytest.mark.parametrize(("sharing", "seconds"), [("fair", (15.0, 20.0)), ("fifo", (10.0, 20.0)), ("none", (10, 10))])
def test_a_flow_that_comes_later(sharing, seconds):
    """Of 100 bytes each, at 10 bytes per second, the second begins when half of the first is over."""
    arrivals = deliver(of(2, sharing=sharing), [(0.0, 0, 2, 100.0), (5.0, 1, 2, 100.0)])
    late = 5.0 if sharing == "none" else 0.0
    assert arrivals == pytest.approx([0.25 + seconds[0], 0.25 + seconds[1] + late])


@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize(("receives", "seconds"), [(4.0, 25.0), (40.0, 10.0)])
def test_receiving_at_another_bandwidth(receives, seconds, sharing):
    """The narrower of sending and receiving counts."""
    cluster = of(2, Host(bandwidth=10.0, receive_bandwidth=receives), sharing=sharing)
    assert deliver(cluster, [(0.0, 0, 1, 100.0)]) == pytest.approx([seconds])


def test_in_order_what_waits_for_a_link_holds_no_other():
    """From host 0 to host 1 at 10, which receives at 4 bytes per second; then from host 2 to host 1, and 0 to 2.

    The first is over at 25 s, the second right after it at 50. The third leaves host 0 at 10 s, and not at 25."""
    cluster = of(3, Host(bandwidth=10.0, receive_bandwidth=4.0), sharing="fifo")
    arrivals = deliver(cluster, [(0.0, 0, 1, 100.0), (1.0, 2, 1, 100.0), (2.0, 0, 2, 40.0)])
    assert arrivals == pytest.approx([25.0, 50.0, 10.0 + 10.0])


@pytest.mark.parametrize(("sharing", "up"), [("fair", 20.25), ("fifo", None), ("none", 10.25)])
def test_workers_on_one_host_share_its_interface_and_not_their_link(sharing, up):
    host = Host(workers=2, bandwidth=10.0, latency=0.125, link_bandwidth=5.0, link_latency=0.0625)
    cluster = Cluster((Workers(1.0, 2, host),), servers=Servers(host=NIC), sharing=sharing)
    first, second, inside = deliver(cluster, [(0.0, 0, 2, 100.0), (0.0, 1, 2, 100.0), (0.0, 0, 1, 100.0)])
    assert (first, second) == pytest.approx((up, up) if up else (10.25, 20.25))
    assert inside == pytest.approx(0.0625 + 100 / 5)


def twin(capacities, flows):
    """When each flow (start, bytes, links, given up at) ends, and what it has moved, in exact fractions.

    Max-min by its definition: all flows that are not stopped yet rise by the same rate, until some link is full; who
    goes over a full link stops rising.
    """
    left = [Fraction(size) for _, size, _, _ in flows]
    ends = [None] * len(flows)
    now, going = Fraction(0), set()
    while any(end is None for end in ends):
        rates, rising = dict.fromkeys(going, Fraction(0)), set(going)
        while rising:
            spare = {
                k: (capacity - sum(r for i, r in rates.items() if k in flows[i][2])) / crowd
                for k, capacity in enumerate(capacities)
                if (crowd := sum(k in flows[i][2] for i in rising))
            }
            rise = min(spare.values())
            for i in rising:
                rates[i] += rise
            rising = {i for i in rising if all(spare[k] > rise for k in flows[i][2])}
        times = [now + left[i] / rates[i] for i in going]
        times += [flows[i][0] for i, end in enumerate(ends) if end is None and i not in going]
        times += [flows[i][3] for i in going if flows[i][3] is not None]
        then = min(times)
        for i in list(going):
            left[i] -= rates[i] * (then - now)
            if not left[i] or flows[i][3] == then:
                ends[i] = then
                going.remove(i)
        now = then
        going |= {i for i, (start, _, _, _) in enumerate(flows) if start == now and ends[i] is None}
    return [float(end) for end in ends], [float(flow[1] - rest) for flow, rest in zip(flows, left, strict=True)]


@st.composite
def links_and_flows(draw):
    tenths = st.integers(1, 40).map(lambda k: Fraction(k, 10))
    capacities = draw(st.lists(tenths, min_size=1, max_size=5))
    paths = st.sets(st.integers(0, len(capacities) - 1), min_size=1).map(sorted).map(tuple)
    flows = []
    for _ in range(draw(st.integers(1, 9))):
        start = draw(st.integers(0, 8)) * Fraction(1, 2)
        stop = draw(st.none() | tenths)
        flows.append((start, draw(tenths), draw(paths), None if stop is None else start + stop))
    return capacities, flows


@settings(max_examples=150, deadline=None)
@given(links_and_flows())
def test_fair_sharing_against_a_slow_twin(case):
    capacities, flows = case
    links = [Link(float(capacity)) for capacity in capacities]
    made = [Flow(float(size), tuple(links[k] for k in path)) for _, size, path, _ in flows]
    begins = sorted((float(start), i) for i, (start, _, _, _) in enumerate(flows))
    stops = sorted((float(stop), i) for i, (_, _, _, stop) in enumerate(flows) if stop is not None)
    sharing, ends, moved = FairSharing(), [math.nan] * len(flows), [0.0] * len(flows)
    following = float("inf")
    while begins or stops or following < float("inf"):
        now = min([following, *(queue[0][0] for queue in (begins, stops) if queue)])
        for flow in sharing.advance(now):
            ends[made.index(flow)], moved[made.index(flow)] = now, flow.size
        while stops and stops[0][0] == now:
            i = stops.pop(0)[1]
            if made[i].group is not None:
                ends[i], moved[i] = now, sharing.stop(made[i])
        while begins and begins[0][0] == now:
            sharing.start(made[begins.pop(0)[1]])
        following = sharing.settle()
    expected = twin(capacities, flows)
    assert ends == pytest.approx(expected[0], rel=1e-9)
    assert moved == pytest.approx(expected[1], rel=1e-9, abs=1e-9)


@st.composite
def traffic(draw):
    """A random cluster of six workers, and messages between their hosts and the server's."""
    host = Host(
        workers=draw(st.sampled_from([1, 2])),
        bandwidth=draw(st.sampled_from([3.0, 10.0])),
        receive_bandwidth=draw(st.sampled_from([None, 7.0])),
        latency=draw(st.sampled_from([0.0, 0.1])),
        link_bandwidth=draw(st.sampled_from([None, 5.0])),
    )
    topology = Racks(hosts=2, oversubscription=draw(st.sampled_from([0.5, 1.0, 3.0])))
    cluster = Cluster((Workers(1.0, 4, host), Workers(1.0, 2, NIC)), servers=Servers(host=NIC), topology=topology)
    place, tenths = st.integers(0, 6), st.integers(0, 100).map(lambda k: k / 10)
    one = st.tuples(tenths, place, place, tenths).filter(lambda send: send[1] != send[2])
    return cluster, draw(st.lists(one, min_size=1, max_size=25))


@settings(max_examples=80, deadline=None)
@given(traffic())
def test_no_link_carries_more_than_its_capacity(case):
    """Looked at every .37 s, and whenever a message ends: what went over each link since, by the bytes of its messages.

    And all of every message arrives in the end, not before it would alone."""
    cluster, sends = case
    env, rows = simpy.Environment(), []
    transfers = Transfers(env, cluster, rows.append)
    messages, seen = [], [0.0, {}]

    def look():
        going = {message for message in messages if message.sent and message.moved < message.size}
        now = [transfers.carrier.moved(m) if m in going else m.moved for m in messages]
        before = seen[1]
        for link in {link for message in messages for link in message.path}:
            over = sum(x - before.get(k, 0.0) for k, x in enumerate(now) if link in messages[k].path)
            assert over <= link.capacity * (env.now - seen[0]) + 1e-9
        seen[:] = env.now, dict(enumerate(now))

    def watch():
        while len(rows) < len(sends):
            yield env.timeout(0.37)
            look()

    def send(at, source, target, size):
        yield env.timeout(at)
        messages.append(transfers.send(0, BETWEEN, source, target, size, look))

    for one in sends:
        env.process(send(*one))
    env.process(watch())
    env.run()
    assert len(rows) == len(sends)
    for start, end, _, _, _, _, size, moved in rows:
        assert moved == size
        assert end >= start
    alone = [deliver(cluster, [one])[0] for one in sends]
    assert all(x >= y - 1e-9 for x, y in zip(deliver(cluster, sends), alone, strict=True))


@settings(max_examples=50, deadline=None)
@given(traffic())
def test_in_order_no_interface_receives_faster_than_it_can(case):
    """The last of a message's bytes is over a link its size over the bandwidth after the message before it."""
    cluster, sends = case
    fifo = Cluster(cluster.workers, servers=cluster.servers, topology=cluster.topology, sharing="fifo")
    arrivals, hosts = deliver(fifo, sends), fifo.host_of
    for target in set(hosts):
        mine = [
            (arrivals[k], size)
            for k, (_, a, b, size) in enumerate(sends)
            if hosts[b] == target and hosts[a] != target and size
        ]
        for (before, _), (now, size) in itertools.pairwise(sorted(mine)):
            assert now - before >= size / fifo.hosts[target].receives - 1e-9


# ---------------------------------------------------------------- what lies between hosts

CROSSING = [(0.0, 0, 2, 100.0), (0.0, 1, 3, 100.0)]


@pytest.mark.parametrize(
    ("racks", "sends", "seconds"),
    [
        (Racks(2), CROSSING, 10.0),
        (Racks(2, oversubscription=4.0), CROSSING, 40.0),  # an uplink of 2 x 10/4, shared by two
        (Racks(2, oversubscription=4.0), CROSSING[:1], 20.0),
        (Racks(2, bandwidth=2.5, latency=1.0), CROSSING, 2.0 + 80.0),  # out of one rack, into another
        (Racks(2, oversubscription=4.0), [(0.0, 0, 1, 100.0), (0.0, 2, 3, 100.0)], 10.0),
        (Racks(2, oversubscription=4.0), [(0.0, 0, 2, 100.0), (0.0, 3, 1, 100.0)], 20.0),  # each way for itself
        (Racks(4, oversubscription=4.0), CROSSING, 10.0),
    ],
)
def test_racks(racks, sends, seconds):
    assert deliver(of(4, topology=racks), sends) == pytest.approx([0.25 + seconds] * len(sends))


SITES = {
    "hosts": (2, 1, 1),
    "links": (SiteLink(0, 1, 4.0, 1.0), SiteLink(1, 2, 2.0, 0.5), SiteLink(0, 2, 8.0, 4.0)),
}


@pytest.mark.parametrize(
    ("sends", "seconds"),
    [
        ([(0.0, 0, 1, 100.0)], [10.0]),  # within a site
        ([(0.0, 0, 2, 100.0)], [1.0 + 25.0]),
        ([(0.0, 0, 3, 100.0)], [1.5 + 50.0]),  # by the least latency, though another way is wider
        ([(0.0, 0, 2, 100.0), (0.0, 1, 2, 100.0)], [1.0 + 50.0] * 2),
        ([(0.0, 0, 2, 100.0), (0.0, 2, 1, 100.0)], [1.0 + 25.0] * 2),  # full duplex
    ],
)
def test_sites(sends, seconds):
    """The latencies of the route, and the bandwidth of its narrowest link."""
    cluster = of(3, topology=Sites(**SITES))
    assert deliver(cluster, sends) == pytest.approx([0.25 + s for s in seconds])
    for sharing in SHARINGS:  # the first alone
        one = deliver(of(3, topology=Sites(**SITES), sharing=sharing), sends[:1])
        assert one == pytest.approx([deliver(cluster, sends[:1])[0]])


def test_a_message_pays_every_latency_once():
    workers = (Workers(1.0, 1, Host(latency=1.0)), Workers(1.0, 1, Host(latency=2.0)))
    cluster = Cluster(workers, latency=4.0, topology=Racks(1, latency=8.0))
    assert deliver(cluster, [(0.0, 0, 1, 1e9)]) == [1.0 + 2.0 + 4.0 + 2 * 8.0]


# ---------------------------------------------------------------- at both ends of a message


@pytest.mark.parametrize(
    ("size", "ready", "arrival"),
    [
        (100.0, None, 0.25 + 10.0),  # eager
        (100.0, 50.0, 0.25 + 10.0),  # it waits at the receiver, and holds nobody
        (110.0, None, 0.75 + 11.0),  # announced, answered, sent
        (110.0, 0.125, 0.75 + 11.0),  # ready before it is announced
        (110.0, 5.25, 5.0 + 0.75 + 11.0),  # held for the five seconds by which the receiver is late
    ],
)
def test_eager_and_rendezvous(size, ready, arrival):
    assert deliver(of(2, eager_limit=100), [(0.0, 0, 1, size, ready)]) == pytest.approx([arrival])


def test_a_deadlock_names_the_message_that_nobody_receives():
    class Deaf(Protocol):
        kind = "peers"

        def start(self, sim):
            def sender():
                yield sim.send(0, 1, ready=sim.env.event())

            sim.env.process(sender())

    words = r"nothing is left to happen; .*800 bytes of worker 0 wait for host 1 to receive them"
    with pytest.raises(Deadlock, match=words):
        record(of(2, eager_limit=100), Deaf(), Workload(tensor_bytes=[800]), stop=Stop(updates=1))


@pytest.mark.parametrize(
    ("sharing", "seconds"),
    [
        ("none", [10 + 20, 10 + 40, 10 + 60]),  # all there at once, taken in one after another
        ("fifo", [10 + 20, 10 + 40, 10 + 60]),
        ("fair", [30 + 20, 30 + 40, 30 + 60]),
    ],
)
def test_arrivals_are_taken_in_one_after_another(sharing, seconds):
    """n/B = 10 s, n over copy_bandwidth = 20 s."""
    cluster = of(3, Host(bandwidth=10.0, latency=0.125, copy_bandwidth=5.0), sharing=sharing)
    assert deliver(cluster, [(0.0, k, 3, 100.0) for k in range(3)]) == pytest.approx([0.25 + s for s in seconds])


def test_what_stays_on_a_host_is_not_taken_in():
    host = Host(workers=2, bandwidth=10.0, link_bandwidth=50.0, copy_bandwidth=5.0)
    assert deliver(of(2, host), [(0.0, 0, 1, 100.0)]) == pytest.approx([2.0])


# ---------------------------------------------------------------- the server


def test_the_asynchronous_parameter_server_that_piz_daint_is_calibrated_by():
    """.45 steps per second of each of 64 workers with ResNet-50 (Li et al., PPoPP 2020, table 2).

    No prediction: the host's copy_bandwidth is this throughput times the bytes (see PizDaint). It says that the
    server's host, and nothing else, is what they wait for."""
    host = build(Host, {"name": "piz_daint"})
    cluster = Cluster((Workers(Gamma(0.617, 0.03), 64, host),), servers=Servers(host=host))
    workload = Workload(tensor_bytes=[4 * 25_559_081])
    trace = record(cluster, Asynchronous(), workload, stop=Stop(seconds=220.0))
    begun = 20.0
    updates = np.sum((trace.verb == APPLY) & (trace.time > begun))
    assert updates / 64 / (trace.end - begun) == pytest.approx(0.45, rel=0.02)
    assert isinstance(host, PizDaint)


def repairman(n, ratio):
    """Updates per second with a service of mean ``ratio``, each machine running for 1 s in the mean (M/M/1//N)."""
    weights = [math.factorial(n) / math.factorial(n - k) * ratio**k for k in range(n + 1)]
    return (1 - weights[0] / sum(weights)) / ratio


@pytest.mark.parametrize(("n", "lock"), [(2, True), (8, True), (8, False)])
def test_updates_that_take_time(n, lock):
    """With a lock the closed machine-repairman queue; without one, every worker goes round for itself.

    Sampling error: updates come more regularly than a Poisson process, whose count has the relative deviation
    1/sqrt(updates) = .0050; four of these."""
    updates = 40_000
    servers = Servers(update_seconds=Exponential(mean=0.1), lock=lock)
    trace = record(
        Cluster((Workers(Exponential(1.0), n),), servers=servers), Asynchronous(), stop=Stop(updates=updates), seed=5
    )
    expected = repairman(n, 0.1) if lock else n / 1.1
    assert trace.updates[-1] / trace.end == pytest.approx(expected, rel=4 / math.sqrt(updates))


def test_the_repairman_by_hand():
    assert repairman(2, 0.1) == pytest.approx(1.803, abs=5e-4)
    assert repairman(1, 0.1) == pytest.approx(1 / 1.1)


def test_an_update_takes_the_time_to_move_its_buffers():
    """Of the largest shard; a gradient and the parameters make two models; the workers' own steps overlap."""
    servers = Servers(shards=4, update_bandwidth=100.0)
    workload = Workload(tensor_bytes=[800])
    trace = record(Cluster((Workers(1.0, 2),), servers=servers), Asynchronous(), workload, stop=Stop(updates=4))
    applied = trace.time[trace.verb == APPLY]
    assert applied == pytest.approx([1 + 4, 1 + 8, 1 + 12, 1 + 16])


# ---------------------------------------------------------------- gradients in pieces


def uploads(buckets, tensor_bytes, bandwidth, seconds=1.0, latency=0.25):
    """Size and arrival of each message of one worker's first gradient."""
    host = Host(bandwidth=bandwidth, latency=latency / 2)
    cluster = Cluster((Workers(Constant(seconds), 1, host),), servers=Servers(host=host), buckets=buckets)
    trace = record(cluster, Asynchronous(), Workload(tensor_bytes=tensor_bytes), stop=Stop(updates=1))
    sent = trace.transfers
    mine = sent["kind"] == "up"
    return sent["bytes"][mine], sent["end"][mine]


TENSORS = [30 * MIB, 10 * MIB, 20 * MIB, MIB // 2, 3 * MIB // 4]  # in forward order


def test_the_buckets_of_pytorch():
    """In reverse order: the first is full at 1 MiB, the others at 25 MiB."""
    pieces = PyTorchDDP().pieces(TENSORS)
    whole = sum(TENSORS)
    assert [piece.share * whole / MIB for piece in pieces] == pytest.approx([1.25, 30.0, 30.0])
    assert [piece.begin * whole / MIB for piece in pieces] == pytest.approx([60.0, 30.0, 0.0])


@pytest.mark.parametrize("bandwidth", [30 * MIB, 300 * MIB])
@pytest.mark.parametrize("overlap", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(
    ("tensors", "ends"),
    [
        (TENSORS, [1.25, 31.25, 61.25]),
        ([MIB] * 60, [1, 26, 51, 60]),  # the last one is not full
        ([100 * MIB], [100]),
    ],
)
def test_pieces_leave_one_after_another(tensors, ends, overlap, bandwidth):
    """t(b) = max(ready(b), t(b - 1)) + n_b/B, and a latency; ``ends`` in MiB, from the last tensor on."""
    whole, last, expected = sum(tensors) / MIB, 0.0, []
    for begin, end in itertools.pairwise([0, *ends]):
        ready = 1 - overlap * (1 - (1 / 3 + 2 / 3 * end / whole))
        last = max(ready, last) + (end - begin) * MIB / bandwidth
        expected.append(last + 0.25)
    assert uploads(PyTorchDDP(overlap=overlap), tensors, bandwidth)[1] == pytest.approx(expected, rel=1e-9)


def test_each_tensor_by_itself_or_small_ones_together():
    each = [round(piece.share * sum(TENSORS)) for piece in Tensors().pieces(TENSORS)]
    assert each == TENSORS[::-1]
    some = [round(piece.share * sum(TENSORS)) for piece in Tensors(bucket_bytes=MIB).pieces(TENSORS)]
    assert some == [5 * MIB // 4, 20 * MIB, 10 * MIB, 30 * MIB]
    assert Tensors(overlap=0.0).pieces(TENSORS)[0].ready == 1.0


@pytest.mark.parametrize("buckets", [PyTorchDDP(overlap=0.0), P3(overlap=0.0), Horovod(overlap=0.0)])
def test_without_overlap_all_is_sent_after_the_step(buckets):
    """As if whole, but that Horovod sends when it looks next."""
    bandwidth = 30.0 * MIB
    last = uploads(buckets, TENSORS, bandwidth)[1].max()
    assert -1e-9 <= last - uploads(Whole(), TENSORS, bandwidth)[1].max() <= buckets.cycle + 1e-9


def fused(tensor_bytes, bandwidth, cycle, limit, latency):
    """Horovod by hand: at each look all that is ready goes, up to a limit, if nothing is on its way."""
    whole, at, ready = sum(tensor_bytes), 0, []
    for size in tensor_bytes[::-1]:
        at += size
        ready.append((2 / 3 * at / whole, size))
    out, look, free = [], 0, 0.0  # from the end of the forward pass
    while ready:
        now = look * cycle
        look += 1
        if now < free:
            continue
        going = [size for when, size in ready if when <= now]
        while sum(going) > limit and len(going) > 1:
            going.pop()
        if going:
            free = now + latency + sum(going) / bandwidth
            out.append((sum(going), 1 / 3 + free))
            del ready[: len(going)]
    return out


@pytest.mark.parametrize("bandwidth", [900.0, 5000.0])
@pytest.mark.parametrize("limit", [100, 10**9])
@pytest.mark.parametrize("latency", [0.0, 0.001, 0.05])
def test_horovod_fuses_what_is_ready(bandwidth, limit, latency):
    tensors = [70, 10, 31, 17, 46, 23, 5, 88, 12, 61, 40, 97]
    expected = fused(tensors, bandwidth, 0.0437, limit, latency)
    sizes, arrivals = uploads(Horovod(bucket_bytes=limit, cycle=0.0437), tensors, bandwidth, latency=latency)
    assert sizes == pytest.approx([size for size, _ in expected])
    assert arrivals == pytest.approx([end for _, end in expected])
    assert 1 < len(sizes) < len(tensors)


@pytest.mark.parametrize(
    ("overlap", "bandwidth", "order"),
    [
        (0.0, 100.0, [1, 2, 3, 4, 5, 6]),  # all at once: those of the first layers first
        (1.0, 1e6, [6, 5, 4, 3, 2, 1]),  # a fast link: as they come
        (1.0, 1.0, [6, 1, 2, 3, 4, 5]),  # a slow one: the first to be ready is away, the others wait
    ],
)
def test_p3_sends_first_what_is_needed_first(overlap, bandwidth, order):
    sizes, arrivals = uploads(P3(slice_bytes=10, overlap=overlap), [1, 2, 3, 4, 5, 6], bandwidth)
    assert sizes[np.argsort(arrivals)] == pytest.approx(order)


def test_p3_cuts_tensors_into_slices():
    sizes, _ = uploads(P3(slice_bytes=10, overlap=0.0), [25, 7], 100.0)
    assert sizes == pytest.approx([10, 10, 5, 7])


def test_pieces_are_announced_by_the_largest_and_fused_ones_by_what_is_sent():
    """Above the eager limit three latencies pass in place of one; a small piece does not overtake those before it."""
    tensors = [5] * 10
    whole = Cluster(of(1, Host()).workers, latency=0.1, eager_limit=20, buckets=Horovod(overlap=0.0, cycle=1e-9))
    trace = record(whole, Asynchronous(), Workload(tensor_bytes=tensors), stop=Stop(updates=1))
    assert trace.transfers["bytes"][0] == pytest.approx(50)
    assert trace.end == pytest.approx(1.0 + 0.3)
    slices = Cluster(
        of(1, Host(bandwidth=10.0)).workers,
        latency=0.1,
        servers=Servers(host=Host(bandwidth=10.0)),
        eager_limit=8,
        buckets=P3(slice_bytes=10, overlap=0.0),
    )
    trace = record(slices, Asynchronous(), Workload(tensor_bytes=[25, 7]), stop=Stop(updates=1))
    up = trace.transfers["kind"] == "up"
    assert trace.transfers["bytes"][up][np.argsort(trace.transfers["end"][up])].tolist() == [10, 10, 5, 7]
    assert trace.transfers["start"][up].tolist() == [1.0] * 4  # when they were sent, not when their bytes were


def test_a_racks_link_down_carries_what_its_hosts_receive():
    """Two volunteers a rack, who receive more than they send: their link is as wide as both, each way."""
    home = Host(bandwidth=10.0, receive_bandwidth=80.0)
    cluster = Cluster(
        (Workers(Constant(1.0), 2, home),),
        topology=Racks(2),
        servers=Servers(shards=2, host=Host(bandwidth=1000.0)),
    )
    assert deliver(cluster, [(0.0, 2, 0, 80.0), (0.0, 3, 1, 80.0)]) == pytest.approx([1.0, 1.0])


# ---------------------------------------------------------------- nothing is lost

PROTOCOLS = [Asynchronous(), BackupWorkers(2), KAsync(3), KBatchSync(4), KSync(3)]


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
@pytest.mark.parametrize("buckets", [Whole(), PyTorchDDP(100, 30), P3(50)], ids=lambda buckets: buckets.name)
@pytest.mark.parametrize("sharing", SHARINGS)
def test_bytes_are_conserved(protocol, buckets, sharing):
    """All of a message that arrives is moved, and of any other no more than it has."""
    workers = (Workers(Gamma(1.0, 0.5), 4, Host(workers=2, bandwidth=500.0)), Workers(Exponential(1.0), 3, NIC))
    servers = Servers(shards=2, host=Host(bandwidth=600.0, copy_bandwidth=900.0), update_seconds=0.05)
    cluster = Cluster(workers, 0.01, servers=servers, topology=Racks(2, 2.0), sharing=sharing, buckets=buckets)
    trace = record(cluster, protocol, Workload(tensor_bytes=[60, 90, 20, 30]), stop=Stop(seconds=60.0), seed=2)
    sent, counts = trace.transfers, trace.summary()
    whole = sent["moved"] == sent["bytes"]
    assert np.all(sent["moved"] <= sent["bytes"])
    assert np.all(sent["moved"] >= 0)
    assert np.all(sent["end"] >= sent["start"])
    under_way = np.isinf(sent["end"])
    assert np.all(sent["start"][under_way] <= trace.end)
    # what was neither under way at the end nor given up is whole, byte by byte that of its gradients
    arrived = whole & ~under_way & (sent["kind"] == "up")
    gradients = np.sum(trace.verb == APPLY)
    assert 200 * gradients <= sent["bytes"][arrived].sum() <= 200 * (gradients + counts["cancelled"] + 7) + 1e-6
    if not counts["cancelled"]:
        assert np.all(whole | under_way)
    else:
        assert not np.all(whole | under_way)


def test_a_trace_by_hand_has_no_transfers():
    assert not len(small_trace("server").transfers)


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Host(bandwidth=0.0), "bandwidth: expected a number >= 0.001"),
        (lambda: Host(latency=-1e-6), "latency: expected a number >= 0"),
        (lambda: Host(workers=0), "workers: expected .*>= 1"),
        (lambda: of(2, latency=-1.0), "latency: expected a number >= 0"),
        (lambda: of(2, sharing="fare"), "sharing: .*'fair'"),
        (lambda: of(2, eager_limit=-1), "eager_limit: expected"),
        (lambda: Servers(shards=3, on=(0, 1)), "on: names 2 hosts for 3 shards: shard 2 has no host"),
        (lambda: Servers(on=(0, 1)), "on: names 2 hosts for 1 shards"),
        (lambda: Servers(on=(0,), host=NIC), "on: give the hosts of workers .*not both"),
        (lambda: of(2, servers=Servers(on=(7,))), r"servers\.on\[0\]: shard 0 has no host: .* 0 to 1, not 7"),
        (lambda: Servers(update_bandwidth=0), "update_bandwidth: expected a number >= 0.001"),
        (lambda: Racks(2, oversubscription=2.0, bandwidth=5.0), "bandwidth: .*not both"),
        (
            lambda: Cluster((Workers(Constant(1.0), 1, NIC), Workers(Constant(1.0))), topology=Racks(2)),
            r"topology\.bandwidth: host 1 has no bandwidth, others in rack 0 have",
        ),
        (lambda: Sites((1, 1), (SiteLink(0, 2, 1.0),)), r"links\[0\]\.b: the sites are 0 to 1, not 2"),
        (lambda: Sites((1, 1), (SiteLink(1, 1, 1.0),)), r"links\[0\]: joins site 1 with itself"),
        (lambda: Sites((1, 1), (SiteLink(0, 1, 1.0), SiteLink(1, 0, 1.0))), r"links\[1\]: .*another link does"),
        (
            lambda: of(3, topology=Sites((2, 1, 1), SITES["links"][:1])),
            r"topology\.links: host 3 \(site 2\) cannot be reached from host 0 \(site 0\)",
        ),
        (lambda: of(3, topology=Sites((2, 3), SITES["links"][:1])), r"topology\.hosts: there are 4 hosts"),
        (lambda: PyTorchDDP(bucket_bytes=0), "bucket_bytes: expected"),
        (lambda: P3(overlap=1.5), "overlap: expected"),
        (
            lambda: build(Cluster, {"workers": [{"step_time": 1.0, "host": {"name": "piz_dain"}}]}),
            r"workers\[0\]\.host\.name: no host is called 'piz_dain'; .*did you mean 'piz_daint'",
        ),
    ],
)
def test_mistakes_are_named(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_a_server_must_be_reachable_and_pieces_have_sizes():
    """Both are known only when a run begins: between peers the server's place does not matter."""
    apart = of(3, topology=Sites((2, 1), SITES["links"][:1]))
    with pytest.raises(InputError, match=r"cluster\.topology\.hosts: .*host 3 is at no site"):
        record(apart, Asynchronous(), stop=Stop(updates=1))
    with pytest.raises(InputError, match=r"cluster\.topology\.bandwidth: host 3 has no bandwidth, others in rack 1"):
        record(Cluster((Workers(Constant(1.0), 3, NIC),), topology=Racks(2)), Asynchronous(), stop=Stop(updates=1))
    with pytest.raises(InputError, match=r"cluster\.buckets: needs the sizes of the tensors"):
        record(of(2, buckets=P3()), Asynchronous(), stop=Stop(updates=1))


# ---------------------------------------------------------------- what is over is gone


def test_a_simulation_that_is_over_leaves_nothing_behind():
    recording = Recording(of(3), Asynchronous(), Workload(tensor_bytes=[5]), stop=Stop(updates=50))
    assert recording.go_on() is None
    recording.trace()
    gone = [weakref.ref(x) for x in (recording._sim, recording._log, recording._sim.transfers.layout)]
    del recording
    gc.collect()
    assert [x() for x in gone] == [None] * 3


@pytest.mark.parametrize("buckets", [Whole(), P3(slice_bytes=1, overlap=1.0), Horovod()], ids=lambda b: b.name)
@pytest.mark.parametrize("sharing", SHARINGS)
def test_what_was_stopped_does_not_stay_in_the_queue(buckets, sharing):
    """A fast worker stops eight slow ones at each update: their steps would end, and their bytes arrive, much later."""
    workers = (Workers(Constant(0.001)), Workers(Constant(1e4), 4), Workers(Constant(1e-4), 4, Host(bandwidth=1e-3)))
    cluster = Cluster(workers, buckets=buckets, sharing=sharing)
    most = 0
    recording = Recording(cluster, KSync(1), Workload(tensor_bytes=[3, 4, 5]), stop=Stop(updates=600))

    def watch():
        nonlocal most
        while True:
            yield recording._env.timeout(0.005)
            most = max(most, len(recording._env._queue))

    recording._env.process(watch())
    recording.go_on()
    assert recording.trace().updates[-1] == 600
    assert most < 1.5 * MANY < 8 * 600


def test_an_interface_of_no_time_at_all():
    """1,000 bytes at 1e17 per second take less than the clock can tell, behind a link on which they take hours."""
    cluster = Cluster(
        (Workers(Constant(1.0), 1, Host(bandwidth=0.1)), Workers(Constant(1.0), 1, Host(bandwidth=1e17))),
        servers=Servers(host=Host(bandwidth=1e17)),
        sharing="fifo",
    )
    trace = record(cluster, Asynchronous(), Workload(tensor_bytes=[1000]), stop=Stop(seconds=100.0))
    assert np.all(trace.transfers["moved"] <= 1000)


def test_too_much_is_refused_at_once():
    small = Workload(tensor_bytes=[4_000_000])
    with pytest.raises(InputError, match=r"cluster\.buckets: cuts a gradient of 4000000 bytes into more than 100000"):
        record(of(2, buckets=P3(slice_bytes=1)), Asynchronous(), small, stop=Stop(updates=1))
    with pytest.raises(InputError, match=r"stop: about 1e\+13 gradients or more"):
        record(of(2), RennalaRounds(10_000_000), stop=Stop(updates=1_000_000))
    # a message takes 2 s, so that steps of 1 ns are but a few
    fast = Cluster((Workers(Constant(1e-9), 1, Host(latency=1.0)),))
    assert len(record(fast, Asynchronous(), stop=Stop(seconds=10.0)).gradients) == 5


@pytest.mark.parametrize(
    ("buckets", "sent"),
    [
        (PyTorchDDP(bucket_bytes=1, first_bucket_bytes=1), 20),
        (P3(slice_bytes=1), 22),
        (Horovod(cycle=0.01), 20),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_a_stopped_worker_sends_no_more_pieces(buckets, sent):
    """A step of 1.2 s is stopped after 1 s: of 30 bytes, ready backwards from .4 s on, the rest never sets out."""
    cluster = Cluster((Workers(Constant(1.0)), Workers(Constant(1.2))), buckets=buckets)
    trace = record(cluster, KSync(1), Workload(tensor_bytes=[10, 10, 10]), stop=Stop(updates=4))
    table = trace.transfers
    mine = (table["worker"] == 1) & (table["kind"] == "up")
    stops = trace.time[trace.cancels]
    assert stops == pytest.approx([1, 2, 3], abs=0.02)
    for begun, end in itertools.pairwise([0.0, *stops]):
        assert np.sum(table["bytes"][mine & (table["start"] > begun) & (table["start"] <= end)]) == pytest.approx(sent)
    assert np.all(np.isfinite(table["end"][mine & (table["start"] < stops[-1])]))
