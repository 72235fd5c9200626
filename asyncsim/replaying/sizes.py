"""What a method's state takes on the server and on each worker: in buffers as large as the parameters, and in bytes."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from asyncsim.algorithms import Algorithm, PeerAlgorithm, ServerAlgorithm
from asyncsim.errors import InputError, expect, within
from asyncsim.problems import Problem
from asyncsim.replaying import rules
from asyncsim.replaying.measures import same_shape
from asyncsim.replaying.preparing import arrays
from asyncsim.replaying.rules import FIRST_ROW, Learning
from asyncsim.workload import Costs


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
    expect(algorithm, Algorithm, "algorithm")
    if isinstance(num_workers, bool) or not isinstance(num_workers, int | np.integer) or num_workers < 1:
        raise InputError(f"expected a whole number >= 1, got {num_workers!r}", "num_workers")
    if isinstance(problem, Problem):
        params = jax.eval_shape(lambda key: problem.init(key)[0], jax.random.key(0))
    else:
        if problem is None or isinstance(problem, type):
            raise InputError(f"expected a Problem, or its parameters, got {problem!r}", "problem")
        params = jax.eval_shape(lambda: arrays(problem))
    algorithm = within("algorithm", arrays, algorithm, int, "")  # as a replay has it
    if isinstance(algorithm, PeerAlgorithm):
        return Memory(0.0, 0, *_sizes(params, (jax.eval_shape(algorithm.init, params), 1)))
    assert isinstance(algorithm, ServerAlgorithm)
    state = jax.eval_shape(lambda p: algorithm.init(p, num_workers), params)
    kept, own = (jax.eval_shape(f, params) for f in (algorithm.keep, algorithm.start))
    parts = [(state, 1), (kept, num_workers)]
    if algorithm.keeps_sent:
        parts.append((params, num_workers))
    if summed:
        learning = Learning(algorithm, (), jax.random.key(0), jnp.asarray(num_workers))
        example = functools.partial(rules.contribution, learning, row=FIRST_ROW)
        parts.append((jax.eval_shape(example, state, own, kept), 1))
    return Memory(*_sizes(params, *parts), *_sizes(params, (own, 1)))


def costs_of(algorithm: Algorithm, problem: Problem | Any, *, summed: bool = False) -> Costs:
    """What a method sends (``algorithm.costs``), and the buffers that the server reads or writes for one update.

    They are its state, what it keeps for a worker and has sent it, and what arrives (``summed``: the sum of several).
    """
    costs = type(algorithm).costs
    if algorithm.kind != "server":
        return costs
    buffers = memory(algorithm, problem, 1, summed=summed).server_buffers
    return dataclasses.replace(costs, update=buffers + (not summed))


def _sizes(params: Any, *parts: tuple[Any, int]) -> tuple[float, int]:
    """Buffers and bytes of several trees, each so many times."""
    model = sum(x.size for x in jax.tree.leaves(params))
    buffers = sum(times * _buffers(tree, params, model) for tree, times in parts)
    held = sum(times * x.size * x.dtype.itemsize for tree, times in parts for x in jax.tree.leaves(tree))
    return float(buffers), held


def _buffers(tree: Any, params: Any, model: int) -> float:
    """How many times the parameters are in a tree, and what else is an array, as a part of them."""
    pieces = jax.tree.leaves(tree, is_leaf=lambda piece: same_shape(piece, params))
    whole = [same_shape(piece, params) for piece in pieces]
    rest = sum(x.size for x, counted in zip(pieces, whole, strict=True) if not counted and x.ndim)
    return sum(whole) + (rest / model if model else 0)
