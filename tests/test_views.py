"""What a trace says, as tables: they agree with each other, and with what is known."""

import numpy as np
import pytest

from asyncsim.cluster import Cluster, Constant, Gamma, Host, Servers, Workers
from asyncsim.errors import InputError
from asyncsim.protocols import Asynchronous, BackupWorkers, KBatchSync, KSync, Synchronous
from asyncsim.recording import Stop, record
from asyncsim.trace import ARRAYS, Trace
from asyncsim.vocabulary import SPANS
from asyncsim.workload import Costs, Workload

MODEL = Workload(batch_size=8, tensor_bytes=(600, 400))
SLOW = Cluster(
    (Workers(Gamma(1.0, 0.4), 5, Host(bandwidth=2000.0)),),
    latency=0.05,
    servers=Servers(host=Host(bandwidth=4000.0, copy_bandwidth=1e5), update_seconds=0.05),
)


@pytest.mark.parametrize(
    "protocol", [Asynchronous(), Synchronous(), KSync(3), KBatchSync(3), BackupWorkers(2)], ids=repr
)
@pytest.mark.parametrize("bins", [1, 7, 100])
def test_tables_agree(protocol, bins):
    trace = record(SLOW, protocol, MODEL, stop=Stop(seconds=40.0), seed=1)
    summary, workers, over_time, transfers = trace.summary(), trace.by_worker(), trace.over_time(bins), trace.transfers
    width = over_time["end"] - over_time["start"]
    assert (over_time["start"][0], over_time["end"][-1]) == (0.0, 40.0)
    assert np.sum(over_time["throughput"] * width) == pytest.approx(summary["samples"])
    for kind in SPANS:
        share = summary[f"{kind}_share"]
        assert np.sum(over_time[kind] * width) / (40.0 * 5) == pytest.approx(share, abs=1e-12)
        assert np.mean(workers[f"{kind}_share"]) == pytest.approx(share, abs=1e-12)
    # at each time every worker does one thing
    assert sum(over_time[kind] for kind in SPANS) == pytest.approx(5.0)
    for kind, column in (("up", "bytes_sent"), ("down", "bytes_received")):
        mine = transfers["kind"] == kind
        moved = transfers["moved"][mine].sum()
        assert np.sum(over_time[f"{kind}_bytes"] * width) == pytest.approx(moved)
        assert np.sum(workers[column]) == pytest.approx(moved)
        lasted = np.minimum(transfers["end"][mine], 40.0) - transfers["start"][mine]
        assert np.sum(over_time[kind] * width) == pytest.approx(lasted.sum())
    assert summary["bytes_sent"] == int(transfers["moved"].sum())
    assert workers["accepted"].sum() == summary["gradients"] - summary["dropped"]
    assert (workers["dropped"].sum(), workers["cancelled"].sum()) == (summary["dropped"], summary["cancelled"])
    stale = trace.staleness_distribution()
    assert stale["gradients"].sum() == workers["accepted"].sum()
    assert np.sum(stale["staleness"] * stale["share"]) == pytest.approx(summary["staleness_mean"])
    assert np.sum(workers["staleness"] * workers["accepted"]) / workers["accepted"].sum() == pytest.approx(
        summary["staleness_mean"]
    )


def test_over_time_on_paper():
    """Two workers, steps of 1 s, 10 bytes at 10 bytes per second each way: compute 1 s, up 1 s, down 1 s."""
    host = Host(bandwidth=10.0)
    cluster = Cluster((Workers(Constant(1.0), 1, host),), servers=Servers(host=host))
    trace = record(cluster, Asynchronous(), Workload(batch_size=4, tensor_bytes=(10,)), stop=Stop(seconds=6.0))
    table = trace.over_time(6)
    assert table["compute"].tolist() == [1, 0, 0, 1, 0, 0]
    assert table["send"].tolist() == table["up"].tolist() == [0, 1, 0, 0, 1, 0]
    assert table["receive"].tolist() == table["down"].tolist() == [0, 0, 1, 0, 0, 1]
    assert table["up_bytes"] == pytest.approx([0, 10, 0, 0, 10, 0])
    assert table["throughput"].tolist() == [0, 0, 4, 0, 0, 4]  # at 2 s and 5 s: the interval that begins there


def test_short_messages_on_fast_links_are_not_lost_among_the_others():
    """50,000 messages of 400 bytes at 1e12 bytes per second: each bin's bytes are those of its messages."""
    fast = Host(bandwidth=1e12)
    cluster = Cluster((Workers(Gamma(10.0, 0.1), 8, fast),), servers=Servers(host=fast))
    trace = record(cluster, Asynchronous(), Workload(tensor_bytes=(400,)), stop=Stop(updates=20_000))
    table = trace.over_time(100)
    moved = table["up_bytes"] * (table["end"] - table["start"])
    up = trace.transfers["kind"] == "up"
    counted, _ = np.histogram(trace.transfers["start"][up], np.append(table["start"], trace.end))
    assert moved == pytest.approx(400 * counted, rel=1e-9)
    assert np.all(table["compute"] <= 8 * (1 + 1e-12))


def test_a_part_of_a_trace_has_what_travelled_by_then():
    trace = record(SLOW, Asynchronous(), MODEL, Costs(upload=0.5), stop=Stop(seconds=40.0), seed=2)
    row = len(trace) // 2
    part = trace.head(row)
    now = part.end
    transfers = part.transfers
    assert np.all(transfers["start"] <= now)
    flying = ~np.isfinite(transfers["end"])
    assert np.all(transfers["end"][~flying] <= now)
    assert 0 < flying.sum() <= 5
    assert np.all(transfers["moved"][flying] < transfers["bytes"][flying])
    assert part.summary()["bytes_sent"] < trace.summary()["bytes_sent"]
    assert trace.head(len(trace), trace.end).summary() == trace.summary()


def test_a_trace_by_hand_has_empty_tables(tmp_path):
    trace = Trace.from_arrivals([0, 1, 0])
    assert len(trace.transfers) == len(trace.spans) == 0
    assert trace.by_worker()["accepted"].tolist() == [2, 1]
    assert trace.over_time(3)["throughput"].tolist() == [0, 32, 64]
    trace.save(tmp_path / "t.npz")
    back = Trace.load(tmp_path / "t.npz")
    assert all(np.array_equal(getattr(back, k), getattr(trace, k)) for k in ARRAYS)
    nothing = Trace.from_arrivals([])
    assert [len(table) for table in nothing.tables().values()] == [1, 100, 0, 0, 0]


@pytest.mark.parametrize("bins", [0, -1, 2.5, True, "a", 10**9])
def test_wrong_bins(bins):
    with pytest.raises(InputError, match="bins: expected a whole number from 1 to"):
        Trace.from_arrivals([0]).over_time(bins)


def test_a_broken_transfer_is_refused():
    trace = record(SLOW, Asynchronous(), MODEL, stop=Stop(seconds=5.0))
    arrays = {k: getattr(trace, k) for k in ARRAYS}
    moved = trace.transfer_moved.copy()
    moved[3] = 2e6
    with pytest.raises(InputError, match=r"transfer 3: means nothing: .*moved 2000000"):
        Trace(trace.kind, trace.num_workers, trace.end, **{**arrays, "transfer_moved": moved})
