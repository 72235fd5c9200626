"""From a trace to rows that a compiled loop can run: what is done in each, and in which slot each thing is stored.

NumPy only. Storage is assigned as a compiler assigns registers: a slot for each version, message or mix that a later
row still uses, and no more.
"""

from __future__ import annotations

import dataclasses
import heapq
from typing import Any

import numpy as np

from asyncsim.trace import APPLY, CANCEL, MERGE, MIX, PUBLISH, READ, RESET, STEP, Trace


def assign_slots(made: np.ndarray, used: np.ndarray) -> tuple[np.ndarray, int]:
    """A slot for each thing, and how many slots there are.

    ``made[k]`` and ``used[k]`` are the first and last row of thing k, in order of ``made``. A thing may take the slot
    of one last used in the row that makes it: rows read before they write.
    """
    slot, free, held, count = np.zeros(len(made), np.int32), list[int](), list[tuple[int, int]](), 0
    for k, (first, last) in enumerate(zip(made.tolist(), used.tolist(), strict=True)):
        while held and held[0][0] <= first:
            heapq.heappush(free, heapq.heappop(held)[1])
        if free:
            slot[k] = heapq.heappop(free)
        else:
            slot[k], count = count, count + 1
        heapq.heappush(held, (last, int(slot[k])))
    return slot, count


