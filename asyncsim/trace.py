"""The record in the middle: a table of what happened, in order.

A trace says *when* each gradient was computed, on which parameters, and where it went; it knows nothing of values. Each
row is one of eight verbs. What a row makes is named by the number of that row, and later rows name what they use in
their ``source`` (a mix: in the list of its members). The verbs:

=========  ==================================================  =======================================================
verb       with a parameter server                             between peers
=========  ==================================================  =======================================================
READ       worker takes the server's view at this version      worker fixes the point of its next gradient
STEP       one gradient at the point of ``source``, into       the same, into the worker's own state
           what the worker keeps to itself
APPLY      one gradient at the point of ``source``, sent and
           arrived: accepted (at weight ``take``, perhaps
           closing an update) or dropped
PUBLISH                                                        worker puts out a message and keeps ``keep`` of its own
MIX                                                            the weighted sum of messages
MERGE                                                          worker's model becomes keep x own + take x ``source``
CANCEL     the gradient on ``source`` is never finished        the same
RESET      worker starts afresh from ``source`` (a read)       worker starts afresh from ``source`` (a mix)
=========  ==================================================  =======================================================
"""

from __future__ import annotations

import dataclasses
import functools
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from asyncsim.errors import InputError
from asyncsim.records import build, table
from asyncsim.tables import Table
from asyncsim.workload import Costs, Workload

READ, STEP, APPLY, PUBLISH, MIX, MERGE, CANCEL, RESET = range(8)
VERBS = ("read", "step", "apply", "publish", "mix", "merge", "cancel", "reset")
COMPUTE, SEND, RECEIVE, WAIT = range(4)
SPANS = ("compute", "send", "receive", "wait")

