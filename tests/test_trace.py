"""Traces by hand: what is derived, what is refused, what is stored."""

import dataclasses

import numpy as np
import pytest

from asyncsim.cluster import Gamma
from asyncsim.errors import InputError
from asyncsim.protocols import Synchronous
from asyncsim.recorder import Recorder
from asyncsim.recording import Stop, record
from asyncsim.testing import small_trace
from asyncsim.trace import ARRAYS, Trace
from asyncsim.views import message_age
from asyncsim.vocabulary import APPLY, COMPUTE, MERGE, READ, SEND, STEP


def test_from_arrivals():
    trace = Trace.from_arrivals([0, 1, 1, 0], batch_size=10)
    rows = trace.gradients
    assert trace.staleness[rows].tolist() == [0, 1, 0, 2]
    assert trace.step[rows].tolist() == [0, 0, 1, 1]
    assert trace.clock[rows].tolist() == [0, 10, 20, 30]
    assert trace.samples[rows].tolist() == [10, 20, 30, 40]
    assert trace.time[rows].tolist() == [1, 2, 3, 4]
    assert (trace.num_workers, trace.end) == (2, 4.0)


def test_from_the_arrays_that_matter():
    verb, worker = [READ, READ, APPLY, APPLY], [0, 1, 1, 0]
    trace = Trace(
        "server", 2, 3.0, time=np.array([0.0, 0.0, 1.0, 2.0]), verb=verb, worker=worker, source=[-1, -1, 1, 0]
    )
    assert trace.staleness[trace.gradients].tolist() == [0, 1]
    assert trace.closes.tolist() == [False, False, True, True]
    assert trace.batch_size == 32
    with pytest.raises(InputError, match="row 3, apply: names a read of another worker"):
        Trace("server", 2, 3.0, time=trace.time, verb=verb, worker=worker, source=[-1, -1, 1, 1])


def test_derived_columns_of_groups_drops_and_local_steps():
    log = Recorder(2, "server")
    a, b = log.read(0), log.read(1)
    log.step(0, a)  # a local step: a gradient, counted, no update
    log.apply(0, a, weight=0.5, closes=False)
    log.cancel(1, b)  # counts as a step of worker 1
    b = log.read(1)
    log.apply(1, b, weight=0.5)  # closes the first update
    log.apply(1, b, accepted=False)  # dropped: one version old, not counted
    trace = log.trace()
    rows = trace.gradients
    assert trace.step[rows].tolist() == [0, 1, 1, 2]
    assert trace.staleness[rows].tolist() == [0, 0, 0, 1]
    assert trace.clock[rows].tolist() == [0, 0, 0, 96]
    assert trace.samples[rows].tolist() == [32, 64, 96, 96]
    summary = trace.summary()
    assert {k: summary[k] for k in ("gradients", "dropped", "cancelled", "updates", "samples")} == {
        "gradients": 4,
        "dropped": 1,
        "cancelled": 1,
        "updates": 1,
        "samples": 96,
    }


def test_staleness_between_peers_counts_changes_of_the_own_model():
    log = Recorder(2, "peers")
    m = [log.publish(0), log.publish(1)]
    a = log.read(0)
    mix = log.mix(m, [0.5, 0.5])
    log.merge(0, mix)
    log.merge(1, mix)
    log.merge(0, mix)
    log.step(0, a)
    trace = log.trace()
    assert trace.staleness[trace.gradients].tolist() == [2]


def test_spans_by_hand_and_at_the_cut():
    log = Recorder(1, "server")
    log.enter(0, COMPUTE)
    read = log.read(0)
    log.now = 1.0
    log.enter(0, SEND)
    log.now = 1.5
    log.apply(0, read)
    log.enter(0, COMPUTE)
    log.now = 4.0
    trace = log.trace()
    assert list(trace.spans.rows())[-1] == {"worker": 0, "kind": "compute", "start": 1.5, "end": 4.0}
    head = trace.head(2)
    assert head.end == 1.5
    assert [s["end"] for s in head.spans.rows()] == [1.0, 1.5]


