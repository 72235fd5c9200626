"""The words of a trace, and which sentences mean something.

Each row is one of eight verbs. What a row makes is named by the number of that row, and later rows name what they use
in their ``source`` (a mix: in the list of its members). The verbs:

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

import math
from typing import Any

import numpy as np

from asyncsim.errors import InputError

READ, STEP, APPLY, PUBLISH, MIX, MERGE, CANCEL, RESET = range(8)
VERBS = ("read", "step", "apply", "publish", "mix", "merge", "cancel", "reset")
COMPUTE, SEND, RECEIVE, WAIT, SERVED = range(5)
SPANS = ("compute", "send", "receive", "wait", "apply")  # apply: its gradient is at the server, in line or in work
UP, DOWN, BETWEEN = range(3)
DIRECTIONS = ("up", "down", "between")  # of a transfer: to the server, from it, between peers

# the columns of a trace, of one entry a row, a span, a transfer
SPAN_ARRAYS = ("span_time", "span_worker", "span_kind")
TRANSFER_ARRAYS = (
    *("transfer_start", "transfer_end", "transfer_kind", "transfer_worker"),
    *("transfer_source", "transfer_target", "transfer_size", "transfer_moved"),
)
TRANSFER_TYPES = (float, float, np.int8, np.int32, np.int32, np.int32, float, float)
ROW_ARRAYS = ("time", "verb", "worker", "source", "keep", "take", "accepted", "closes")
KINDS = {  # of NumPy's types
    **dict.fromkeys(("time", "keep", "take", "share", "span_time"), "f"),
    **dict.fromkeys(("transfer_start", "transfer_end", "transfer_size", "transfer_moved"), "f"),
    **dict.fromkeys(("verb", "worker", "source", "mix_start", "member", "span_worker", "span_kind"), "iu"),
    **dict.fromkeys(("transfer_kind", "transfer_worker", "transfer_source", "transfer_target"), "iu"),
    **dict.fromkeys(("accepted", "closes"), "b"),
}
ROUNDING = 1e-12  # of sums of seconds: three steps of 0.2 s end at 0.6000000000000001
SERVER_VERBS = (READ, STEP, APPLY, CANCEL, RESET)
PEER_VERBS = (READ, STEP, PUBLISH, MIX, MERGE, CANCEL, RESET)
SOURCES = {  # what a row may name as its source
    "server": {STEP: READ, APPLY: READ, CANCEL: READ, RESET: READ},
    "peers": {STEP: READ, CANCEL: READ, MERGE: MIX, RESET: MIX},
}


def count_by_worker(worker: np.ndarray, what: np.ndarray) -> np.ndarray:
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


def check(trace: Any) -> None:
    """Refuse a trace that means nothing: the first bad row, and why. Vectorised, as traces are long."""
    t, rows = trace, np.arange(len(trace))
    if not isinstance(t.kind, str) or t.kind not in SOURCES:
        raise InputError(f"a trace is of kind 'server' or 'peers', not {t.kind!r}", "kind")

    def refuse(bad: np.ndarray, why: str) -> None:
        if bad.any():
            r = int(np.argmax(bad))
            verb = VERBS[t.verb[r]] if 0 <= t.verb[r] < len(VERBS) else t.verb[r]
            raise InputError(
                f"{why} (worker {t.worker[r]}, source {t.source[r]}, time {t.time[r]})", f"row {r}, {verb}"
            )

    if not isinstance(t.num_workers, int | np.integer) or t.num_workers < 1:
        raise InputError(f"expected a whole number >= 1, got {t.num_workers!r}", "num_workers")
    for name, kinds in KINDS.items():
        if getattr(t, name).dtype.kind not in kinds:
            raise InputError(f"holds {getattr(t, name).dtype}", name)
    for name in (*ROW_ARRAYS, "member", "share", *SPAN_ARRAYS, *TRANSFER_ARRAYS):
        groups = {"time": ROW_ARRAYS, "share": ("member", "share"), "span_time": SPAN_ARRAYS}
        like = next((first for first, names in groups.items() if name in names), "transfer_start")
        if getattr(t, name).shape != getattr(t, like).shape or getattr(t, name).ndim != 1:
            raise InputError(f"has shape {getattr(t, name).shape}, {like} has {getattr(t, like).shape}", name)
    if len(t.mix_start) != len(t) + 1 or np.any(np.diff(t.mix_start) < 0) or t.mix_start[-1] != len(t.member):
        raise InputError("does not point into the list of members, one range a row", "mix_start")
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
    refuse(bad, "mixes what is not an earlier row: messages are named by the row that publish returned")
    bad[owner[t.verb[t.member] != PUBLISH]] = True
    refuse(bad, "mixes rows that are not messages: name what publish returned")
    cancelled = np.full(len(t), len(t))  # by read: the row that cancels its gradient
    cancels = np.flatnonzero(t.verb == CANCEL)
    np.minimum.at(cancelled, t.source[cancels], cancels)
    uses = np.isin(t.verb, (STEP, APPLY, CANCEL))
    refuse(uses & (cancelled[np.where(uses, t.source, 0)] < rows), "its gradient was cancelled before")
    if t.kind == "peers":
        refuse(_overlapping(t), "its read is older than a later read of the worker: a peer has one point at a time")
    good = (t.span_worker >= 0) & (t.span_worker < t.num_workers) & (t.span_kind >= 0) & (t.span_kind < len(SPANS))
    good &= np.isfinite(t.span_time) & (t.span_time >= 0)
    if not good.all():
        k = int(np.argmin(good))
        what = f"worker {t.span_worker[k]}, kind {t.span_kind[k]}, time {t.span_time[k]}"
        raise InputError(f"no such worker, kind of span or time: {what}", f"span {k}")
    good = (t.transfer_worker >= 0) & (t.transfer_worker < t.num_workers)
    good &= (t.transfer_kind >= 0) & (t.transfer_kind < len(DIRECTIONS))
    good &= np.isfinite(t.transfer_start) & (t.transfer_start >= 0) & (t.transfer_end >= t.transfer_start)
    good &= (t.transfer_moved >= 0) & (t.transfer_moved <= t.transfer_size) & np.isfinite(t.transfer_size)
    if not good.all():
        k = int(np.argmin(good))
        what = ", ".join(f"{name.partition('_')[2]} {getattr(t, name)[k]}" for name in TRANSFER_ARRAYS)
        raise InputError(f"means nothing: {what}", f"transfer {k}")
    if not math.isfinite(t.end) or (len(t) and t.end < t.time[-1] * (1 - ROUNDING)):
        last = t.time[-1] if len(t) else 0.0
        raise InputError(f"the run ends at {t.end} s, its last row is at {last} s", "end")


def _overlapping(t: Any) -> np.ndarray:
    """(R,) whether a peer's gradient uses a read that is not the worker's latest: a peer has one point at a time."""
    reads = np.flatnonzero(t.verb == READ)
    count = count_by_worker(t.worker, t.verb == READ)
    uses = np.isin(t.verb, (STEP, CANCEL))
    number = np.full(len(t), -1)
    number[reads] = count[reads]
    return uses & (number[np.where(uses, t.source, 0)] != count - 1)
