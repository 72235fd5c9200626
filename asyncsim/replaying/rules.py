"""What one event does to the slices it touches: shared by both ways of replaying a trace.

Functions of one algorithm, one problem's rule, and the slices of one worker. Which slices those are, and where they are
stored, is the caller's business.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from asyncsim.algorithms import Algorithm, Context

MEASURES = ("gap", "gradient_norm", "update_norm")


class Learning(NamedTuple):
    """What stays the same over a whole replay, as arguments of a compiled program (``rule`` is static)."""

    algorithm: Algorithm  # every leaf an array
    train: Any  # the training samples
    key: jax.Array  # from which each gradient's key is folded


def context(learning: Learning, row: dict[str, Any], **more: Any) -> Context:
    """The context of an event; ``row`` holds its columns as scalars."""
    rate = learning.algorithm.learning_rate * row["factor"]
    return Context(rate, row["worker"], row["step"], row["staleness"], key=row_key(learning, row), **more)


def row_key(learning: Learning, row: dict[str, Any]) -> jax.Array:
    """The random key of (seed, worker, step)."""
    return jax.random.fold_in(jax.random.fold_in(learning.key, row["worker"]), row["step"])


def gradient(rule: Any, learning: Learning, point: Any, extra: Any, row: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Batch loss, gradient and new extra at a point, on the row's mini-batch."""
    batch = jax.tree.map(lambda samples: samples[row["batch"]], learning.train)
    # the algorithm may use the row's key as well: never the same key twice
    key = jax.random.fold_in(row_key(learning, row), 1)
    (loss, extra), g = jax.value_and_grad(rule.loss, has_aux=True)(point, extra, batch, key)
    return loss, g, extra


def send(learning: Learning, own: Any, g: Any, row: dict[str, Any], sent: Any) -> tuple[Any, Any, Any]:
    """A server method's worker takes its gradient: what it keeps after ``local``, then after ``outgoing``, and the
    message."""
    at = context(learning, row, count=row["count"], sent=sent)
    stays = learning.algorithm.local(own, g, at)  # type: ignore[attr-defined]
    own, message = learning.algorithm.outgoing(stays, g, at)  # type: ignore[attr-defined]
    return stays, own, message


def receive(learning: Learning, state: Any, kept: Any, message: Any, row: dict[str, Any], sent: Any) -> tuple[Any, Any]:
    """The server takes an arrival: what it keeps for this worker, and what goes into the update."""
    at = context(learning, row, count=row["count"], sent=sent)
    return learning.algorithm.receive(state, kept, message, at)  # type: ignore[attr-defined]


def update(learning: Learning, state: Any, total: Any, row: dict[str, Any], sent: Any) -> Any:
    """The server makes an update."""
    at = context(learning, row, count=row["count"], sent=sent)
    return same_types(state, learning.algorithm.apply(state, total, at))  # type: ignore[attr-defined]


def same_types(old: Any, new: Any) -> Any:
    """A state keeps the types of its arrays, whatever the arithmetic promoted them to."""
    return jax.tree.map(lambda a, b: jnp.asarray(b, a.dtype), old, new)


def weighted_sum(messages: tuple[Any, ...], weights: Any) -> Any:
    """The sum of weights[k] x messages[k]."""
    return jax.tree.map(lambda *leaves: sum(w * x for w, x in zip(weights, leaves, strict=True)), *messages)


def measure(on: bool, before: Any, point: Any, g: Any, after: Any) -> dict[str, jax.Array]:
    """Gap (root-mean-square distance from the point of the gradient to the parameters it meets), and two norms."""
    if not on:
        return {}
    distance = jax.tree.map(jnp.subtract, before, point)
    moved = jax.tree.map(jnp.subtract, after, before)
    size = sum(x.size for x in jax.tree.leaves(point))
    values = (jnp.sqrt(square(distance) / size), jnp.sqrt(square(g)), jnp.sqrt(square(moved)))
    return dict(zip(MEASURES, values, strict=True))


def square(tree: Any) -> jax.Array:
    """Sum of squares over all arrays."""
    return sum((jnp.vdot(x, x) for x in jax.tree.leaves(tree)), jnp.zeros(()))


def spread(algorithm: Any, states: Any) -> jax.Array:
    """Root-mean-square distance of the peers' models from their mean; ``states`` are stacked along axis 0."""
    models = jax.vmap(algorithm.point)(states)
    away = jax.tree.map(lambda x: x - jnp.mean(x, 0), models)
    return jnp.sqrt(square(away) / sum(x.size for x in jax.tree.leaves(away)))


def mean_extra(extras: Any) -> Any:
    """The workers' mean of what their models keep besides parameters; ``extras`` are stacked along axis 0."""
    return jax.tree.map(lambda x: jnp.mean(x, 0).astype(x.dtype), extras)
