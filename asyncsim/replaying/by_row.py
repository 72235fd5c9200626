"""The plain way to replay: one call for each row of the trace, in its order, each thing kept until its last use.

It is the meaning of the verbs, and the twin that tests hold the compiled loop against. It is also the right way for a
model that a compiled loop runs badly (a convolution by ``lax.conv`` on the CPU).
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from asyncsim.problems.batches import Batches
from asyncsim.replaying import rules
from asyncsim.replaying.rules import Learning
from asyncsim.replaying.server_plan import plan_server
from asyncsim.trace import Trace
from asyncsim.vocabulary import APPLY, CANCEL, MERGE, MIX, PUBLISH, READ, RESET, STEP


class _ByRow:
    """What both kinds share: the walk through the rows, and what is held until its last use."""

    def __init__(
        self,
        trace: Trace,
        learning: Learning,
        rule: Any,
        start: tuple[Any, Any],
        batches: Batches,
        factor: np.ndarray,
        cuts: list[int],
        measures: bool,
    ):
        self._trace, self._learning, self._rule, self._at = trace, learning, rule, 0
        self._batches, self._measures = batches, measures
        self._factor = factor.astype(jnp.zeros(()).dtype)
        self._held: dict[int, Any] = {}
        self._last_use = _last_uses(trace)
        params, extra = start
        self._extra = [extra] * trace.num_workers
        self._begin(params)

    def _begin(self, params: Any) -> None:
        raise NotImplementedError

    def _do(self, r: int, verb: int, i: int, row: dict[str, Any]) -> dict[str, Any] | None:
        raise NotImplementedError

    def advance(self, row: int) -> dict[str, np.ndarray]:
        """Do all up to this row of the trace; what was measured on each gradient, in order."""
        trace, given = self._trace, []
        batch = self._batches.indices(np.maximum(trace.worker[self._at : row], 0), trace.step[self._at : row])
        for k, r in enumerate(range(self._at, row)):
            columns = {"worker": trace.worker[r], "step": trace.step[r].astype(np.int32), "batch": batch[k]}
            columns |= {"staleness": trace.staleness[r].astype(np.int32), "factor": self._factor[r]}
            measured = self._do(r, int(trace.verb[r]), int(trace.worker[r]), columns)
            if measured is not None:
                given.append(measured)
            source = int(trace.source[r])
            used = [source] if source >= 0 else trace.member[trace.mix_start[r] : trace.mix_start[r + 1]].tolist()
            for u in {*used, r}:
                if self._last_use[u] <= r:
                    self._held.pop(u, None)
        self._at = row
        return {k: np.array([g[k] for g in given]) for k in given[0]} if given else {}


def _last_uses(trace: Trace) -> np.ndarray:
    """(R,) the last row that uses what each row made, or -1."""
    last = np.full(len(trace), -1)
    rows = np.arange(len(trace))
    named = trace.source >= 0
    np.maximum.at(last, trace.source[named], rows[named])
    np.maximum.at(last, trace.member, np.repeat(rows, np.diff(trace.mix_start)))
    return last


class ByRowServer(_ByRow):
    """Replays a server method row by row."""

    def _begin(self, params: Any) -> None:
        algorithm: Any = self._learning.algorithm
        n = self._trace.num_workers
        self._state = algorithm.init(params, n)
        self._own = [algorithm.start(params)] * n
        self._kept = [algorithm.keep(params)] * n
        self._view: Any = algorithm.view(self._state)
        self._total: Any = ()
        self._plan = plan_server(self._trace, self._factor)
        self._planned = {int(r): k for k, r in enumerate(self._plan.trace_row)}

    def _do(self, r: int, verb: int, i: int, row: dict[str, Any]) -> dict[str, Any] | None:
        if verb == READ:
            if self._view is None:
                self._view = server_view(self._learning.algorithm, self._state)
            self._held[r] = self._view
        elif verb == RESET:
            algorithm: Any = self._learning.algorithm
            self._own[i] = rules.same_types(self._own[i], algorithm.start(self._held[int(self._trace.source[r])]))
        elif verb in (STEP, APPLY):
            k = self._planned[r]
            row["count"] = self._plan.rows["count"][k]
            row["weight"] = self._plan.rows["weight"][k].astype(self._factor.dtype)
            flags = {name: bool(self._plan.rows[name][k]) for name in ("sends", "arrives", "begins", "closes")}
            if not self._plan.grouped:
                row.pop("weight")
            slices = (self._state, self._total, self._own[i], self._kept[i], self._extra[i])
            sent = self._held[int(self._trace.source[r])]
            *slices, measured = server_row(
                self._learning, slices, sent, row, rule=self._rule, measures=self._measures, **flags
            )
            self._state, self._total, self._own[i], self._kept[i], self._extra[i] = slices
            if flags["closes"]:
                self._view = None
            return measured
        else:
            assert verb == CANCEL
        return None

    def model(self) -> tuple[Any, Any, dict[str, Any]]:
        """Parameters, extra, and what else is measured at an evaluation."""
        extras = jax.tree.map(lambda *x: jnp.stack(x), *self._extra)
        return self._learning.algorithm.final(self._state), rules.mean_extra(extras), {}  # type: ignore[attr-defined]


@jax.jit
def server_view(algorithm: Any, state: Any) -> Any:
    return algorithm.view(state)


@functools.partial(jax.jit, static_argnames=("rule", "measures", "sends", "arrives", "begins", "closes"))
def server_row(
    learning: Learning,
    slices: Any,
    sent: Any,
    row: Any,
    *,
    rule: Any,
    measures: bool,
    sends: bool,
    arrives: bool,
    begins: bool,
    closes: bool,
) -> Any:
    """One gradient, and as far as it goes: into the worker, to the server, into an update."""
    algorithm: Any = learning.algorithm
    state, total, own, kept, extra = slices
    point = algorithm.point(own, sent)
    loss, g, extra = rules.gradient(rule, learning, point, extra, row)
    stays, left, message = rules.send(learning, own, g, row, sent)
    before = algorithm.final(state)
    if arrives:
        kept, message = rules.receive(learning, state, kept, message, row, sent)
        if "weight" in row:
            message = jax.tree.map(lambda m: row["weight"] * m, message)
            total = message if begins else jax.tree.map(jnp.add, total, message)
        if closes:
            state = rules.update(learning, state, total if "weight" in row else message, row, sent)
    measured = {"loss": loss, **rules.measure(measures, before, point, g, algorithm.final(state))}
    return state, total, rules.same_types(own, left if sends else stays), kept, extra, measured


class ByRowPeers(_ByRow):
    """Replays a method between peers row by row."""

    def _begin(self, params: Any) -> None:
        algorithm: Any = self._learning.algorithm
        self._states = [algorithm.init(params)] * self._trace.num_workers
        self._newest = [-1] * self._trace.num_workers

    def _do(self, r: int, verb: int, i: int, row: dict[str, Any]) -> dict[str, Any] | None:
        trace, source = self._trace, int(self._trace.source[r])
        batch = row.pop("batch")
        row["keep"], row["take"] = (np.asarray(x[r], self._factor.dtype) for x in (trace.keep, trace.take))
        if verb == READ:
            self._held[r] = peer_point(self._learning, self._states[i])
        elif verb == STEP:
            self._states[i], self._extra[i], measured = peer_step(
                self._learning,
                (self._states[i], self._extra[i]),
                self._held[source],
                {**row, "batch": batch},
                rule=self._rule,
                measures=self._measures,
            )
            return measured
        elif verb == PUBLISH:
            self._states[i], self._held[r] = peer_publish(self._learning, self._states[i], row)
            self._newest[i] = r
        elif verb == MIX:
            members = slice(trace.mix_start[r], trace.mix_start[r + 1])
            messages = tuple(self._held[m] for m in trace.member[members].tolist())
            self._held[r] = peer_mix(messages, trace.share[members].astype(self._factor.dtype))
        elif verb == MERGE:
            mixed = trace.member[trace.mix_start[source] : trace.mix_start[source + 1]]
            row["included"] = np.asarray(self._newest[i] in mixed)
            self._states[i] = peer_merge(self._learning, self._states[i], self._held[source], row)
        elif verb == RESET:
            self._states[i] = peer_restart(self._learning, self._states[i], self._held[source])
        else:
            assert verb == CANCEL
        return None

    def model(self) -> tuple[Any, Any, dict[str, Any]]:
        """Parameters, extra, and the distance of the peers from their mean."""
        algorithm: Any = self._learning.algorithm
        states, extras = (jax.tree.map(lambda *x: jnp.stack(x), *each) for each in (self._states, self._extra))
        return algorithm.final(states), rules.mean_extra(extras), {"spread": rules.spread(algorithm, states)}


@jax.jit
def peer_point(learning: Any, state: Any) -> Any:
    return learning.algorithm.point(state)


@functools.partial(jax.jit, static_argnames=("rule", "measures"))
def peer_step(learning: Any, slices: Any, point: Any, row: Any, *, rule: Any, measures: bool) -> Any:
    state, extra = slices
    loss, g, extra = rules.gradient(rule, learning, point, extra, row)
    new = rules.same_types(state, learning.algorithm.local(state, g, rules.context(learning, row)))
    here, there = learning.algorithm.point(state), learning.algorithm.point(new)
    return new, extra, {"loss": loss, **rules.measure(measures, here, point, g, there)}


@jax.jit
def peer_publish(learning: Any, state: Any, row: Any) -> Any:
    left, message = learning.algorithm.outgoing(state, rules.context(learning, row, keep=row["keep"]))
    return rules.same_types(state, left), message


@jax.jit
def peer_mix(messages: Any, weights: Any) -> Any:
    return jax.tree.map(lambda x: jnp.asarray(x), rules.weighted_sum(messages, weights))


@jax.jit
def peer_merge(learning: Any, state: Any, mix: Any, row: Any) -> Any:
    at = rules.context(learning, row, keep=row["keep"], take=row["take"], included=row["included"])
    return rules.same_types(state, learning.algorithm.merge(state, mix, at))


@jax.jit
def peer_restart(learning: Any, state: Any, mix: Any) -> Any:
    return rules.same_types(state, learning.algorithm.restart(mix))