SERVER_VERBS = (READ, STEP, APPLY, CANCEL, RESET)
PEER_VERBS = (READ, STEP, PUBLISH, MIX, MERGE, CANCEL, RESET)
SOURCES = {  # what a row may name as its source
    "server": {STEP: READ, APPLY: READ, CANCEL: READ, RESET: READ},
    "peers": {STEP: READ, CANCEL: READ, MERGE: MIX, RESET: MIX},
}
ARRAYS = [
    "time",
    "verb",
    "worker",
    "source",
    "keep",
    "take",
    "accepted",
    "closes",
    "mix_start",
    "member",
    "share",
    "span_time",
    "span_worker",
    "span_kind",
]
FORMAT = 1


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """One run of a protocol on a cluster, without its numbers. Made by ``asyncsim.record``, or by hand.

    Columns, one entry a row (R rows): ``time`` in seconds, ``verb``, ``worker`` (-1 for a mix), ``source`` (a row, or
    -1), ``keep`` and ``take`` (see the verbs), ``accepted``, ``closes``. The members of the mix at row r are
    ``member[mix_start[r]:mix_start[r + 1]]``, rows of messages, with weights ``share``. Spans: from ``span_time[k]`` on
    worker ``span_worker[k]`` does ``span_kind[k]``. The run ends at ``end`` seconds.
    """

    kind: str  # 'server' or 'peers'
    num_workers: int
    end: float
    time: np.ndarray
    verb: np.ndarray
    worker: np.ndarray
    source: np.ndarray
    keep: np.ndarray
    take: np.ndarray
    accepted: np.ndarray
    closes: np.ndarray
    mix_start: np.ndarray
    member: np.ndarray
    share: np.ndarray
    span_time: np.ndarray
    span_worker: np.ndarray
    span_kind: np.ndarray
    workload: Workload
    costs: Costs

    def __post_init__(self) -> None:
        _check(self)

    def __len__(self) -> int:
        return len(self.verb)

    def __repr__(self) -> str:
        s = self.summary()
        return (
            f"Trace({self.kind}, {self.num_workers} workers, {s['gradients']} gradients, {s['updates']} updates in "
            f"{self.end:.6g} s, staleness {s['staleness_mean']:.3g})"
        )

    def _repr_html_(self) -> str:
        return Table({k: np.array([v]) for k, v in self.summary().items()})._repr_html_()

    @classmethod
    def from_arrivals(cls, workers: Sequence[int], *, batch_size: int = 32, num_workers: int | None = None) -> Trace:
        """The asynchronous server from the order of arrivals alone: the k-th arrival comes at k + 1 seconds.

        Every worker reads at time 0, and again right after its gradient was applied.
        """
        from asyncsim.recorder import Recorder

        order = [int(i) for i in workers]
        log = Recorder(num_workers or max(order, default=0) + 1, "server", workload=Workload(batch_size=batch_size))
        reads = [log.read(i) for i in range(log.num_workers)]
        for now, i in enumerate(order, start=1):
            if not 0 <= i < log.num_workers:
                raise InputError(f"worker {i} is not one of the {log.num_workers}", f"workers[{now - 1}]")
            log.now = float(now)
            log.apply(i, reads[i])
            reads[i] = log.read(i)
        return log.trace()

    # ---------------------------------------------------------------- derived columns

    @property
    def batch_size(self) -> int:
        return self.workload.batch_size

    @functools.cached_property
    def gradients(self) -> np.ndarray:
        """The rows that compute a gradient to its end."""
        return np.flatnonzero((self.verb == STEP) | (self.verb == APPLY))

    @functools.cached_property
    def step(self) -> np.ndarray:
        """(R,) the worker's own count of its gradients, cancelled ones included; with the seed it fixes the batch."""
        return _count_by_worker(self.worker, (self.verb == STEP) | (self.verb == APPLY) | (self.verb == CANCEL))

    @functools.cached_property
    def version(self) -> np.ndarray:
        """(R,) before each row: updates of the server; between peers, changes of the worker's own model."""
        if self.kind == "server":
            return np.cumsum(self.closes) - self.closes
        changes = (self.verb == STEP) | (self.verb == MERGE) | (self.verb == RESET)
        return _count_by_worker(self.worker, changes)

    @functools.cached_property
    def staleness(self) -> np.ndarray:
        """(R,) of each gradient: versions between its read and this row; -1 where the row has no gradient."""
        out = np.full(len(self), -1)
        rows = self.gradients
        out[rows] = self.version[rows] - self.version[self.source[rows]]
        return out

    @functools.cached_property
    def counted(self) -> np.ndarray:
        """(R,) whether the row has a gradient that was not dropped."""
        return (self.verb == STEP) | ((self.verb == APPLY) & self.accepted)

    @functools.cached_property
    def clock(self) -> np.ndarray:
        """(R,) samples processed before each row, by which learning rates are scheduled.

        With a server, all gradients of one update meet the same clock: that of the update's beginning.
        """
        before = np.cumsum(self.counted) - self.counted
        if self.kind == "server":
            done = np.concatenate([[0], np.where(self.closes, before + 1, 0)[:-1]]) if len(self) else before
            before = np.maximum.accumulate(done)
        return before * self.batch_size

    @functools.cached_property
    def updates(self) -> np.ndarray:
        """(R,) updates done after each row: of the server; between peers, local steps of all workers."""
        return np.cumsum(self.closes if self.kind == "server" else self.verb == STEP)

    @functools.cached_property
    def samples(self) -> np.ndarray:
        """(R,) samples processed after each row, dropped gradients left out."""
        return np.cumsum(self.counted) * self.batch_size

    @property
    def in_flight(self) -> np.ndarray:
        """The reads whose gradient is still under way at the end: each worker's last read, if nothing used it."""
        reads = np.flatnonzero(self.verb == READ)
        last = np.full(self.num_workers, -1)
        last[self.worker[reads]] = reads  # the last assignment wins
        last = last[last >= 0]
        used = self.source[(self.verb == STEP) | (self.verb == APPLY) | (self.verb == CANCEL)]
        return last[~np.isin(last, used)]

    @functools.cached_property
    def spans(self) -> Table:
        """What each worker did: worker, kind, start and end in seconds. A worker's spans tile the whole run."""
        order = np.lexsort((np.arange(len(self.span_time)), self.span_worker))
        worker, start = self.span_worker[order], np.minimum(self.span_time[order], self.end)
        kind = self.span_kind[order]
        end = np.full(len(order), float(self.end))
        same = worker[1:] == worker[:-1]
        end[:-1][same] = start[1:][same]
        real = end > start
        names = np.array(SPANS)[kind[real]] if len(kind) else np.array([], str)
        return Table({"worker": worker[real], "kind": names, "start": start[real], "end": end[real]})

    def summary(self) -> dict[str, Any]:
        """Throughput, staleness and how the workers' time was spent, from the timing alone.

        Seconds are simulated. ``throughput`` is in samples per second; the shares are of all workers' time.
        """
        rows = self.gradients
        used = rows[self.counted[rows]]
        staleness = self.staleness[used]
        samples = int(self.samples[-1]) if len(self) else 0
        out: dict[str, Any] = {
            "seconds": self.end,
            "updates": int(self.updates[-1]) if len(self) else 0,
            "gradients": len(rows),
            "dropped": len(rows) - len(used),
            "cancelled": int(np.sum(self.verb == CANCEL)),
            "samples": samples,
            "throughput": samples / self.end if self.end else 0.0,
            "staleness_mean": float(staleness.mean()) if len(used) else 0.0,
            "staleness_max": int(staleness.max()) if len(used) else 0,
        }
        spans, total = self.spans, self.num_workers * self.end
        for kind in SPANS:
            mine = spans["kind"] == kind
            seconds = float(np.sum(spans["end"][mine] - spans["start"][mine]))
            out[f"{kind}_share"] = seconds / total if total and len(self.span_time) else float("nan")
        model = self.workload.model_bytes
        sent = np.sum((self.verb == APPLY) | (self.verb == PUBLISH)) * self.costs.upload * model
        received = np.sum((self.verb == READ) & (self.version > 0)) * self.costs.download * model
        out["bytes_sent"] = int(sent + received) if self.kind == "server" else int(sent)
        return out

    # ---------------------------------------------------------------- parts, saving, loading

    def head(self, rows: int, end: float | None = None) -> Trace:
        """The first rows only; the run then ends at the last of them (or at ``end`` seconds), and so do its spans."""
        if end is None:
            end = float(self.time[rows - 1]) if rows else 0.0
        cut = int(self.mix_start[rows])
        part = {k: getattr(self, k)[:rows] for k in ARRAYS[:8]}
        spans = self.span_time <= end
        part |= {k: getattr(self, k)[spans] for k in ("span_time", "span_worker", "span_kind")}
        part |= {"mix_start": self.mix_start[: rows + 1], "member": self.member[:cut], "share": self.share[:cut]}
        return dataclasses.replace(self, end=end, **part)

    def save(self, path: str | Path) -> None:
        """Write the trace to one .npz file. The same trace makes the same bytes."""
        from asyncsim.files import write_atomically

        meta = {"format": FORMAT, "kind": self.kind, "num_workers": self.num_workers, "end": self.end}
        meta |= {"workload": table(self.workload), "costs": table(self.costs)}
        buffer = io.BytesIO()
        arrays = {k: getattr(self, k) for k in ARRAYS}
        np.savez_compressed(buffer, meta=np.array(json.dumps(meta, sort_keys=True)), **arrays)
        write_atomically(Path(path), buffer.getvalue())

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Read what ``save`` wrote."""
        path = Path(path)
        try:
            with np.load(path, allow_pickle=False) as stored:
                meta = json.loads(str(stored["meta"]))
                arrays = {k: stored[k] for k in ARRAYS}
        except FileNotFoundError:
            raise InputError("no such file", str(path)) from None
        except (OSError, ValueError, KeyError, EOFError) as error:
            raise InputError(f"is not a trace ({error})", str(path)) from None
        if meta["format"] != FORMAT:
            raise InputError(f"has trace format {meta['format']}; this version reads format {FORMAT}", str(path))
        workload, costs = build(Workload, meta["workload"]), build(Costs, meta["costs"])
        return cls(meta["kind"], meta["num_workers"], meta["end"], workload=workload, costs=costs, **arrays)


def _count_by_worker(worker: np.ndarray, what: np.ndarray) -> np.ndarray:
    """(R,) how often ``what`` held for the row's worker before the row."""
    order = np.argsort(worker, kind="stable")
    flags = what[order].astype(np.int64)
    before = np.cumsum(flags) - flags
    grouped = worker[order]
    first = np.flatnonzero(np.concatenate([[True], grouped[1:] != grouped[:-1]])) if len(grouped) else np.array([], int)
    lengths = np.diff(np.append(first, len(grouped)))
    out = np.empty(len(worker), np.int64)
    out[order] = before - np.repeat(before[first], lengths)
    return out


