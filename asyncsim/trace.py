"""The record in the middle: a table of what happened, in order.

A trace says *when* each gradient was computed, on which parameters, and where it went; it knows nothing of values. Each
row is one of eight verbs: see ``asyncsim.vocabulary``.
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

from asyncsim import views
from asyncsim.errors import InputError
from asyncsim.records import build, table
from asyncsim.tables import Table
from asyncsim.vocabulary import (
    APPLY,
    CANCEL,
    MERGE,
    PUBLISH,
    READ,
    RESET,
    ROW_ARRAYS,
    SPAN_ARRAYS,
    SPANS,
    STEP,
    TRANSFER_ARRAYS,
    TRANSFER_TYPES,
    check,
    count_by_worker,
)
from asyncsim.workload import Costs, Workload

ARRAYS = (*ROW_ARRAYS, "mix_start", "member", "share", *SPAN_ARRAYS, *TRANSFER_ARRAYS)
FORMAT = 2
PLAIN: Any = None  # a column that is left out: filled in when the trace is made
MAX_WORKERS = 1_000_000


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """One run of a protocol on a cluster, without its numbers. Made by ``asyncsim.record``, or by hand.

    Columns, one entry a row (R rows): ``time`` in seconds, ``verb``, ``worker`` (-1 for a mix), ``source`` (a row, or
    -1), ``keep`` and ``take`` (see the verbs), ``accepted``, ``closes``. The members of the mix at row r are
    ``member[mix_start[r]:mix_start[r + 1]]``, rows of messages, with weights ``share``. Spans: from ``span_time[k]`` on
    worker ``span_worker[k]`` does ``span_kind[k]``. Transfers: what travelled, see ``transfers``. The run ends at
    ``end`` seconds. Of the columns ``time``, ``verb``, ``worker`` and ``source`` are enough: then each gradient is
    accepted, at weight 1, and an update of its own.
    """

    kind: str  # 'server' or 'peers'
    num_workers: int
    end: float
    time: np.ndarray
    verb: np.ndarray
    worker: np.ndarray
    source: np.ndarray
    keep: np.ndarray = PLAIN
    take: np.ndarray = PLAIN
    accepted: np.ndarray = PLAIN
    closes: np.ndarray = PLAIN
    mix_start: np.ndarray = PLAIN
    member: np.ndarray = PLAIN
    share: np.ndarray = PLAIN
    span_time: np.ndarray = PLAIN
    span_worker: np.ndarray = PLAIN
    span_kind: np.ndarray = PLAIN
    transfer_start: np.ndarray = PLAIN
    transfer_end: np.ndarray = PLAIN
    transfer_kind: np.ndarray = PLAIN
    transfer_worker: np.ndarray = PLAIN
    transfer_source: np.ndarray = PLAIN
    transfer_target: np.ndarray = PLAIN
    transfer_size: np.ndarray = PLAIN
    transfer_moved: np.ndarray = PLAIN
    workload: Workload = PLAIN
    costs: Costs = PLAIN

    def __post_init__(self) -> None:
        rows = len(self.verb)
        plain = {
            **{"keep": np.ones(rows), "take": np.ones(rows), "accepted": np.ones(rows, bool)},
            **{"closes": np.asarray(self.verb) == APPLY, "mix_start": np.zeros(rows + 1, np.int64)},
            **{"member": np.zeros(0, np.int32), "share": np.zeros(0), "span_time": np.zeros(0)},
            **{"span_worker": np.zeros(0, np.int32), "span_kind": np.zeros(0, np.int8)},
            **{name: np.zeros(0, kind) for name, kind in zip(TRANSFER_ARRAYS, TRANSFER_TYPES, strict=True)},
            **{"workload": Workload(), "costs": Costs()},
        }
        for name, value in plain.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        for name in ARRAYS:
            object.__setattr__(self, name, np.asarray(getattr(self, name)))
        check(self)

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
        given = np.asarray(workers).reshape(-1)
        if len(given) and given.dtype.kind not in "iu":
            raise InputError(f"expected whole numbers, got {given[0]!r}", "workers")
        order = given.astype(np.int32)
        n = int(order.max(initial=0)) + 1 if num_workers is None else num_workers
        good = (order >= 0) & (order < n)
        if n > MAX_WORKERS:
            raise InputError(f"a trace has at most {MAX_WORKERS} workers, not {n}", "workers")
        if not good.all():
            raise InputError(f"the workers are 0 to {n - 1}, not {order[~good][0]}", f"workers[{int(np.argmin(good))}]")
        # everybody reads, then there are an apply and a read for each arrival
        rows: list[tuple[float, int, int, int]] = [(0.0, READ, i, -1) for i in range(n)]
        latest = list(range(n))
        for now, i in enumerate(order.tolist(), start=1):
            rows += [(now, APPLY, i, latest[i]), (now, READ, i, -1)]
            latest[i] = len(rows) - 1
        time, verb, worker, source = np.array(rows, float).reshape(-1, 4).T.copy()
        whole = worker.astype(np.int32), source.astype(np.int32)
        workload = Workload(batch_size=batch_size)
        return cls("server", n, float(len(order)), time, verb.astype(np.int8), *whole, workload=workload)

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
        """(R,) the worker's own count of its gradients; with the seed it fixes the mini-batch.

        A gradient counts when it is started (read), finished or not; each further one on the same read counts as well.
        For a row without a gradient: how many came before.
        """
        uses = (self.verb == STEP) | (self.verb == APPLY) | (self.verb == CANCEL)
        out = count_by_worker(self.worker, uses)
        rows = np.flatnonzero(uses)
        source = self.source[rows]
        # started by each read: one gradient, or as many as use it
        started = np.where(self.verb == READ, np.maximum(np.bincount(source, minlength=len(self)), 1), 0)
        first = count_by_worker(self.worker, started)[source]
        out[rows] = first + count_by_worker(source, np.ones(len(source), bool))
        return out

    @functools.cached_property
    def draw(self) -> np.ndarray:
        """(R,) with seed, worker and verb it fixes the row's random key: ``step``, or a count of the worker's own."""
        out = self.step.copy()
        for verb in (PUBLISH, MERGE):
            mine = self.verb == verb
            out[mine] = count_by_worker(self.worker, mine)[mine]
        return out

    @functools.cached_property
    def version(self) -> np.ndarray:
        """(R,) before each row: updates of the server; between peers, changes of the worker's own model."""
        if self.kind == "server":
            return np.cumsum(self.closes) - self.closes
        changes = (self.verb == STEP) | (self.verb == MERGE) | (self.verb == RESET)
        return count_by_worker(self.worker, changes)

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

        With a server, all gradients of one update meet the same clock: that of the update's beginning. A peer goes by
        its own steps, times the number of peers: peers in step with each other meet the same clock.
        """
        if self.kind == "peers":
            return count_by_worker(self.worker, self.verb == STEP) * self.num_workers * self.batch_size
        counted = np.cumsum(self.counted)
        begun = np.concatenate([[0], np.where(self.closes, counted, 0)])[: len(self)]
        return np.maximum.accumulate(begun) * self.batch_size

    @functools.cached_property
    def updates(self) -> np.ndarray:
        """(R,) updates done after each row: of the server; between peers, local steps of all workers."""
        return np.cumsum(self.closes if self.kind == "server" else self.verb == STEP)

    @functools.cached_property
    def samples(self) -> np.ndarray:
        """(R,) samples processed after each row, dropped gradients left out."""
        return np.cumsum(self.counted) * self.batch_size

    @property
    def latest_reads(self) -> np.ndarray:
        """Of each worker that has read, the row of its last read."""
        reads = np.flatnonzero(self.verb == READ)
        last = np.full(self.num_workers, -1)
        last[self.worker[reads]] = reads  # the last assignment wins
        return last[last >= 0]

    @property
    def in_flight(self) -> np.ndarray:
        """The reads whose gradient is still under way at the end: each worker's last read, if nothing used it."""
        last = self.latest_reads
        used = self.source[(self.verb == STEP) | (self.verb == APPLY) | (self.verb == CANCEL)]
        return last[~np.isin(last, used)]

    @functools.cached_property
    def cancels(self) -> np.ndarray:
        """(R,) whether the row cancels a gradient."""
        return self.verb == CANCEL

    # ---------------------------------------------------------------- tables

    @functools.cached_property
    def spans(self) -> Table:
        """What each worker did: worker, kind, start and end in seconds. A worker's spans tile the whole run."""
        return views.spans(self)

    @property
    def transfers(self) -> Table:
        """What travelled, a row a message: see ``asyncsim.views.transfers``."""
        return views.transfers(self)

    def by_worker(self) -> Table:
        """A row a worker: its gradients, staleness, bytes and shares of time. See ``asyncsim.views.by_worker``."""
        return views.by_worker(self)

    def staleness_distribution(self) -> Table:
        """How many accepted gradients there are at each staleness, and their share."""
        return views.staleness_distribution(self)

    def over_time(self, bins: int = 100) -> Table:
        """Throughput, bytes and queue lengths in intervals of equal length. See ``asyncsim.views.over_time``."""
        return views.over_time(self, bins)

    def tables(self) -> dict[str, Table]:
        """All of these, by name."""
        counts = {"by_worker": self.by_worker(), "over_time": self.over_time()}
        return counts | {"staleness": self.staleness_distribution(), "spans": self.spans, "transfers": self.transfers}

    def summary(self) -> dict[str, Any]:
        """Throughput, staleness and how the workers' time was spent, from the timing alone.

        Seconds are simulated. ``throughput`` is in samples per second; the shares, known where spans were recorded, are
        of all workers' time. Between peers there is the ``message_age`` as well.
        """
        rows = self.gradients
        used = rows[self.counted[rows]]
        # with a server: of what arrived there, not of local steps
        staleness = self.staleness[used[self.verb[used] == APPLY] if self.kind == "server" else used]
        samples = int(self.samples[-1]) if len(self) else 0
        out: dict[str, Any] = {
            "seconds": self.end,
            "updates": int(self.updates[-1]) if len(self) else 0,
            "gradients": len(rows),
            "dropped": len(rows) - len(used),
            "cancelled": int(np.sum(self.cancels)),
            "in_flight": len(self.in_flight),
            "samples": samples,
            "throughput": samples / self.end if self.end else 0.0,
            "staleness_mean": float(staleness.mean()) if len(staleness) else 0.0,
            "staleness_max": int(staleness.max()) if len(staleness) else 0,
        }
        if self.kind == "peers" and (age := views.message_age(self)) is not None:
            out["message_age_mean"], out["message_age_max"] = age
        if len(self.span_time) and self.end:
            spans, total = self.spans, self.num_workers * self.end
            for kind in SPANS:
                mine = spans["kind"] == kind
                out[f"{kind}_share"] = float(np.sum(spans["end"][mine] - spans["start"][mine])) / total
        if len(self.transfer_start):
            out["bytes_sent"] = int(self.transfer_moved.sum())
            if self.kind == "peers":
                out["undelivered"] = int(np.sum(~np.isfinite(self.transfer_end)))
        elif self.kind == "server":  # by hand: a reply is each read but a worker's first, of what all start with
            reads = self.worker[self.verb == READ]
            sent = np.sum(self.verb == APPLY) * self.costs.upload
            received = (len(reads) - len(np.unique(reads))) * self.costs.download
            out["bytes_sent"] = int((sent + received) * self.workload.model_bytes)
        return out

    # ---------------------------------------------------------------- parts, saving, loading

    def head(self, rows: int, end: float | None = None) -> Trace:
        """The first rows only; the run then ends at the last of them (or at ``end`` seconds), and so do its spans."""
        if not 0 <= rows <= len(self):
            raise InputError(f"the trace has {len(self)} rows, not {rows}", "rows")
        if end is None:
            end = float(self.time[rows - 1]) if rows else 0.0
        cut = int(self.mix_start[rows])
        part = {k: getattr(self, k)[:rows] for k in ROW_ARRAYS}
        spans = self.span_time <= end
        part |= {k: getattr(self, k)[spans] for k in SPAN_ARRAYS}
        part |= _transfers_until(self, end)
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
            with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
                meta = json.loads(str(stored["meta"]))
                if meta["format"] != FORMAT:
                    raise InputError(f"has trace format {meta['format']}; this version reads format {FORMAT}")
                arrays = {k: stored[k] for k in ARRAYS}
            workload, costs = build(Workload, meta["workload"]), build(Costs, meta["costs"])
            return cls(meta["kind"], meta["num_workers"], meta["end"], workload=workload, costs=costs, **arrays)
        except FileNotFoundError:
            raise InputError("no such file", str(path)) from None
        except InputError as error:
            raise InputError(str(error), str(path)) from None
        except Exception as error:  # a damaged archive fails in more ways than one can list
            raise InputError(f"is not a trace ({type(error).__name__}: {error})", str(path)) from None


def _transfers_until(trace: Trace, end: float) -> dict[str, np.ndarray]:
    """The columns of the transfers that begin by then; what is on its way then has moved in proportion to its time."""
    part = {k: getattr(trace, k)[trace.transfer_start <= end] for k in TRANSFER_ARRAYS}
    start, until = part["transfer_start"], np.minimum(part["transfer_end"], trace.end)
    flying = until > end
    share = (end - start[flying]) / (until[flying] - start[flying])
    part["transfer_moved"] = part["transfer_moved"].copy()
    part["transfer_moved"][flying] *= share
    part["transfer_end"] = np.where(flying, np.inf, part["transfer_end"])
    return part
