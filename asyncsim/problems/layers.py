"""Layers that several models are made of: plain functions over dicts of arrays."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from asyncsim.errors import InputError

Layer = dict[str, jax.Array]


def new_dense(key: jax.Array, fan_in: int, fan_out: int, gain: float = math.sqrt(2)) -> Layer:
    """Weight (fan_in, fan_out): normal of standard deviation gain/sqrt(fan_in) (He et al., ICCV 2015: sqrt(2), for
    what follows a ReLU); bias (fan_out,): 0."""
    weight = jnp.sqrt(gain**2 / fan_in) * jax.random.normal(key, (fan_in, fan_out))
    return {"weight": weight, "bias": jnp.zeros(fan_out)}


def dense(layer: Layer, x: jax.Array) -> jax.Array:
    """(..., fan_out) from (..., fan_in)."""
    return x @ layer["weight"] + layer["bias"]


def new_convolution(key: jax.Array, kernel: int, channels_in: int, channels_out: int) -> jax.Array:
    """Weight (kernel, kernel, channels_in, channels_out), by He et al. (2015)."""
    shape = (kernel, kernel, channels_in, channels_out)
    return jnp.sqrt(2 / (kernel * kernel * channels_in)) * jax.random.normal(key, shape)


def convolution(x: jax.Array, weight: jax.Array, stride: int = 1) -> jax.Array:
    """(n, ceil(height / stride), ceil(width / stride), channels_out) from (n, height, width, channels_in).

    Zeros around the image keep its size at stride 1, as ``padding="SAME"`` does elsewhere. Written as one matrix
    product of shifted slices: XLA's convolution is many times slower inside a compiled loop on the CPU.
    """
    kernel, _, channels_in, channels_out = weight.shape
    sizes = [-(-side // stride) for side in x.shape[1:3]]
    around = [max((size - 1) * stride + kernel - side, 0) for size, side in zip(sizes, x.shape[1:3], strict=True)]
    x = jnp.pad(x, ((0, 0), *((a // 2, a - a // 2) for a in around), (0, 0)))

    def shifted(down: int, right: int) -> jax.Array:
        rows, columns = (
            (first, first + (size - 1) * stride + 1) for first, size in zip((down, right), sizes, strict=True)
        )
        return x[:, rows[0] : rows[1] : stride, columns[0] : columns[1] : stride]

    patches = jnp.concatenate([shifted(i, j) for i in range(kernel) for j in range(kernel)], axis=-1)
    return patches @ weight.reshape(kernel * kernel * channels_in, channels_out)


def max_pool(x: jax.Array) -> jax.Array:
    """(n, height // 2, width // 2, channels): the largest of each 2x2 square; an odd last row or column falls away."""
    height, width = (side // 2 * 2 for side in x.shape[1:3])
    quarters = [x[:, i:height:2, j:width:2] for i in range(2) for j in range(2)]
    return jnp.maximum(jnp.maximum(quarters[0], quarters[1]), jnp.maximum(quarters[2], quarters[3]))


def check_images(data_set: Any, halvings: int) -> None:
    """Raise InputError unless the samples are images that can be halved so often."""
    shape = data_set.shape
    if data_set.sparse or len(shape) != 3:
        what = f"a convolution needs images, of shape (height, width, channels); {data_set.name} has samples of {shape}"
        raise InputError(what, "data_set")
    if min(shape[:2]) < 2**halvings:
        what = f"images of {shape[0]}x{shape[1]} can be halved {min(shape[:2]).bit_length() - 1} times, not {halvings}"
        raise InputError(what, "channels")
