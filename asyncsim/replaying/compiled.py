"""The fast way to replay: a compiled loop over planned rows, a chunk at a time.

What is stored per worker, version, message or mix is a pool: a pytree of arrays stacked along axis 0, indexed by slot.
Rows take slices out, work on slices alone, and write slices back. Two facts about XLA on the CPU shape the code:

* It fuses across a pool's reads and in-place writes and then copies the whole pool at every row, where an old slice is
  used twice. A conditional is the one fence that it keeps (``seal``), and it must carry slices only.
* A loop of traced length compiles once for any number of rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from asyncsim.problems.batches import Batches
from asyncsim.replaying import rules
from asyncsim.replaying.plan import plan_peers, plan_server
from asyncsim.replaying.rules import Learning
from asyncsim.trace import Trace

CHUNK = 1024  # rows handed to the compiled loop at once
PROGRAMS: list[str] = []  # one entry for each tracing of a program: tests count them


class ServerFlags(NamedTuple):
    """What occurs in the trace at all; what does not is left out of the program."""

    grouped: bool
    local_steps: bool
    resets: bool
    measures: bool


class PeerFlags(NamedTuple):
    """The same for peers."""

    apart: bool
    resets: bool
    measures: bool


def take(pool: Any, slot: Any) -> Any:
    """The slice of each array at a slot."""
    return jax.tree.map(lambda s: lax.dynamic_index_in_dim(s, slot, 0, keepdims=False), pool)


def put(pool: Any, slot: Any, value: Any) -> Any:
    """The pool with the slice at a slot replaced."""
    return jax.tree.map(lambda s, x: lax.dynamic_update_index_in_dim(s, jnp.asarray(x, s.dtype), slot, 0), pool, value)


def stack(value: Any, slots: int) -> Any:
    """A pool with the same value in every slot."""
    return jax.tree.map(lambda x: jnp.array(jnp.broadcast_to(x, (slots, *jnp.shape(x)))), value)


def seal(on: Any, f: Callable[..., Any], *slices: Any) -> Any:
    """f(*slices), fenced off from what is around it; ``on`` is a traced True."""
    nothing = _zeros(jax.eval_shape(f, *slices))
    return lax.cond(on, f, lambda *_: nothing, *slices)


def _zeros(shapes: Any) -> Any:
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)


def loop(body: Callable[..., Any], carry: Any, rows: dict[str, jax.Array], count: Any) -> Any:
    """``lax.scan`` whose length is traced: the carry, and what each row gave (zeros from row ``count`` on)."""
    shapes = jax.eval_shape(body, carry, take(rows, 0))[1]
    length = rows["worker"].shape[0]
    out = jax.tree.map(lambda s: jnp.zeros((length, *s.shape), s.dtype), shapes)

    def one(k: Any, both: Any) -> Any:
        carry, out = both
        carry, given = body(carry, take(rows, k))
        return carry, put(out, k, given)

    return lax.fori_loop(0, count, one, (carry, out))


def run_chunks(program: Callable[..., Any], carry: Any, rows: dict[str, Any], start: int, stop: int) -> Any:
    """Rows ``start`` to ``stop`` through a program, a chunk at a time; the last one is padded."""
    given = []
    for first in range(start, stop, CHUNK):
        count = min(CHUNK, stop - first)
        part = {k: _padded(v[first : first + count]) for k, v in rows.items()}
        carry, out = program(carry, part, count)
        given.append({k: np.asarray(v)[:count] for k, v in out.items()})
    return carry, {k: np.concatenate([g[k] for g in given]) for k in given[0]} if given else {}


def _padded(values: np.ndarray) -> np.ndarray:
    values = values.astype(jnp.zeros(()).dtype) if values.dtype == np.float64 else values
    return np.concatenate([values, np.repeat(values[:1], CHUNK - len(values), 0)])


class CompiledServer:
    """Replays a server method; ``advance`` goes on to a row of the trace, ``model`` is what stands there."""

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
        algorithm: Any = learning.algorithm
        params, extra = start
        self.plan = plan_server(trace, factor)
        self._learning, self._rule, self._at = learning, rule, 0
        self._flags = ServerFlags(self.plan.grouped, self.plan.local_steps, self.plan.resets, measures)
        self._batches = batches
        state = jax.tree.map(jnp.array, algorithm.init(params, trace.num_workers))
        workers = stack((algorithm.start(params), algorithm.keep(params), extra), trace.num_workers)
        total = _zeros(jax.eval_shape(_contribution, learning, state, workers)) if self.plan.grouped else ()
        self._carry = state, total, workers, stack(algorithm.view(state), self.plan.slots)

    def _program(self, carry: Any, rows: Any, count: int) -> Any:
        rows["batch"] = self._batches.indices(rows["worker"], rows["step"])
        return server_program(carry, self._learning, rows, count, self._rule, self._flags)

    def advance(self, row: int) -> dict[str, np.ndarray]:
        """Do all up to this row of the trace; what was measured on each gradient, in order."""
        start, stop = self._at, int(np.searchsorted(self.plan.trace_row, row))
        self._carry, given = run_chunks(self._program, self._carry, self.plan.rows, start, stop)
        self._at = stop
        real = self.plan.rows["gradient"][start:stop]
        return {k: v[real] for k, v in given.items()}

    def model(self) -> tuple[Any, Any, dict[str, Any]]:
        """Parameters, extra, and what else is measured at an evaluation."""
        state, _, (_, _, extras), _ = self._carry
        return self._learning.algorithm.final(state), rules.mean_extra(extras), {}  # type: ignore[attr-defined]

    @property
    def pools(self) -> Any:
        """What is stacked, for tests."""
        return self._carry[2:]

    def compiled_text(self) -> str:
        """The program as XLA compiled it, for tests."""
        rows = {k: _padded(v[:1]) for k, v in self.plan.rows.items()}
        rows["batch"] = self._batches.indices(rows["worker"], rows["step"])
        lowered = server_program.lower(self._carry, self._learning, rows, 1, self._rule, self._flags)
        return lowered.compile().as_text() or ""


def _contribution(learning: Learning, state: Any, workers: Any) -> Any:
    """An example of what one arrival adds to an update: for its shapes only."""
    own, kept, _ = take(workers, 0)
    row = {"worker": 0, "step": 0, "staleness": 0, "factor": 1.0, "count": 1}
    sent = learning.algorithm.view(state)  # type: ignore[attr-defined]
    g = learning.algorithm.point(own, sent)  # type: ignore[attr-defined]
    _, _, message = rules.send(learning, own, g, row, sent)
    return rules.receive(learning, state, kept, message, row, sent)[1]


@functools.partial(jax.jit, static_argnames=("rule", "flags"), donate_argnums=0)
def server_program(carry: Any, learning: Learning, rows: Any, count: Any, rule: Any, flags: ServerFlags) -> Any:
    """Carry: the server's state, the update under way, and pools of workers (own, kept, extra) and of views."""
    PROGRAMS.append("server")
    algorithm: Any = learning.algorithm

    def body(carry: Any, row: Any) -> Any:
        state, total, workers, views = carry
        sent, (own, kept, extra) = take(views, row["seen"]), take(workers, row["worker"])

        def compute(state: Any, total: Any, own: Any, kept: Any, extra: Any, sent: Any) -> Any:
            point = algorithm.point(own, sent)
            loss, g, new_extra = rules.gradient(rule, learning, point, extra, row)

            def arrive(state: Any, total: Any, own: Any, kept: Any, g: Any) -> Any:
                stays, left, message = rules.send(learning, own, g, row, sent)
                if not flags.grouped and not flags.local_steps:
                    kept, message = rules.receive(learning, state, kept, message, row, sent)
                    return rules.update(learning, state, message, row, sent), total, left, kept

                def accept(state: Any, total: Any, kept: Any) -> Any:
                    kept, message_in = rules.receive(learning, state, kept, message, row, sent)
                    if not flags.grouped:
                        return rules.update(learning, state, message_in, row, sent), total, kept
                    old = jax.tree.map(lambda t: jnp.where(row["begins"], 0, t), total)
                    total = jax.tree.map(lambda t, m: t + row["weight"] * m, old, message_in)
                    close = functools.partial(rules.update, learning, row=row, sent=sent)
                    state = lax.cond(row["closes"], lambda s, t: close(s, t), lambda s, t: s, state, total)
                    return state, total, kept

                state, total, kept = lax.cond(row["arrives"], accept, lambda *same: same, state, total, kept)
                if flags.local_steps:
                    left = jax.tree.map(lambda a, b: jnp.where(row["sends"], a, b), left, stays)
                return state, total, left, kept

            new_state, total, own, kept = arrive(state, total, own, kept, g)
            before, after = algorithm.final(state), algorithm.final(new_state)
            measured = {"loss": loss, **rules.measure(flags.measures, before, point, g, after)}
            return new_state, total, own, kept, new_extra, measured

        slices = (state, total, own, kept, extra, sent)
        if flags.resets:
            nothing = _zeros(jax.eval_shape(compute, *slices)[-1])

            def reset(state: Any, total: Any, own: Any, kept: Any, extra: Any, sent: Any) -> Any:
                return state, total, rules.same_types(own, algorithm.start(sent)), kept, extra, nothing

            done = lax.cond(row["gradient"], compute, reset, *slices)
        else:
            done = seal(row["on"], compute, *slices)
        state, total, own, kept, extra, measured = done
        workers = put(workers, row["worker"], (own, kept, extra))
        return (state, total, workers, put(views, row["makes"], algorithm.view(state))), measured

    return loop(body, carry, rows, count)


