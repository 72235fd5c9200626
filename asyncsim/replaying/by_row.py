"""The plain way to replay: one call for each row of the trace, in its order, each thing kept until its last use.

It is the meaning of the verbs, and the twin that tests hold the compiled loop against. It is also the right way for a
model that a compiled loop runs badly (a convolution by ``lax.conv`` on the CPU).
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from asyncsim.replaying import rules
from asyncsim.replaying.measures import measure, spread
from asyncsim.replaying.rules import Learning, Setting
from asyncsim.trace import Trace
from asyncsim.vocabulary import APPLY, CANCEL, MERGE, MIX, PUBLISH, READ, RESET, STEP


class _ByRow(ABC):
    """What both kinds share: the walk through the rows, and what is held until its last use."""

    def __init__(self, setting: Setting):
        self.setting, self._at = setting, 0
        self._factor = setting.factor.astype(jnp.zeros(()).dtype)
        self._held: dict[int, Any] = {}
        self._last_use = _last_uses(setting.trace)
        shared, n = setting.shares_extra, setting.trace.num_workers
        self._extra = [setting.extra] * (1 if shared else n)
        self._holder = [0] * n if shared else list(range(n))  # which extra each worker's gradients change
        self._begin()

    @abstractmethod
    def _begin(self) -> None:
        """The states at the start."""

    @abstractmethod
    def _do(self, r: int, verb: int, i: int, row: dict[str, Any]) -> dict[str, Any] | None:
        """One row of the trace; what was measured, if it has a gradient."""

    def advance(self, row: int) -> dict[str, np.ndarray]:
        """Do all up to this row of the trace; what was measured on each gradient, in order."""
        trace, given, batches = self.setting.trace, [], self.setting.batches
        batch = batches.indices(np.maximum(trace.worker[self._at : row], 0), trace.step[self._at : row])
        for k, r in enumerate(range(self._at, row)):
            columns = {"worker": trace.worker[r], "batch": batch[k], "factor": self._factor[r]}
            columns |= {name: getattr(trace, name)[r].astype(np.int32) for name in ("step", "draw")}
            columns["staleness"] = np.int32(max(trace.staleness[r], 0))
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

    def grow(self, trace: Trace, factor: np.ndarray, live: np.ndarray) -> None:
        """The trace has gone on; ``live``: the rows that those to come may still name."""
        self.setting = self.setting._replace(trace=trace, factor=factor)
        self._factor = factor.astype(jnp.zeros(()).dtype)
        self._last_use = _last_uses(trace)
        self._last_use[live] = len(trace)
        for u in [u for u in self._held if self._last_use[u] < self._at]:
            del self._held[u]

    def decide(self, i: int, row: dict[str, Any]) -> float:
        """What the algorithm decides for worker i now."""
        return float(decision(self.setting.learning, self._decider(i), row))

    @abstractmethod
    def _decider(self, i: int) -> Any:
        """The state that decides for worker i."""

    def _gradient(self, i: int, point: Any, row: dict[str, Any]) -> tuple[Any, Any]:
        """Batch loss and gradient of worker i, whose gradients change one of the extras."""
        # without the algorithm: then methods share the compiled gradient
        learning, holder = self.setting.learning._replace(algorithm=None), self._holder[i]
        loss, g, self._extra[holder] = gradient(learning, point, self._extra[holder], row, rule=self.setting.rule)
        return loss, g

    def _evaluated_extra(self) -> Any:
        extras = jax.tree.map(lambda *x: jnp.stack(x), *self._extra)
        return rules.evaluated_extra(self.setting.statistics, extras)


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

    def _begin(self) -> None:
        learning, params, n = self.setting.learning, self.setting.params, self.setting.trace.num_workers
        algorithm = learning.algorithm
        self._state = algorithm.init(params, n)
        self._own = [algorithm.start(params)] * n
        self._kept = [algorithm.keep(params)] * n
        self._view = rules.view(learning, self._state, self.setting.first_row())
        self._total: Any = None  # the update under way
        self._sizes = _update_sizes(self.setting.trace)

    def _do(self, r: int, verb: int, i: int, row: dict[str, Any]) -> dict[str, Any] | None:
        trace, learning = self.setting.trace, self.setting.learning
        if verb == READ:
            self._held[r] = self._view
        elif verb == RESET:
            fresh = learning.algorithm.start(self._held[int(trace.source[r])])
            self._own[i] = rules.same_types(self._own[i], fresh, rules.named(learning.algorithm, "start"))
        elif verb in (STEP, APPLY):
            sent, batch = self._held[int(trace.source[r])], row.pop("batch")
            row["count"] = np.int32(self._sizes[r])
            own, kept, state = self._own[i], self._kept[i], self._state
            point = server_point(learning, own, sent)
            loss, g = self._gradient(i, point, {**row, "batch": batch})
            stays, left, message = server_send(learning, own, g, row, sent)
            self._own[i] = left if verb == APPLY else stays
            if verb == APPLY and trace.accepted[r]:
                self._kept[i], part = server_receive(learning, state, kept, message, row, sent)
                self._total = server_add(self._total, part, np.asarray(trace.take[r], self._factor.dtype))
            if trace.closes[r]:
                self._state, self._view = server_update(learning, state, self._total, row, sent)
                self._total = None
            measured = server_measure(
                learning, point, g, (kept, own, state), (state, self._state), self.setting.measures
            )
            return {"loss": loss, **measured}
        else:
            assert verb == CANCEL
        return None

    def grow(self, trace: Trace, factor: np.ndarray, live: np.ndarray) -> None:
        super().grow(trace, factor, live)
        self._sizes = _update_sizes(trace)

    def _decider(self, i: int) -> Any:
        return self._state

    def model(self) -> tuple[Any, Any, dict[str, Any]]:
        """Parameters, extra, and what else is measured at an evaluation."""
        return self.setting.learning.algorithm.final(self._state), self._evaluated_extra(), {}


def _update_sizes(trace: Trace) -> list[int]:
    """(R,) how many gradients are in the update that is under way at each row."""
    out, under_way, first = [0] * len(trace), 0, 0
    for r in range(len(trace)):
        under_way += bool(trace.verb[r] == APPLY and trace.accepted[r])
        if trace.closes[r] or r == len(trace) - 1:
            out[first : r + 1] = [under_way] * (r + 1 - first)
            under_way, first = 0, r + 1
    return out


decision = jax.jit(rules.decide)


@functools.partial(jax.jit, static_argnames="rule")
def gradient(learning: Learning, point: Any, extra: Any, row: Any, *, rule: Any) -> Any:
    return rules.gradient(rule, learning, point, extra, row)


@jax.jit
def server_point(learning: Learning, own: Any, sent: Any) -> Any:
    return learning.algorithm.point(own, sent)


server_send, server_receive = jax.jit(rules.send), jax.jit(rules.receive)


@jax.jit
def server_add(total: Any, part: Any, weight: Any) -> Any:
    part = jax.tree.map(lambda m: weight * m, part)
    return part if total is None else jax.tree.map(jnp.add, total, part)


@jax.jit
def server_update(learning: Learning, state: Any, total: Any, row: Any, sent: Any) -> Any:
    state = rules.update(learning, state, total, row, sent)
    return state, rules.view(learning, state, row)


@functools.partial(jax.jit, static_argnums=5)
def server_measure(learning: Learning, point: Any, g: Any, holders: Any, states: Any, on: bool) -> Any:
    before, after = map(learning.algorithm.final, states)
    return measure(on, before, point, g, after, *holders)


class ByRowPeers(_ByRow):
    """Replays a method between peers row by row."""

    def _begin(self) -> None:
        trace = self.setting.trace
        self._states = [self.setting.learning.algorithm.init(self.setting.params)] * trace.num_workers
        self._newest = [-1] * trace.num_workers

    def _do(self, r: int, verb: int, i: int, row: dict[str, Any]) -> dict[str, Any] | None:
        trace, learning, source = self.setting.trace, self.setting.learning, int(self.setting.trace.source[r])
        batch = row.pop("batch")
        row["keep"], row["take"] = (np.asarray(x[r], self._factor.dtype) for x in (trace.keep, trace.take))
        if verb == READ:
            self._held[r] = peer_point(learning, self._states[i])
        elif verb == STEP:
            point, state = self._held[source], self._states[i]
            loss, g = self._gradient(i, point, {**row, "batch": batch})
            self._states[i], measured = peer_step(learning, state, point, g, row, self.setting.measures)
            return {"loss": loss, **measured}
        elif verb == PUBLISH:
            self._states[i], self._held[r] = peer_publish(learning, self._states[i], row)
            self._newest[i] = r
        elif verb == MIX:
            members = slice(trace.mix_start[r], trace.mix_start[r + 1])
            messages = tuple(self._held[m] for m in trace.member[members].tolist())
            self._held[r] = peer_mix(messages, trace.share[members].astype(self._factor.dtype))
        elif verb == MERGE:
            mixed = trace.member[trace.mix_start[source] : trace.mix_start[source + 1]]
            row["included"] = np.asarray(self._newest[i] in mixed)
            self._states[i] = peer_merge(learning, self._states[i], self._held[source], row)
        elif verb == RESET:
            self._states[i] = peer_restart(learning, self._states[i], self._held[source])
        else:
            assert verb == CANCEL
        return None

    def _decider(self, i: int) -> Any:
        return self._states[i]

    def model(self) -> tuple[Any, Any, dict[str, Any]]:
        """Parameters, extra, and the distance of the peers from their mean."""
        algorithm = self.setting.learning.algorithm
        states = jax.tree.map(lambda *x: jnp.stack(x), *self._states)
        return algorithm.final(states), self._evaluated_extra(), {"spread": spread(algorithm, states)}


@jax.jit
def peer_point(learning: Any, state: Any) -> Any:
    return learning.algorithm.point(state)


@functools.partial(jax.jit, static_argnums=5)
def peer_step(learning: Any, state: Any, point: Any, g: Any, row: Any, measures: bool) -> Any:
    new = rules.step(learning, state, g, row)
    here, there = learning.algorithm.point(state), learning.algorithm.point(new)
    return new, measure(measures, here, point, g, there, state)


@jax.jit
def peer_publish(learning: Any, state: Any, row: Any) -> Any:
    return rules.publish(learning, state, row, row["keep"])


@jax.jit
def peer_mix(messages: Any, weights: Any) -> Any:
    return jax.tree.map(lambda x: jnp.asarray(x), rules.weighted_sum(messages, weights))


@jax.jit
def peer_merge(learning: Any, state: Any, mix: Any, row: Any) -> Any:
    return rules.merge(learning, state, mix, row, **{k: row[k] for k in ("keep", "take", "included")})


@jax.jit
def peer_restart(learning: Any, state: Any, mix: Any) -> Any:
    return rules.restart(learning, state, mix)
