"""What a replay is held against: loops of plain momentum SGD, in float32, that know nothing of a cluster."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax

from asyncsim.algorithms import SGD
from asyncsim.bench.timing import spent
from asyncsim.problems import Problem
from asyncsim.replaying.preparing import prepare
from asyncsim.schedules import Schedule
from asyncsim.trace import Trace

RATE, MOMENTUM = 0.05, 0.9


class Bare:
    """The gradients of a trace, on the same mini-batches, one after another at the newest parameters."""

    def __init__(self, trace: Trace, problem: Problem):
        setting, _ = prepare(trace, SGD(RATE), problem, seed=0, schedule=Schedule(), cuts=[len(trace)], measures=False)
        rows = trace.gradients
        self._train, self._key, self._rule = setting.learning.train, setting.learning.key, setting.rule
        self._batches = setting.batches.indices(trace.worker[rows], trace.step[rows])
        self._params, self._extra = setting.params, setting.extra

    def _start(self) -> tuple[Any, Any, Any]:
        copied = jax.tree.map(lambda x: x.copy(), (self._params, self._extra))
        return copied[0], jax.tree.map(jax.numpy.zeros_like, self._params), copied[1]

    def scan(self) -> Any:
        """All in one compiled loop; the parameters at the end."""
        return jax.block_until_ready(_scan(self._start(), self._train, self._batches, self._key, self._rule)[0][0])

    def calls(self) -> Any:
        """A compiled call for each; the parameters at the end."""
        state = self._start()
        for batch in self._batches:
            state = _call(state, self._train, batch, self._key, self._rule)
        return jax.block_until_ready(state[0])

    def events(self, workers: np.ndarray) -> Any:
        """As the papers' code simulates: weights are copied into a model for each event, and a gradient out of it. Each
        worker computes where it was left by its own last event; the server's parameters at the end."""
        server = [np.array(x) for x in jax.tree.leaves(self._params)]
        velocity = [np.zeros_like(x) for x in server]
        shape = jax.tree.structure(self._params)
        held = [[x.copy() for x in server] for _ in range(int(workers.max()) + 1)]
        for worker, batch in zip(workers.tolist(), self._batches, strict=True):
            params = jax.tree.unflatten(shape, [jax.numpy.asarray(x) for x in held[worker]])
            gradient = _gradient(params, self._extra, self._train, batch, self._key, self._rule)
            for x, v, g in zip(server, velocity, map(np.asarray, jax.tree.leaves(gradient)), strict=True):
                v *= MOMENTUM
                v += g
                x -= RATE * v
            held[worker] = [x.copy() for x in server]
        return jax.tree.unflatten(shape, server)

    def fastest(self) -> Callable[[], Any]:
        """The better of ``scan`` and ``calls``."""
        loops = (self.scan, self.calls)
        for loop in loops:
            loop()  # compiles
        return min(loops, key=lambda loop: spent(loop).wall)


def _step(state: Any, train: Any, batch: Any, key: Any, rule: Any) -> tuple[Any, Any]:
    params, velocity, extra = state
    samples = jax.tree.map(lambda x: x[batch], train)
    (loss, extra), g = jax.value_and_grad(rule.loss, has_aux=True)(params, extra, samples, key)
    velocity = jax.tree.map(lambda v, g: MOMENTUM * v + g, velocity, g)
    return (jax.tree.map(lambda x, v: x - RATE * v, params, velocity), velocity, extra), loss


@functools.partial(jax.jit, static_argnames="rule", donate_argnums=0)
def _scan(state: Any, train: Any, batches: Any, key: Any, rule: Any) -> Any:
    return lax.scan(lambda state, batch: _step(state, train, batch, key, rule), state, batches)


@functools.partial(jax.jit, static_argnames="rule", donate_argnums=0)
def _call(state: Any, train: Any, batch: Any, key: Any, rule: Any) -> Any:
    return _step(state, train, batch, key, rule)[0]


@functools.partial(jax.jit, static_argnames="rule")
def _gradient(params: Any, extra: Any, train: Any, batch: Any, key: Any, rule: Any) -> Any:
    samples = jax.tree.map(lambda x: x[batch], train)
    return jax.grad(rule.loss, has_aux=True)(params, extra, samples, key)[0]
