"""From a trace of peers to rows that a compiled loop can run, each with several verbs of one worker. NumPy only."""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import Any

import numpy as np

from asyncsim.replaying.slots import allot, roomy
from asyncsim.trace import Trace
from asyncsim.vocabulary import CANCEL, MERGE, MIX, PUBLISH, READ, RESET, STEP


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


MAX_WIDTH = 8  # members of a mix summed in one row: each is one more read in the program
STAGES = {MERGE: 1, RESET: 1, READ: 2, STEP: 3, PUBLISH: 4}


def pack(
    trace: Trace, width: int, cuts: list[int], apart: np.ndarray, in_order: bool = False
) -> tuple[list[PackedRow], list[int]]:
    """Pack the verbs of peers into rows; also how many rows are done at each cut (a row of the trace, in order).

    A merge sinks to its worker's next row and a mix to the first merge that takes it; what nobody takes falls away, as
    do reads whose point is not kept apart. At a cut every row before it is done. ``in_order``: steps keep the order of
    the trace, which else only those of one worker do.
    """
    out: list[PackedRow] = []
    opened: dict[int, PackedRow] = {}
    maker: dict[int, PackedRow] = {}  # of each message
    summed: dict[int, PackedRow] = {}  # of each mix
    reads = set(trace.source[apart].tolist())
    steps = deque[PackedRow]()  # rows with steps that are not out yet, in order

    def emit(row: PackedRow) -> None:
        if row.at >= 0:
            return
        while in_order and row.step >= 0 and steps[0] is not row:
            emit(steps[0])
        for other in row.needs:
            emit(other)
        if in_order and row.step >= 0:
            steps.popleft()
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
            if in_order:
                steps.append(row)
        elif verb[r] == PUBLISH:
            row.publish = r
            maker[r] = row
        else:
            mix = source[r]
            if mix in summed:
                row.needs = (summed[mix],)
                if in_order:
                    emit(summed[mix])  # before it takes a step that must come after this row's
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


def plan_peers(trace: Trace, factor: np.ndarray, cuts: list[int], in_order: bool = False) -> PeerPlan:
    """Packed rows, with a slot for each message and mix while it is needed.

    ``factor``: (R,) on the learning rate. ``in_order``: steps of all workers keep the order of the trace.
    """
    sizes = np.diff(trace.mix_start)[trace.verb == MIX]
    # the commonest size of a mix, within reason: wider ones are summed in several rows
    width = min(int(np.bincount(sizes)[1:].argmax() + 1), MAX_WIDTH) if len(sizes) else 1
    apart = kept_apart(trace)
    rows, done = pack(trace, width, cuts, apart, in_order)
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
    message_slot, message_count = allot(message_made, message_used)
    mix_slot, mix_count = allot(mix_made, mix_used)
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

    def included(row: PackedRow) -> bool:
        members = trace.member[trace.mix_start[row.mix] : trace.mix_start[row.mix + 1]]
        return row.merge >= 0 and bool(np.any(members == newest[row.merge]))

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
        "included": column(included, bool),
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
        columns[f"{name}draw"] = of(trace.draw, at, 0, np.int32)
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
