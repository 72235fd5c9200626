"""Layers that keep activations at mean 0 and variance 1, then scale and shift them by what they learn."""

from __future__ import annotations

import jax
import jax.numpy as jnp

EPSILON = 1e-5

Layer = dict[str, jax.Array]


def new_norm(channels: int) -> Layer:
    """Scale 1 and offset 0, (channels,) each."""
    return {"scale": jnp.ones(channels), "offset": jnp.zeros(channels)}


def layer_norm(layer: Layer, x: jax.Array) -> jax.Array:
    """Each vector (last axis) by its own mean and variance. Ba et al., arXiv 1607.06450 (2016)."""
    return _scaled(layer, x, jnp.mean(x, -1, keepdims=True), jnp.var(x, -1, keepdims=True))


def group_norm(layer: Layer, x: jax.Array, groups: int) -> jax.Array:
    """Each image's channels in groups, by the mean and variance of a group. x: (n, height, width, channels).

    Wu and He, ECCV 2018. Knows nothing of the rest of the batch.
    """

    def of_group(of_channel: jax.Array) -> jax.Array:
        """Means over the channels of each group, for each channel: (n, channels) from the same."""
        n, channels = of_channel.shape
        mean = of_channel.reshape(n, groups, channels // groups).mean(-1)
        return jnp.repeat(mean, channels // groups, axis=1)

    away = x - of_group(x.mean((1, 2)))[:, None, None]
    variance = of_group(jnp.square(away).mean((1, 2)))[:, None, None]
    return away * (jax.lax.rsqrt(variance + EPSILON) * layer["scale"]) + layer["offset"]


def new_statistics(channels: int) -> Layer:
    """Moving mean 0 and variance 1, (channels,) each: what batch norm keeps besides parameters."""
    return {"mean": jnp.zeros(channels), "variance": jnp.ones(channels)}


def batch_norm(layer: Layer, kept: Layer, x: jax.Array, momentum: float, training: bool) -> tuple[jax.Array, Layer]:
    """Each channel by the mean and variance of the batch, or, not in training, by those kept. x: (n, h, w, channels).

    Kept are moving averages: momentum x kept + (1 - momentum) x the batch's, whose variance is that of the batch itself
    (a division by n h w; Ioffe and Szegedy, ICML 2015, divide the one that is kept by one less).
    """
    if not training:
        return _scaled(layer, x, kept["mean"], kept["variance"]), kept
    found = {"mean": jnp.mean(x, (0, 1, 2)), "variance": jnp.var(x, (0, 1, 2))}
    moved = {k: momentum * kept[k] + (1 - momentum) * found[k] for k in kept}
    return _scaled(layer, x, found["mean"], found["variance"]), moved


def _scaled(layer: Layer, x: jax.Array, mean: jax.Array, variance: jax.Array) -> jax.Array:
    return (x - mean) * (jax.lax.rsqrt(variance + EPSILON) * layer["scale"]) + layer["offset"]
