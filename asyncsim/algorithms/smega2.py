"""SMEGA2: asynchronous training with a single momentum buffer."""

from __future__ import annotations

from typing import Annotated, Any

import jax
import jax.numpy as jnp
from msgspec import Meta

from asyncsim.algorithms.base import Context, Message, Params, State, algorithm, static
from asyncsim.algorithms.parts import ServerDescent, added, moved, zeros_like
from asyncsim.records import Fraction, register


@register("smega2")
@algorithm
class SMEGA2(ServerDescent):
    """SMEGA2: one momentum for all workers, moved once in N updates, and a look ahead by N updates.

        d = g + wd theta;  s = (s + 1) mod N;  G = G + d
        theta = theta - eta (d + gamma m)                       with the m of before
        if s = 0:  m = gamma m + (1 - dampening) G / N;  G = 0
        send Theta = theta - eta gamma ((N + s (gamma - 1)) m + s/N G)      (advanced)
        send Theta = theta - eta gamma N m                                  (naive: ``advanced`` false)

    m is the momentum, G the sum of the gradients since it moved, s their number; N is ``momentum_cycle``, by default
    the number of workers. The look ahead takes N - s updates with the present m and s with what is known of the next
    (derived from the code). A gradient's weights add up to eta / (1 - gamma), as in plain momentum, so the learning
    rate is that of one worker. N counts updates: where one takes a gradient of each worker, a cycle of 1 is meant.

    Server: 3 buffers (theta, m, G) for any number of workers, and for a moment the look ahead. Cohen, Hakimi and
    Schuster, ICPP 2022, as in the authors' code: advanced, weight decay at the server's parameters (``decay_at`` worker
    is an option of ours).
    """

    momentum: Fraction = 0.9
    momentum_cycle: Annotated[int, Meta(ge=1, lt=2**31)] | None = None
    dampening: Fraction = 0.0
    advanced: bool = static(default=True)

    def buffers(self, params: Params) -> dict[str, Any]:
        zero = zeros_like(params)
        return {"params": params, "momentum": zero, "gradients": zero, "since": jnp.zeros((), int)}

    def _cycle(self, context: Context) -> Any:
        return context.num_workers if self.momentum_cycle is None else self.momentum_cycle

    def apply(self, state: State, message: Message, context: Context) -> State:
        direction, cycle = message["direction"], self._cycle(context)
        count = (state["since"] + 1) % cycle
        total = added(state["gradients"], 1, direction)
        step = added(direction, self.momentum, state["momentum"])
        share = (1 - self.dampening) / cycle

        def turned(m: jax.Array, g: jax.Array) -> jax.Array:
            return jnp.where(count == 0, self.momentum * m + share * g, m)

        new = {
            "params": moved(state["params"], context.learning_rate, step),
            "momentum": jax.tree.map(turned, state["momentum"], total),
            "gradients": jax.tree.map(lambda g: jnp.where(count == 0, 0, g), total),
            "since": count,
        }
        return self.remember({**state, **new}, message["noted"], step, context)

    def view(self, state: State, context: Context) -> Params:
        cycle, count = self._cycle(context), state["since"]

        def ahead(m: jax.Array, g: jax.Array) -> jax.Array:
            if not self.advanced:
                return cycle * m
            return (cycle + count * (self.momentum - 1)) * m + count / cycle * g

        direction = jax.tree.map(ahead, state["momentum"], state["gradients"])
        return moved(state["params"], context.learning_rate * self.momentum, direction)