BAD = {
    "an apply after its cancel": (
        lambda log: [log.cancel(0, r := log.read(0)), log.apply(0, r)],
        "server",
        "row 2, apply: its gradient was cancelled before",
    ),
    "a span of nobody": (lambda log: log.enter(7, COMPUTE), "server", "span 0: no such worker"),
    "an unknown span": (lambda log: log.enter(0, 9), "server", "span 0: no such worker, kind of span"),
    "half a worker": (lambda log: log.read(0.5), "server", "are whole numbers, not 0.5"),
    "a worker by name": (lambda log: log.read("a"), "server", "is no number"),
    "half a message": (lambda log: log.mix([0.7], [1.0]), "peers", "are whole numbers, not 0.7"),
    "an apply on a message": (lambda log: log.apply(0, 99), "server", "row 0, apply: names no earlier row"),
    "an apply on an apply": (
        lambda log: log.apply(0, log.apply(0, log.read(0))),
        "server",
        "row 2, apply: .*not a read",
    ),
    "another worker's read": (lambda log: log.apply(1, log.read(0)), "server", "read of another worker"),
    "no such worker": (lambda log: log.read(7), "server", "the workers are 0 to 1"),
    "a peer's verb at a server": (lambda log: log.publish(0), "server", "not a verb of a trace of kind server"),
    "a server's verb between peers": (lambda log: log.apply(0, log.read(0)), "peers", "not a verb"),
    "an empty mix": (lambda log: log.mix([], []), "peers", "mixes no message"),
    "a mix of a read": (lambda log: log.mix([log.read(0)], [1.0]), "peers", "not messages"),
    "a mix of what comes later": (lambda log: log.mix([5], [1.0]), "peers", "not an earlier row"),
    "a weight that is no number": (
        lambda log: log.merge(0, log.mix([log.publish(0)], [1.0]), keep=float("nan")),
        "peers",
        "weights are finite",
    ),
    "a share that is no number": (lambda log: log.mix([log.publish(0)], [float("inf")]), "peers", "weights are finite"),
    "an old read": (lambda log: log.step(0, [log.read(0), log.read(0)][0]), "peers", "older than a later read"),
    "a dropped one that closes": (
        lambda log: log.apply(0, log.read(0), accepted=False, closes=True),
        "server",
        "only an accepted",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_refused(case):
    build, kind, message = BAD[case]
    log = Recorder(2, kind)
    build(log)
    with pytest.raises(InputError, match=message):
        log.trace()


def test_refused_while_writing():
    log = Recorder(2, "peers")
    with pytest.raises(InputError, match="1 messages and 2 weights"):
        log.mix([log.publish(0)], [0.5, 0.5])
    log.now = 2.0
    log.publish(0)
    log.now = 1.0
    log.publish(0)
    with pytest.raises(InputError, match="time goes back"):
        log.trace()
    for workers, message in (
        ([0, -1], r"workers\[1\]"),
        ([0.5], "whole numbers"),
        ("01", "whole"),
        ([10**8], "at most"),
    ):
        with pytest.raises(InputError, match=message):
            Trace.from_arrivals(workers)
    with pytest.raises(InputError, match="kind: expected 'server' or 'peers', got 'peer'"):
        Recorder(2, "peer")
    for number in (0, -1, 2.5):
        with pytest.raises(InputError, match="num_workers: expected a whole number >= 1"):
            Recorder(number, "server")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"time": np.zeros(3)}, "verb: has shape"),
        ({"closes": np.ones(7, np.uint8)}, "closes: holds uint8"),
        ({"verb": np.zeros(7)}, "verb: holds float64"),
        ({"mix_start": np.zeros(2, int)}, "mix_start: does not point"),
        ({"end": float("nan")}, "end: the run ends at nan"),
        ({"end": 1.0}, "end: the run ends at 1.0 s, its last row is at 2.0 s"),
        ({"num_workers": 2.5}, "num_workers: expected a whole number"),
        ({"kind": []}, "kind: a trace is of kind"),
    ],
)
def test_columns_that_mean_nothing_are_refused(change, message):
    trace = Trace.from_arrivals([0, 1], num_workers=3)
    assert len(trace) == 7
    with pytest.raises(InputError, match=message):
        dataclasses.replace(trace, **change)


