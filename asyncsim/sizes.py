"""What a method's state takes on the server and on each worker: in buffers as large as the parameters, and in bytes."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from asyncsim.algorithms import Algorithm, Context, PeerAlgorithm, ServerAlgorithm
from asyncsim.problems import Problem


class Memory(NamedTuple):
    """A buffer holds as many numbers as the parameters; counters and other single numbers are in the bytes alone.

    ``server``: the server's own state, what it keeps for each worker, a copy of what each worker was sent where the
    method uses it (``keeps_sent``), and the sum under way where an update is made of several gradients. ``worker``:
    what the method keeps on one worker (of a peer: its whole state), besides the parameters that it pulled and the
    gradient, which every method has.
    """

    server_buffers: float
    server_bytes: int
    worker_buffers: float
    worker_bytes: int


def memory(algorithm: Algorithm, problem: Problem | Any, num_workers: int, *, summed: bool = False) -> Memory:
    """The memory of a method's state.

    Arguments:
        algorithm: the method
        problem: what is learned, or its parameters (a pytree of arrays)
        num_workers: how many workers there are
        summed: whether an update is made of several gradients (a barrier, a group), whose sum the server keeps

    Example::

        memory(SMEGA2(), MLP(), 64).server_buffers == 3
    """
    if isinstance(problem, Problem):
        problem = jax.eval_shape(lambda key: problem.init(key)[0], jax.random.key(0))
    params = jax.eval_shape(lambda p: jax.tree.map(jnp.asarray, p), problem)
    if isinstance(algorithm, PeerAlgorithm):
        return Memory(0.0, 0, *_sizes(params, (jax.eval_shape(algorithm.init, params), 1)))
    assert isinstance(algorithm, ServerAlgorithm)
    state = jax.eval_shape(lambda p: algorithm.init(p, num_workers), params)
    kept, own = (jax.eval_shape(f, params) for f in (algorithm.keep, algorithm.start))
    parts = [(state, 1), (kept, num_workers)]
    if algorithm.keeps_sent:
        parts.append((params, num_workers))
    if summed:
        parts.append((jax.eval_shape(lambda *x: _part(algorithm, *x), state, kept, own, params), 1))
    return Memory(*_sizes(params, *parts), *_sizes(params, (own, 1)))


def _part(algorithm: ServerAlgorithm, state: Any, kept: Any, own: Any, params: Any) -> Any:
    """What one arrival adds to an update."""
    context = Context(jnp.zeros(()), 0, 0, 0, sent=params, key=jax.random.key(0))
    _, message = algorithm.outgoing(own, params, context)
    return algorithm.receive(state, kept, message, context)[1]


def _sizes(params: Any, *parts: tuple[Any, int]) -> tuple[float, int]:
    """Buffers and bytes of several trees, each so many times."""
    leaves = [(x, times) for tree, times in parts for x in jax.tree.leaves(tree)]
    whole = sum(times * x.size for x, times in leaves if x.ndim)
    model = sum(x.size for x in jax.tree.leaves(params) if x.ndim) or sum(x.size for x in jax.tree.leaves(params))
    return whole / model, sum(times * x.size * x.dtype.itemsize for x, times in leaves)