class CompiledPeers:
    """Replays a method between peers; the same two verbs as for a server."""

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
        algorithm: Any = learning.algorithm
        params, extra = start
        self.plan = plan_peers(trace, factor, cuts)
        self._learning, self._rule, self._at = learning, rule, 0
        self._flags = PeerFlags(self.plan.apart, self.plan.resets, measures)
        self._batches = batches
        state = algorithm.init(params)
        row = {"worker": 0, "step": 0, "staleness": 0, "factor": 1.0}
        message = _zeros(jax.eval_shape(lambda s: algorithm.outgoing(s, rules.context(learning, row))[1], state))
        points = stack(algorithm.point(state), trace.num_workers) if self.plan.apart else ()
        pools = stack(message, self.plan.message_slots), stack(message, self.plan.mix_slots)
        self._carry = stack((state, extra), trace.num_workers), points, *pools

    def _program(self, carry: Any, rows: Any, count: int) -> Any:
        rows["batch"] = self._batches.indices(rows["worker"], rows["step"])
        return peer_program(carry, self._learning, rows, count, self._rule, self._flags)

    def advance(self, row: int) -> dict[str, np.ndarray]:
        """Do all up to a cut; what was measured on each gradient, in the order of the trace."""
        start, stop = self._at, self.plan.done[self.plan.cuts.index(row)]
        self._carry, given = run_chunks(self._program, self._carry, self.plan.rows, start, stop)
        self._at = stop
        at = self.plan.trace_row[start:stop]
        real = np.flatnonzero(at >= 0)
        order = real[np.argsort(at[real])]
        return {k: v[order] for k, v in given.items()}

    def model(self) -> tuple[Any, Any, dict[str, Any]]:
        """Parameters, extra, and the distance of the peers from their mean."""
        states, extras = self._carry[0]
        algorithm: Any = self._learning.algorithm
        return algorithm.final(states), rules.mean_extra(extras), {"spread": rules.spread(algorithm, states)}

    @property
    def pools(self) -> Any:
        """What is stacked, for tests."""
        return self._carry

    def compiled_text(self) -> str:
        """The program as XLA compiled it, for tests."""
        rows = {k: _padded(v[:1]) for k, v in self.plan.rows.items()}
        rows["batch"] = self._batches.indices(rows["worker"], rows["step"])
        lowered = peer_program.lower(self._carry, self._learning, rows, 1, self._rule, self._flags)
        return lowered.compile().as_text() or ""


