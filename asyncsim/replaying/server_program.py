"""The fast way to replay a server method: a compiled loop over its plan."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from asyncsim.replaying import rules
from asyncsim.replaying.measures import measure
from asyncsim.replaying.pools import PROGRAMS, Compiled, loop, put, seal, stack, strong, take, zeros_of
from asyncsim.replaying.rules import Learning, Setting
from asyncsim.replaying.server_plan import plan_server


class ServerFlags(NamedTuple):
    """What occurs in the trace at all; what does not is left out of the program."""

    grouped: bool
    local_steps: bool
    resets: bool
    measures: bool
    shares_extra: bool = False


@functools.partial(jax.jit, static_argnames=("rule", "flags"), donate_argnums=0)
def server_program(carry: Any, learning: Learning, rows: Any, count: Any, rule: Any, flags: ServerFlags) -> Any:
    """Carry: the server's state, the update under way, pools of workers (own, kept, extra) and of views, and the extra
    that all workers share (or nothing: then each has its own)."""
    PROGRAMS.append("server")
    algorithm = learning.algorithm

    def body(carry: Any, row: Any) -> Any:
        state, total, workers, views, shared = carry
        sent, (own, kept, extra) = take(views, row["seen"]), take(workers, row["worker"])
        extra = shared if flags.shares_extra else extra

        def compute(state: Any, total: Any, own: Any, kept: Any, extra: Any, sent: Any) -> Any:
            point = algorithm.point(own, sent)
            loss, g, new_extra = rules.gradient(rule, learning, point, extra, row)
            met, mine = kept, own
            stays, left, message = rules.send(learning, own, g, row, sent)

            def accept(state: Any, total: Any, kept: Any) -> Any:
                kept, part = rules.receive(learning, state, kept, message, row, sent)
                if not flags.grouped:
                    return rules.update(learning, state, part, row, sent), total, kept
                old = jax.tree.map(lambda t: jnp.where(row["begins"], 0, t), total)
                total = jax.tree.map(lambda t, m: t + row["weight"] * m, old, part)
                close = functools.partial(rules.update, learning, row=row, sent=sent)
                return lax.cond(row["closes"], close, lambda s, t: s, state, total), total, kept

            if flags.grouped or flags.local_steps:  # some go no further than the worker, or are dropped
                new_state, total, kept = lax.cond(row["arrives"], accept, lambda *same: same, state, total, kept)
            else:
                new_state, total, kept = accept(state, total, kept)
            own = jax.tree.map(lambda a, b: jnp.where(row["sends"], a, b), left, stays) if flags.local_steps else left
            before, after = algorithm.final(state), algorithm.final(new_state)
            measures = measure(flags.measures, before, point, g, after, met, mine, state)
            return new_state, total, own, kept, new_extra, {"loss": loss, **measures}

        slices = (state, total, own, kept, extra, sent)
        if flags.resets:
            nothing = zeros_of(jax.eval_shape(compute, *slices)[-1])

            def reset(state: Any, total: Any, own: Any, kept: Any, extra: Any, sent: Any) -> Any:
                return state, total, rules.same_types(own, algorithm.start(sent)), kept, extra, nothing

            done = lax.cond(row["gradient"], compute, reset, *slices)
        else:
            done = seal(row["on"], compute, *slices)
        state, total, own, kept, extra, measured = done
        shared, extra = (extra, ()) if flags.shares_extra else ((), extra)
        workers = put(workers, row["worker"], (own, kept, extra))
        view = functools.partial(rules.view, learning, row=row)
        if flags.grouped or flags.local_steps or flags.resets:  # most rows make no version
            made = lax.cond(row["closes"], view, lambda s: zeros_of(jax.eval_shape(view, s)), state)
        else:
            made = view(state)
        return (state, total, workers, put(views, row["makes"], made), shared), measured

    return loop(body, carry, rows, count)


class CompiledServer(Compiled):
    """Replays a server method."""

    program = staticmethod(server_program)

    def __init__(self, setting: Setting):
        super().__init__(setting)
        trace, learning, params = setting.trace, setting.learning, setting.params
        plan = plan_server(trace, setting.factor)
        self.rows, self._trace_row = plan.rows, plan.trace_row
        self.gradient_of = np.where(plan.rows["gradient"], plan.trace_row, -1)
        self.flags = ServerFlags(plan.grouped, plan.local_steps, plan.resets, setting.measures, setting.shares_extra)
        algorithm = learning.algorithm
        state = strong(algorithm.init(params, trace.num_workers))
        extra, shared = ((), strong(setting.extra)) if setting.shares_extra else (setting.extra, ())
        workers = stack((algorithm.start(params), algorithm.keep(params), extra), trace.num_workers)
        row = setting.first_row()
        example = functools.partial(rules.contribution, learning, row=row)
        own, kept, _ = take(workers, 0)
        total = zeros_of(jax.eval_shape(example, state, own, kept)) if plan.grouped else ()
        self.carry = state, total, workers, stack(rules.view(learning, state, row), plan.slots), shared

    def planned(self, cut: int) -> int:
        return int(np.searchsorted(self._trace_row, cut))

    def model(self) -> tuple[Any, Any, dict[str, Any]]:
        """Parameters, extra, and what else is measured at an evaluation."""
        state, _, (_, _, extras), _, shared = self.carry
        extra = shared if self.flags.shares_extra else rules.evaluated_extra(self.setting.statistics, extras)
        return self.setting.learning.algorithm.final(state), extra, {}

    @property
    def pools(self) -> Any:
        """What is stacked, for tests."""
        return self.carry[2:4]
