"""What a trace says about a run, as tables: what each worker did, what travelled, how busy all were over time."""

from __future__ import annotations

from typing import Any

import numpy as np

from asyncsim.errors import InputError
from asyncsim.tables import Table
from asyncsim.vocabulary import DIRECTIONS, MERGE, SPANS, STEP, UP, count_by_worker

MAX_BINS = 1_000_000


def spans(trace: Any) -> Table:
    """What each worker did: worker, kind, start and end in seconds. A worker's spans tile the whole run."""
    order = np.lexsort((np.arange(len(trace.span_time)), trace.span_worker))
    worker, start = trace.span_worker[order], np.minimum(trace.span_time[order], trace.end)
    kind = trace.span_kind[order]
    end = np.full(len(order), float(trace.end))
    same = worker[1:] == worker[:-1]
    end[:-1][same] = start[1:][same]
    real = end > start
    names = np.array(SPANS)[kind[real]] if len(kind) else np.array([], str)
    return Table({"worker": worker[real], "kind": names, "start": start[real], "end": end[real]})


def transfers(trace: Any) -> Table:
    """What travelled: when it was sent, and when it had arrived or was given up (inf: neither, at the end of the run);
    up, down or between peers; whose it is, from which host to which; its bytes, and how many of them were over the
    links by then: all, unless it was given up on its way, or was still on it.
    """
    kinds = np.array(DIRECTIONS)[trace.transfer_kind] if len(trace.transfer_kind) else np.array([], str)
    columns = {"start": trace.transfer_start, "end": trace.transfer_end, "kind": kinds}
    columns |= {"worker": trace.transfer_worker, "source": trace.transfer_source, "target": trace.transfer_target}
    return Table(columns | {"bytes": trace.transfer_size, "moved": trace.transfer_moved})


