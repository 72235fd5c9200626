"""The fast way to replay a method between peers: a compiled loop over its plan."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from asyncsim.problems.batches import Batches
from asyncsim.replaying import rules
from asyncsim.replaying.peer_plan import plan_peers
from asyncsim.replaying.pools import PROGRAMS, loop, padded, put, run_chunks, stack, take, zeros_of
from asyncsim.replaying.rules import Learning
from asyncsim.trace import Trace


class PeerFlags(NamedTuple):
    """What occurs in the trace at all; what does not is left out of the program."""

    apart: bool
    resets: bool
    measures: bool


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
        message = zeros_of(jax.eval_shape(lambda s: algorithm.outgoing(s, rules.context(learning, row))[1], state))
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
        rows = {k: padded(v[:1]) for k, v in self.plan.rows.items()}
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

        nothing = zeros_of(jax.eval_shape(step, state, extra, stored)[2])
        state, extra, measured = lax.cond(row["steps"], step, lambda s, e, p: (s, e, nothing), state, extra, stored)

        def publish(state: Any) -> Any:
            left, message = algorithm.outgoing(state, at("publish_", keep=row["left"]))
            return rules.same_types(state, left), message

        silent = zeros_of(jax.eval_shape(publish, state)[1])
        state, message = lax.cond(row["publishes"], publish, lambda s: (s, silent), state)
        peers = put(peers, row["worker"], (state, extra))
        points = put(points, row["worker"], stored)
        return (peers, points, put(messages, row["message"], message), put(mixes, row["mix"], mix)), measured

    return loop(body, carry, rows, count)
