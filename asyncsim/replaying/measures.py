"""What is measured on each gradient, and between peers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def measure(on: bool, before: Any, point: Any, g: Any, after: Any, *holders: Any) -> dict[str, jax.Array]:
    """What is measured on a gradient that was taken at ``point``, and met ``before``, which became ``after``.

    gap: root-mean-square distance from the point to what the gradient meets; normalised gap: over the root mean square
    of the gradient; effective learning rate: how far the parameters move against the gradient, per unit of it; length
    of the momentum that it meets, and the cosine of the angle between them. ``holders`` are where a momentum may be:
    the first that has one is taken. What is divided by the length of a gradient of 0 is 0.
    """
    if not on:
        return {}
    distance, change = jax.tree.map(jnp.subtract, before, point), jax.tree.map(jnp.subtract, after, before)
    away, power = jnp.sqrt(square(distance)), square(g)
    length = jnp.sqrt(power)
    values = {
        "gap": away / np.sqrt(sum(x.size for x in jax.tree.leaves(point))),
        "normalised_gap": ratio(away, length),
        "gradient_norm": length,
        "update_norm": jnp.sqrt(square(change)),
        "effective_learning_rate": ratio(-product(change, g), power),
    }
    velocity = momentum_in(point, holders)
    if velocity is not None:
        norm = jnp.sqrt(square(velocity))
        values |= {"momentum_norm": norm, "momentum_cosine": ratio(product(velocity, g), norm * length)}
    return values


def momentum_in(params: Any, holders: tuple[Any, ...]) -> Any:
    """What a dict calls ``"momentum"``, if it is shaped like the parameters, or None."""
    for holder in holders:
        if isinstance(holder, dict) and "momentum" in holder and same_shape(holder["momentum"], params):
            return holder["momentum"]
    return None


def same_shape(a: Any, b: Any) -> bool:
    """Whether two trees have the same structure and arrays of the same shapes."""
    if jax.tree.structure(a) != jax.tree.structure(b):  # type: ignore[operator]
        return False
    return all(jnp.shape(x) == jnp.shape(y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def ratio(a: Any, b: Any) -> jax.Array:
    """a / b, or 0 where b is 0."""
    return jnp.where(b == 0, 0, a / jnp.where(b == 0, 1, b))


def product(a: Any, b: Any) -> jax.Array:
    """The inner product over all arrays."""
    return sum((jnp.vdot(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)), jnp.zeros(()))


def square(tree: Any) -> jax.Array:
    """Sum of squares over all arrays."""
    return sum((jnp.vdot(x, x) for x in jax.tree.leaves(tree)), jnp.zeros(()))


def spread(algorithm: Any, states: Any) -> jax.Array:
    """Root-mean-square distance of the peers' models from their mean; ``states`` are stacked along axis 0."""
    models = jax.vmap(algorithm.point)(states)
    away = jax.tree.map(lambda x: x - jnp.mean(x, 0), models)
    return jnp.sqrt(square(away) / sum(x.size for x in jax.tree.leaves(away)))