def test_a_head_keeps_the_numbers_of_the_steps():
    """Also where a gradient that was started before has not arrived yet."""
    log = Recorder(1, "server")
    for _ in range(4):
        first, second = log.read(0), log.read(0)
        log.apply(0, second)
        log.apply(0, first)
    trace = log.trace()
    assert trace.step[trace.gradients].tolist() == [1, 0, 3, 2, 5, 4, 7, 6]
    for rows in range(len(trace)):
        assert trace.head(rows).step.tolist() == trace.step[:rows].tolist()


def test_head_is_within_the_trace():
    with pytest.raises(InputError, match="rows: the trace has 5 rows, not 9"):
        Trace.from_arrivals([0, 0]).head(9)


@pytest.mark.parametrize("kind", ["server", "peers"])
def test_save_and_load(tmp_path, kind):
    trace = small_trace(kind)
    trace.save(tmp_path / "a.npz")
    trace.save(tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    back = Trace.load(tmp_path / "a.npz")
    for f in dataclasses.fields(Trace):
        a, b = getattr(trace, f.name), getattr(back, f.name)
        assert np.array_equal(a, b) if f.name in ARRAYS else a == b
        assert f.name not in ARRAYS or a.dtype == b.dtype


def test_what_is_no_trace_is_named(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        Trace.load(tmp_path / "none.npz")
    (tmp_path / "x.npz").write_bytes(b"nothing")
    with pytest.raises(InputError, match="is not a trace"):
        Trace.load(tmp_path / "x.npz")
    with pytest.raises(InputError, match="cannot be written"):
        small_trace("server").save(tmp_path / "no" / "folder.npz")


def test_a_trace_is_small(make_cluster):
    trace = record(make_cluster(Gamma(1.0, 0.1), 8), Synchronous(), stop=Stop(updates=100))
    size = sum(getattr(trace, k).nbytes for k in ARRAYS[:9])
    assert size <= 64 * len(trace)


def test_repr_names_what_matters():
    trace = Trace.from_arrivals([0, 1, 2, 0])
    assert repr(trace) == "Trace(server, 3 workers, 4 gradients, 4 updates in 4 s, staleness 1.25)"
    assert "<table>" in trace._repr_html_()


def test_how_old_messages_are():
    """0 publishes after its first step, 1 before its own; 0 takes both after two steps, 1 after its one."""
    log = Recorder(2, "peers")
    log.step(0, log.read(0))
    messages = [log.publish(0), log.publish(1)]
    both, own = log.mix(messages, [0.5, 0.5]), log.mix(messages[1:], [1.0])
    log.step(0, log.read(0))
    log.step(1, log.read(1))
    log.merge(0, both)  # that of 1 is two behind
    log.merge(1, own)  # its own does not count
    log.merge(1, both)  # that of 0 is of this step
    summary = log.trace().summary()
    assert (summary["message_age_mean"], summary["message_age_max"]) == (1.0, 2)
    assert "message_age_mean" not in Recorder(2, "peers").trace().summary()
    assert "message_age_mean" not in Trace.from_arrivals([0, 1]).summary()


@pytest.mark.parametrize("seed", range(5))
def test_how_old_messages_are_one_by_one(seed):
    trace = small_trace("peers", num_workers=4, gradients=60, seed=seed)
    steps, ages = [0] * 4, []
    made = {}
    for r, (verb, worker) in enumerate(zip(trace.verb, trace.worker, strict=True)):
        steps[worker] += verb == STEP
        made[r] = steps[worker]
        if verb == MERGE:
            mix = trace.source[r]
            for m in trace.member[trace.mix_start[mix] : trace.mix_start[mix + 1]]:
                if trace.worker[m] != worker:
                    ages.append(max(steps[worker] - made[m], 0))
    assert message_age(trace) == (pytest.approx(np.mean(ages)), max(ages))