def _check(trace: Trace) -> None:
    """Refuse a trace that means nothing: the first bad row, and why. Vectorised, as traces are long."""
    t, rows = trace, np.arange(len(trace))
    if t.kind not in SOURCES:
        raise InputError(f"a trace is of kind 'server' or 'peers', not {t.kind!r}", "kind")

    def refuse(bad: np.ndarray, why: str) -> None:
        if bad.any():
            r = int(np.argmax(bad))
            verb = VERBS[t.verb[r]] if 0 <= t.verb[r] < len(VERBS) else t.verb[r]
            raise InputError(
                f"{why} (worker {t.worker[r]}, source {t.source[r]}, time {t.time[r]})", f"row {r}, {verb}"
            )

    verbs = SERVER_VERBS if t.kind == "server" else PEER_VERBS
    refuse(~np.isin(t.verb, verbs), f"not a verb of a trace of kind {t.kind}")
    is_mix = t.verb == MIX
    refuse(~is_mix & ((t.worker < 0) | (t.worker >= t.num_workers)), f"the workers are 0 to {t.num_workers - 1}")
    refuse(~np.isfinite(t.time) | (t.time < 0), "time is a finite number of seconds, 0 or later")
    refuse(np.concatenate([[False], np.diff(t.time) < 0]) if len(t) else np.zeros(0, bool), "time goes back")
    for verb, source in SOURCES[t.kind].items():
        mine = t.verb == verb
        refuse(mine & ((t.source < 0) | (t.source >= rows)), f"names no earlier row as its {VERBS[source]}")
        named = np.where(mine, t.source, 0)
        refuse(mine & (t.verb[named] != source), f"names row(s) that are not a {VERBS[source]}")
        if source == READ:
            refuse(mine & (t.worker[named] != t.worker), "names a read of another worker")
    refuse(t.closes & ~((t.verb == APPLY) & t.accepted), "only an accepted apply closes an update")
    refuse(~(np.isfinite(t.keep) & np.isfinite(t.take)), "weights are finite numbers")
    sizes = np.diff(t.mix_start)
    refuse(is_mix & (sizes < 1), "mixes no message")
    owner = np.repeat(rows, sizes)
    bad = np.zeros(len(t), bool)
    bad[owner[~np.isfinite(t.share)]] = True
    refuse(bad, "weights are finite numbers")
    bad = np.zeros(len(t), bool)
    bad[owner[(t.member < 0) | (t.member >= owner)]] = True
    refuse(bad, "mixes rows that are not earlier rows")
    bad[owner[t.verb[t.member] != PUBLISH]] = True
    refuse(bad, "mixes rows that are not messages")
    if t.kind == "peers":
        refuse(_overlapping(t), "its read was already used, or is older than a later read of the worker")
    if len(t) and t.end < t.time[-1]:
        raise InputError(f"the run ends at {t.end} s, before its last row at {t.time[-1]} s", "end")


def _overlapping(t: Trace) -> np.ndarray:
    """(R,) whether a peer's gradient uses a read that is not the worker's latest: a peer has one point at a time."""
    reads = np.flatnonzero(t.verb == READ)
    count = _count_by_worker(t.worker, t.verb == READ)
    uses = np.isin(t.verb, (STEP, CANCEL))
    number = np.full(len(t), -1)
    number[reads] = count[reads]
    return uses & (number[np.where(uses, t.source, 0)] != count - 1)