@functools.partial(jax.jit, static_argnames=("rule", "flags"), donate_argnums=0)
def peer_program(carry: Any, learning: Learning, rows: Any, count: Any, rule: Any, flags: PeerFlags) -> Any:
    """Carry: pools of the peers (state, extra), of points kept apart, of messages and of mixes."""
    PROGRAMS.append("peers")
    algorithm: Any = learning.algorithm

    def body(carry: Any, row: Any) -> Any:
        peers, points, messages, mixes = carry
        (state, extra), mix = take(peers, row["worker"]), take(mixes, row["mix"])
        width = row["parts"].shape[0]

        def add_up(mix: Any) -> Any:
            old = jax.tree.map(lambda m: jnp.where(row["adds"], m, 0), mix)
            parts = tuple(take(messages, row["parts"][k]) for k in range(width))
            # a slot that is not used may hold anything: leave it out rather than take it 0 times
            parts = tuple(
                jax.tree.map(lambda x, k=k: jnp.where(row["shares"][k] == 0, 0, x), parts[k]) for k in range(width)
            )
            return jax.tree.map(lambda a, b: jnp.asarray(a + b, a.dtype), old, rules.weighted_sum(parts, row["shares"]))

        def at(verb: str, **more: Any) -> Any:
            columns = {"worker": row["worker"], "staleness": row["staleness"]}
            columns |= {k: row[f"{verb}{k}"] for k in ("step", "factor")}
            return rules.context(learning, columns, **more)

        def merge(state: Any, mix: Any) -> Any:
            weights = {k: row[k] for k in ("keep", "take", "included")}
            return rules.same_types(state, algorithm.merge(state, mix, at("merge_", **weights)))

        mix = lax.cond(row["sums"], add_up, lambda m: m, mix)
        state = lax.cond(row["merges"], merge, lambda s, m: s, state, mix)
        if flags.resets:
            restart = lambda s, m: rules.same_types(s, algorithm.restart(m))  # noqa: E731
            state = lax.cond(row["resets"], restart, lambda s, m: s, state, mix)
        stored = take(points, row["worker"])
        if flags.apart:
            stored = lax.cond(
                row["reads"], lambda s, p: rules.same_types(p, algorithm.point(s)), lambda s, p: p, state, stored
            )

        def step(state: Any, extra: Any, stored: Any) -> Any:
            here = algorithm.point(state)
            point = here
            if flags.apart:
                point = jax.tree.map(lambda a, b: jnp.where(row["apart"], a, b), stored, here)
            loss, g, extra = rules.gradient(rule, learning, point, extra, row)
            new = rules.same_types(state, algorithm.local(state, g, at("")))
            return new, extra, {"loss": loss, **rules.measure(flags.measures, here, point, g, algorithm.point(new))}

        nothing = _zeros(jax.eval_shape(step, state, extra, stored)[2])
        state, extra, measured = lax.cond(row["steps"], step, lambda s, e, p: (s, e, nothing), state, extra, stored)

        def publish(state: Any) -> Any:
            left, message = algorithm.outgoing(state, at("publish_", keep=row["left"]))
            return rules.same_types(state, left), message

        silent = _zeros(jax.eval_shape(publish, state)[1])
        state, message = lax.cond(row["publishes"], publish, lambda s: (s, silent), state)
        peers = put(peers, row["worker"], (state, extra))
        points = put(points, row["worker"], stored)
        return (peers, points, put(messages, row["message"], message), put(mixes, row["mix"], mix)), measured

    return loop(body, carry, rows, count)
