"""The fast way to replay a server method: a compiled loop over its plan."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from asyncsim.problems.batches import Batches
from asyncsim.replaying import rules
from asyncsim.replaying.pools import PROGRAMS, loop, padded, put, run_chunks, seal, stack, take, zeros_of
from asyncsim.replaying.rules import Learning
from asyncsim.replaying.server_plan import plan_server
from asyncsim.trace import Trace


class ServerFlags(NamedTuple):
    """What occurs in the trace at all; what does not is left out of the program."""

    grouped: bool
    local_steps: bool
    resets: bool
    measures: bool


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
        total = zeros_of(jax.eval_shape(_contribution, learning, state, workers)) if self.plan.grouped else ()
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
        rows = {k: padded(v[:1]) for k, v in self.plan.rows.items()}
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
            nothing = zeros_of(jax.eval_shape(compute, *slices)[-1])

            def reset(state: Any, total: Any, own: Any, kept: Any, extra: Any, sent: Any) -> Any:
                return state, total, rules.same_types(own, algorithm.start(sent)), kept, extra, nothing

            done = lax.cond(row["gradient"], compute, reset, *slices)
        else:
            done = seal(row["on"], compute, *slices)
        state, total, own, kept, extra, measured = done
        workers = put(workers, row["worker"], (own, kept, extra))
        return (state, total, workers, put(views, row["makes"], algorithm.view(state))), measured

    return loop(body, carry, rows, count)
