"""The fast way to replay a method between peers: a compiled loop over its plan."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from asyncsim.replaying import rules
from asyncsim.replaying.measures import measure, spread
from asyncsim.replaying.peer_plan import plan_peers
from asyncsim.replaying.pools import PROGRAMS, Compiled, loop, put, stack, strong, take, zeros_of
from asyncsim.replaying.rules import Learning, Setting


class PeerFlags(NamedTuple):
    """What occurs in the trace at all; what does not is left out of the program."""

    apart: bool
    resets: bool
    measures: bool
    shares_extra: bool = False


@functools.partial(jax.jit, static_argnames=("rule", "flags"), donate_argnums=0)
def peer_program(carry: Any, learning: Learning, rows: Any, count: Any, rule: Any, flags: PeerFlags) -> Any:
    """Carry: pools of the peers (state, extra), of points kept apart, of messages and of mixes, and the extra that all
    peers share (or nothing: then each has its own)."""
    PROGRAMS.append("peers")
    algorithm = learning.algorithm

    def body(carry: Any, row: Any) -> Any:
        peers, points, messages, mixes, shared = carry
        (state, extra), mix = take(peers, row["worker"]), take(mixes, row["mix"])
        extra = shared if flags.shares_extra else extra
        width = row["parts"].shape[0]

        def add_up(mix: Any) -> Any:
            old = jax.tree.map(lambda m: jnp.where(row["adds"], m, 0), mix)
            parts = tuple(take(messages, row["parts"][k]) for k in range(width))
            # a slot that is not used may hold anything: leave it out rather than take it 0 times
            parts = tuple(
                jax.tree.map(lambda x, k=k: jnp.where(row["shares"][k] == 0, 0, x), parts[k]) for k in range(width)
            )
            return jax.tree.map(lambda a, b: jnp.asarray(a + b, a.dtype), old, rules.weighted_sum(parts, row["shares"]))

        def at(verb: str) -> dict[str, Any]:
            return {
                "worker": row["worker"],
                "staleness": 0,
                **{k: row[f"{verb}_{k}"] for k in ("step", "draw", "factor")},
            }

        def merge(state: Any, mix: Any) -> Any:
            weights = {k: row[k] for k in ("keep", "take", "included")}
            return rules.merge(learning, state, mix, at("merge"), **weights)

        mix = lax.cond(row["sums"], add_up, lambda m: m, mix)
        state = lax.cond(row["merges"], merge, lambda s, m: s, state, mix)
        if flags.resets:
            restart = functools.partial(rules.restart, learning)
            state = lax.cond(row["resets"], restart, lambda s, m: s, state, mix)
        stored = take(points, row["worker"])
        if flags.apart:
            read = lambda s, p: rules.same_types(p, algorithm.point(s))  # noqa: E731
            stored = lax.cond(row["reads"], read, lambda s, p: p, state, stored)

        def step(state: Any, extra: Any, stored: Any) -> Any:
            here = algorithm.point(state)
            point = here
            if flags.apart:
                point = jax.tree.map(lambda a, b: jnp.where(row["apart"], a, b), stored, here)
            loss, g, extra = rules.gradient(rule, learning, point, extra, row)
            new = rules.step(learning, state, g, row)
            measures = measure(flags.measures, here, point, g, algorithm.point(new), state)
            return new, extra, {"loss": loss, **measures}

        nothing = zeros_of(jax.eval_shape(step, state, extra, stored)[2])
        state, extra, measured = lax.cond(row["steps"], step, lambda s, e, p: (s, e, nothing), state, extra, stored)

        def publish(state: Any) -> Any:
            return rules.publish(learning, state, at("publish"), row["left"])

        silent = zeros_of(jax.eval_shape(publish, state)[1])
        state, message = lax.cond(row["publishes"], publish, lambda s: (s, silent), state)
        shared, extra = (extra, ()) if flags.shares_extra else ((), extra)
        peers = put(peers, row["worker"], (state, extra))
        points = put(points, row["worker"], stored)
        messages, mixes = put(messages, row["message"], message), put(mixes, row["mix"], mix)
        return (peers, points, messages, mixes, shared), measured

    return loop(body, carry, rows, count)


class CompiledPeers(Compiled):
    """Replays a method between peers."""

    program = staticmethod(peer_program)

    def __init__(self, setting: Setting):
        super().__init__(setting)
        trace, learning, algorithm = setting.trace, setting.learning, setting.learning.algorithm
        # what all share changes with each step: then steps must keep the order of the trace
        plan = plan_peers(trace, setting.factor, setting.cuts, in_order=setting.shares_extra)
        self.rows, self.gradient_of = plan.rows, plan.trace_row
        self._done = dict(zip(plan.cuts, plan.done, strict=True))
        self.flags = PeerFlags(plan.apart, plan.resets, setting.measures, setting.shares_extra)
        state = algorithm.init(setting.params)
        message = zeros_of(jax.eval_shape(lambda s: rules.publish(learning, s, setting.first_row(), 1.0)[1], state))
        points = stack(algorithm.point(state), trace.num_workers) if plan.apart else ()
        share = jnp.zeros((1,))
        mix = zeros_of(jax.eval_shape(lambda m: rules.weighted_sum((m,), share), message))
        pools = stack(message, plan.message_slots), stack(mix, plan.mix_slots)
        extra, shared = ((), strong(setting.extra)) if setting.shares_extra else (setting.extra, ())
        self.carry = stack((state, extra), trace.num_workers), points, *pools, shared

    def planned(self, cut: int) -> int:
        return self._done[cut]

    def model(self) -> tuple[Any, Any, dict[str, Any]]:
        """Parameters, extra, and the distance of the peers from their mean."""
        (states, extras), *_, shared = self.carry
        extra = shared if self.flags.shares_extra else rules.evaluated_extra(self.setting.statistics, extras)
        algorithm = self.setting.learning.algorithm
        return algorithm.final(states), extra, {"spread": spread(algorithm, states)}

    @property
    def pools(self) -> Any:
        """What is stacked, for tests."""
        return self.carry[:4]