def roomy(slots: int) -> int:
    """A pool size that another trace of the same kind is likely to share, so that it need not compile anew: a multiple
    of 4, for larger pools of an eighth of their size."""
    unit = 4 if slots < 32 else 1 << (slots.bit_length() - 4)
    return -(-slots // unit) * unit


@dataclasses.dataclass(frozen=True)
class ServerPlan:
    """Rows of a server method: the gradients and resets of the trace, in its order.

    ``rows``: columns by name. ``trace_row``: of each, its row in the trace. ``first_slot``: where version 0 lies;
    ``spare``: a slot that nobody reads. The flags say which kinds of row occur at all.
    """

    rows: dict[str, np.ndarray]
    trace_row: np.ndarray
    slots: int
    first_slot: int
    grouped: bool  # updates of several gradients, weights other than 1, or dropped gradients
    local_steps: bool
    resets: bool


def plan_server(trace: Trace, factor: np.ndarray) -> ServerPlan:
    """One row per gradient or reset: the version it looks at and the version it makes, each in a slot.

    ``factor``: (R,) on the learning rate.
    """
    done = np.flatnonzero(np.isin(trace.verb, (STEP, APPLY, RESET)))
    verb, accepted, closes = trace.verb[done], trace.accepted[done], trace.closes[done]
    arrives = (verb == APPLY) & accepted
    seen = trace.version[trace.source[done]]
    versions = int(closes.sum()) + 1
    last_use = np.full(versions, -2)
    np.maximum.at(last_use, seen, np.arange(len(done)))
    made_in = np.concatenate([[-1], np.flatnonzero(closes)])  # the row that makes each version
    live = np.flatnonzero(last_use > -2)
    slot, count = assign_slots(made_in[live], last_use[live])
    spare = count
    where = np.full(versions, spare, np.int32)
    where[live] = slot
    makes = np.full(len(done), spare, np.int32)
    makes[closes] = where[1:]
    # an update begins at the first accepted gradient after the last one closed
    update = np.cumsum(closes) - closes
    arriving = np.flatnonzero(arrives)
    begins = np.zeros(len(done), bool)
    begins[arriving[np.concatenate([[True], np.diff(update[arriving]) > 0])[: len(arriving)]]] = True
    size = np.bincount(update[arriving], minlength=versions)
    rows = {
        "worker": trace.worker[done].astype(np.int32),
        "step": trace.step[done].astype(np.int32),
        "staleness": np.maximum(trace.staleness[done], 0).astype(np.int32),
        "count": size[update].astype(np.int32),
        "weight": trace.take[done],
        "factor": factor[done],
        "seen": where[seen],
        "makes": makes,
        "sends": verb == APPLY,
        "arrives": arrives,
        "begins": begins,
        "closes": closes,
        "gradient": verb != RESET,
        "on": np.ones(len(done), bool),
    }
    grouped = bool(np.any(arrives & ~(closes & (trace.take[done] == 1))) or np.any((verb == APPLY) & ~accepted))
    local, resets = bool(np.any(verb == STEP)), bool(np.any(verb == RESET))
    return ServerPlan(rows, done, roomy(count + 1), int(where[0]), grouped, local, resets)


def kept_apart(trace: Trace) -> np.ndarray:
    """(R,) of a peer's gradients: whether the worker's state changed between its read and its step.

    Only then must the point be stored; else it is that of the state as it is.
    """
    changes = np.isin(trace.verb, (STEP, MERGE, RESET, PUBLISH))
    latest = np.full(trace.num_workers, -1)
    out = np.zeros(len(trace), bool)
    verb, worker, source = trace.verb.tolist(), trace.worker.tolist(), trace.source.tolist()
    for r, change in enumerate(changes.tolist()):
        if verb[r] == STEP:
            out[r] = latest[worker[r]] > source[r]
        if change:
            latest[worker[r]] = r
    return out


@dataclasses.dataclass
class PackedRow:
    """Some verbs of one worker, in this order: [mix] [merge or reset] [read] [step] [publish]; holds trace rows."""

    worker: int
    stage: int = -1  # the last verb in it
    parts: tuple[int, ...] = ()  # members of the mix summed here
    shares: tuple[float, ...] = ()
    adds: bool = False  # a wide mix: these members are added to what earlier rows summed
    mix: int = -1  # the mix summed here, or taken in
    merge: int = -1
    read: int = -1
    step: int = -1
    publish: int = -1
    needs: tuple[PackedRow, ...] = ()  # rows that must come before
    at: int = -1  # its place in the sequence


STAGES = {MERGE: 1, RESET: 1, READ: 2, STEP: 3, PUBLISH: 4}


def pack(trace: Trace, width: int, cuts: list[int], apart: np.ndarray) -> tuple[list[PackedRow], list[int]]:
    """Pack the verbs of peers into rows; also how many rows are done at each cut (a row of the trace, in order).

    A merge sinks to its worker's next row and a mix to the first merge that takes it; what nobody takes falls away, as
    do reads whose point is not kept apart. At a cut every row before it is done.
    """
    out: list[PackedRow] = []
    opened: dict[int, PackedRow] = {}
    maker: dict[int, PackedRow] = {}  # of each message
    summed: dict[int, PackedRow] = {}  # of each mix
    reads = set(trace.source[apart].tolist())

    def emit(row: PackedRow) -> None:
        if row.at >= 0:
            return
        for other in row.needs:
            emit(other)
        row.at = len(out)
        out.append(row)
        if opened.get(row.worker) is row:
            del opened[row.worker]

    def current(worker: int, stage: int) -> PackedRow:
        row = opened.get(worker)
        if row is not None and row.stage >= stage:
            emit(row)
            row = None
        if row is None:
            row = opened[worker] = PackedRow(worker)
        row.stage = stage
        return row

    verb, worker, source = trace.verb.tolist(), trace.worker.tolist(), trace.source.tolist()
    counts: list[int] = []
    for r in range(len(verb) + 1):
        while len(counts) < len(cuts) and cuts[len(counts)] == r:
            for row in list(opened.values()):
                emit(row)
            counts.append(len(out))
        if r == len(verb) or verb[r] in (MIX, CANCEL) or (verb[r] == READ and r not in reads):
            continue
        row = current(worker[r], STAGES[verb[r]])
        if verb[r] == READ:
            row.read = r
        elif verb[r] == STEP:
            row.step = r
        elif verb[r] == PUBLISH:
            row.publish = r
            maker[r] = row
        else:
            mix = source[r]
            if mix in summed:
                row.needs = (summed[mix],)
            else:
                members = range(trace.mix_start[mix], trace.mix_start[mix + 1])
                for first in range(members.start, members.stop, width):
                    if first > members.start:  # a wide mix: one more row
                        row = current(worker[r], STAGES[verb[r]])
                    part = slice(first, min(first + width, members.stop))
                    row.parts, row.shares = tuple(trace.member[part].tolist()), tuple(trace.share[part].tolist())
                    row.mix, row.adds = mix, first > members.start
                    row.needs = tuple(maker[m] for m in row.parts)
                summed[mix] = row
            row.mix, row.merge = mix, r
    return out, counts


@dataclasses.dataclass(frozen=True)
class PeerPlan:
    """Packed rows of a peer method. ``done[k]``: rows that are done at ``cuts[k]``; ``trace_row``: of each, its step's
    row in the trace, or -1."""

    rows: dict[str, np.ndarray]
    trace_row: np.ndarray
    cuts: list[int]
    done: list[int]
    message_slots: int
    mix_slots: int
    width: int
    apart: bool
    resets: bool


def plan_peers(trace: Trace, factor: np.ndarray, cuts: list[int]) -> PeerPlan:
    """Packed rows, with a slot for each message and mix while it is needed.

    ``factor``: (R,) on the learning rate.
    """
    sizes = np.diff(trace.mix_start)[trace.verb == MIX]
    # the commonest size of a mix: wider ones are summed in several rows
    width = int(np.bincount(sizes)[1:].argmax() + 1) if len(sizes) else 1
    apart = kept_apart(trace)
    rows, done = pack(trace, width, cuts, apart)
    message_made, message_used, mix_made, mix_used = (
        dict[int, int](),
        dict[int, int](),
        dict[int, int](),
        dict[int, int](),
    )
    for k, row in enumerate(rows):
        if row.publish >= 0:
            message_made[row.publish] = k
        for m in row.parts:
            message_used[m] = k
        if row.parts:
            # a mix is summed and used within one row: its slot must be free when the row begins
            mix_made.setdefault(row.mix, k - 1)
        if row.mix >= 0:
            mix_used[row.mix] = k
    message_slot, message_count = _allot(message_made, message_used)
    mix_slot, mix_count = _allot(mix_made, mix_used)
    parts = np.full((len(rows), width), message_count, np.int32)
    shares = np.zeros((len(rows), width))
    for k, row in enumerate(rows):
        parts[k, : len(row.parts)] = [message_slot[m] for m in row.parts]
        shares[k, : len(row.parts)] = row.shares
    newest = _newest_message(trace)

    def column(get: Any, kind: Any = np.int32) -> np.ndarray:
        return np.array([get(row) for row in rows], kind)

    step, merge = column(lambda row: row.step), column(lambda row: row.merge)
    publish = column(lambda row: row.publish)
    is_merge = (merge >= 0) & (trace.verb[merge] == MERGE) if len(trace) else merge >= 0

    def of(values: np.ndarray, at: np.ndarray, otherwise: float, kind: Any) -> np.ndarray:
        return np.where(at >= 0, values[at] if len(values) else 0, otherwise).astype(kind)

    included = column(
        lambda row: (
            row.merge >= 0
            and bool(np.isin(newest[row.merge], trace.member[trace.mix_start[row.mix] : trace.mix_start[row.mix + 1]]))
        ),
        bool,
    )
    columns = {
        "worker": column(lambda row: row.worker),
        "parts": parts,
        "shares": shares,
        "sums": column(lambda row: bool(row.parts), bool),
        "adds": column(lambda row: row.adds, bool),
        "mix": column(lambda row: mix_slot.get(row.mix, mix_count)),
        "merges": is_merge,
        "resets": (merge >= 0) & ~is_merge,
        "keep": of(trace.keep, merge, 1, float),
        "take": of(trace.take, merge, 0, float),
        "included": included,
        "reads": column(lambda row: row.read >= 0, bool),
        "steps": step >= 0,
        "apart": of(apart, step, 0, bool),
        "staleness": of(trace.staleness, step, 0, np.int32),
        "publishes": publish >= 0,
        "left": of(trace.keep, publish, 1, float),
        "message": column(lambda row: message_slot.get(row.publish, message_count)),
    }
    for name, at in (("", step), ("merge_", merge), ("publish_", publish)):
        columns[f"{name}step"] = of(trace.step, at, 0, np.int32)
        columns[f"{name}factor"] = of(factor, at, 1, float)
    resets = bool(columns["resets"].any())
    slots = roomy(message_count + 1), roomy(mix_count + 1)
    return PeerPlan(columns, step, cuts, done, *slots, width, bool(apart.any()), resets)


def _newest_message(trace: Trace) -> np.ndarray:
    """(R,) the row of the worker's newest message before each row, or -1."""
    latest = np.full(trace.num_workers, -1)
    out = np.full(len(trace), -1)
    for r, (verb, worker) in enumerate(zip(trace.verb.tolist(), trace.worker.tolist(), strict=True)):
        if verb == MERGE:
            out[r] = latest[worker]
        elif verb == PUBLISH:
            latest[worker] = r
    return out


def _allot(made: dict[int, int], used: dict[int, int]) -> tuple[dict[int, int], int]:
    """Slots by thing for things made and used at some rows; those that are never used are left out."""
    things = sorted((t for t in made if t in used), key=made.__getitem__)
    slot, count = assign_slots(np.array([made[t] for t in things], int), np.array([used[t] for t in things], int))
    return dict(zip(things, slot.tolist(), strict=True)), count