def message_age(trace: Any) -> tuple[float, int] | None:
    """Mean and maximum over what peers take in of others: by how many iterations each message is behind its receiver
    (the receiver's steps so far, less the sender's when it was published; 0 where the sender is ahead). None: nobody
    takes in anything."""
    steps, n, most = count_by_worker(trace.worker, trace.verb == STEP), trace.num_workers, len(trace) + 1
    merges = np.flatnonzero(trace.verb == MERGE)
    mix, here, receiver = trace.source[merges].astype(np.int64), steps[merges], trace.worker[merges]
    # the messages of all mixes, those of one together, the oldest first
    of, sent = np.repeat(np.arange(len(trace)), np.diff(trace.mix_start)), steps[trace.member]
    order = np.lexsort((sent, of))
    of, sent, sender = of[order], sent[order], trace.worker[trace.member][order]

    def found(key: np.ndarray, first: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For each merge: how many messages have a key in this range, and by how many iterations they are behind."""
        order = np.argsort(key, kind="stable")
        low, high = np.searchsorted(key[order], first), np.searchsorted(key[order], end)
        total = np.concatenate([[0], np.cumsum(sent[order])])
        return high - low, (high - low) * here - (total[high] - total[low])

    # a thousand workers that take in a thousand messages each are not looked at one by one
    _, behind = found(of * most + sent, mix * most, mix * most + here)
    own, own_behind = found(of * n + sender, mix * n + receiver, mix * n + receiver + 1)
    first, others = trace.mix_start[mix], np.diff(trace.mix_start)[mix] - own
    if not others.any():
        return None
    first, receiver, here = (column[others > 0] for column in (first, receiver, here))
    oldest = first + (sender[first] == receiver)  # of the others; a worker has one message in a mix
    return float((behind - own_behind).sum() / others.sum()), max(int((here - sent[oldest]).max()), 0)


def by_worker(trace: Any) -> Table:
    """A row a worker: gradients it began to its end (accepted, dropped), cancelled, mean staleness of the accepted,
    bytes sent and (with a server) received on its behalf, and its shares of time."""
    n, rows = trace.num_workers, trace.gradients
    counted = trace.counted[rows]

    def count(of: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        return np.bincount(trace.worker[of], weights=weights, minlength=n)

    used = rows[counted]
    accepted = count(used)
    stale = count(used, trace.staleness[used].astype(float))
    columns: dict[str, np.ndarray] = {"worker": np.arange(n), "accepted": accepted, "dropped": count(rows[~counted])}
    columns["cancelled"] = count(np.flatnonzero(trace.cancels))
    columns["staleness"] = np.divide(stale, accepted, out=np.zeros(n), where=accepted > 0)
    if len(trace.transfer_start):
        sent = trace.transfer_kind != DIRECTIONS.index("down")
        for name, mine in (("bytes_sent", sent), ("bytes_received", ~sent))[: 2 if trace.kind == "server" else 1]:
            moved = trace.transfer_moved[mine]
            columns[name] = np.bincount(trace.transfer_worker[mine], weights=moved, minlength=n)
    did = trace.spans
    if len(did) and trace.end:
        for kind in SPANS:
            mine = did["kind"] == kind
            seconds = did["end"][mine] - did["start"][mine]
            columns[f"{kind}_share"] = np.bincount(did["worker"][mine], weights=seconds, minlength=n) / trace.end
    return Table(columns)


def staleness_distribution(trace: Any) -> Table:
    """A row for each staleness that occurs, with how many accepted gradients have it, and their share."""
    used = trace.gradients[trace.counted[trace.gradients]]
    values, gradients = np.unique(trace.staleness[used], return_counts=True)
    return Table({"staleness": values, "gradients": gradients, "share": gradients / max(len(used), 1)})


def over_time(trace: Any, bins: int = 100) -> Table:
    """The run in ``bins`` intervals of equal length: a row each, from ``start`` to ``end`` seconds.

    ``throughput``: samples of accepted gradients per second. ``staleness``: mean of what was accepted (nan: nothing).
    Mean numbers of workers that do something: ``compute``, ``send``, ``receive``, ``wait``, ``apply``. Mean numbers of
    messages on their way: ``up``, ``down``, ``between``; and ``*_bytes``: bytes per second, each message spread evenly
    over its way. The length of the server's line is ``apply``, that at its network interface is ``up``.
    """
    if isinstance(bins, bool) or not isinstance(bins, int | np.integer) or not 1 <= bins <= MAX_BINS:
        raise InputError(f"expected a whole number from 1 to {MAX_BINS}, got {bins!r}", "bins")
    edges = np.linspace(0.0, trace.end, int(bins) + 1)
    width = trace.end / bins if trace.end else 1.0
    used = trace.gradients[trace.counted[trace.gradients]]
    # what happens at the very end belongs to the last interval
    interval = np.minimum((trace.time[used] / width).astype(np.int64), bins - 1)
    number = np.bincount(interval, minlength=bins)
    stale = np.bincount(interval, weights=trace.staleness[used].astype(float), minlength=bins)
    columns: dict[str, np.ndarray] = {"start": edges[:-1], "end": edges[1:]}
    columns["throughput"] = number * trace.batch_size / width
    columns["staleness"] = np.divide(stale, number, out=np.full(bins, np.nan), where=number > 0)
    did = trace.spans
    for kind in SPANS:
        mine = did["kind"] == kind
        columns[kind] = _covered(edges, did["start"][mine], did["end"][mine], np.ones(int(mine.sum()))) / width
    start, end = trace.transfer_start, np.minimum(trace.transfer_end, trace.end)
    lasted = end - start
    for number_of, kind in enumerate(DIRECTIONS):
        mine = trace.transfer_kind == number_of
        if not mine.any() and number_of > UP:
            continue
        columns[kind] = _covered(edges, start[mine], end[mine], np.ones(int(mine.sum()))) / width
        slow = mine & (lasted > 0)
        rate = trace.transfer_moved[slow] / lasted[slow]
        moved = _covered(edges, start[slow], end[slow], rate)
        fast = mine & (lasted <= 0)
        where = np.minimum((start[fast] / width).astype(np.int64), bins - 1)
        moved += np.bincount(where, weights=trace.transfer_moved[fast], minlength=bins)
        columns[f"{kind}_bytes"] = moved / width
    return Table(columns)


def _covered(edges: np.ndarray, start: np.ndarray, end: np.ndarray, height: np.ndarray) -> np.ndarray:
    """The integral over each interval of a sum of steps, each so high from its start to its end."""
    bins = len(edges) - 1

    def summed(at: np.ndarray, what: np.ndarray) -> np.ndarray:
        return np.bincount(at, what, minlength=bins + 1).astype(float)  # of nothing, NumPy makes whole numbers

    first, last = (np.clip(np.searchsorted(edges, at, side="right") - 1, 0, bins - 1) for at in (start, end))
    inside = first == last
    out = summed(first[inside], (height * (end - start))[inside])
    first, last, start, end, height = (x[~inside] for x in (first, last, start, end, height))
    out += summed(first, height * (edges[first + 1] - start)) + summed(last, height * (end - edges[last]))
    # those in between are covered whole; what covers a whole interval is never high, so the sums lose nothing
    begun, ended = summed(first + 1, height), summed(last, height)
    return out[:bins] + np.cumsum(begun - ended)[:bins] * np.diff(edges)
