"""From a server's trace to rows that a compiled loop can run. NumPy only."""

from __future__ import annotations

import dataclasses

import numpy as np

from asyncsim.replaying.slots import assign_slots, roomy
from asyncsim.trace import Trace
from asyncsim.vocabulary import APPLY, RESET, STEP


@dataclasses.dataclass(frozen=True)
class ServerPlan:
    """Rows of a server method: the gradients and resets of the trace, in its order.

    ``rows``: columns by name. ``trace_row``: of each, its row in the trace. ``slots``: how many versions are stored at
    once, with a spare one that nobody reads. The flags say which kinds of row occur at all.
    """

    rows: dict[str, np.ndarray]
    trace_row: np.ndarray
    slots: int
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
        "draw": trace.draw[done].astype(np.int32),
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
    return ServerPlan(rows, done, roomy(count + 1), grouped, local, resets)
