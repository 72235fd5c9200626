"""A small causal transformer that predicts the next character of a text."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from asyncsim.data.base import Data
from asyncsim.data.text import Text
from asyncsim.errors import InputError
from asyncsim.problems.base import Problem
from asyncsim.problems.classifier import cross_entropy, figures
from asyncsim.problems.layers import Layer, dense, new_dense
from asyncsim.problems.norms import layer_norm, new_norm
from asyncsim.records import Count, checked, register


@register("char_transformer")
@checked
class CharTransformer(Problem):
    """Next-character prediction: embeddings of character and place, pre-norm blocks of attention and a wide layer.

    Each of the ``layers`` blocks is x + attention(norm(x)), then x + wide(norm(x)): causal self-attention with
    ``heads`` heads, and a layer of 4 x ``width`` with GELU (Vaswani et al., NeurIPS 2017; norms first as in GPT-2,
    Radford et al. 2019). Loss: mean cross-entropy of the next character, in nats; accuracy: share guessed right.
    """

    text: Text = Text()
    layers: Count = 2
    width: Count = 32
    heads: Count = 4

    evaluated_at_once = 250

    def validate(self) -> None:
        if self.width % self.heads:
            raise InputError(f"a width of {self.width} cannot be cut into {self.heads} heads", "heads")

    def init(self, key: jax.Array) -> tuple[Any, Any]:
        width, characters = self.width, len(self.text.vocabulary)
        keys = iter(jax.random.split(key, 3 + 4 * self.layers))
        params: dict[str, Any] = {
            # smaller than the blocks' output, which then matters from the start; the logits near 0: all equally likely
            "characters": 0.5 * jax.random.normal(next(keys), (characters, width)),
            "places": 0.1 * jax.random.normal(next(keys), (self.text.context, width)),
            "last_norm": new_norm(width),
            "last": new_dense(next(keys), width, characters, gain=0.5),
        }
        small = 1 / math.sqrt(2 * self.layers)  # so that the sum of all blocks has the size of one
        for k in range(self.layers):
            params[f"block{k}"] = {
                "attention_norm": new_norm(width),
                "queries_keys_values": new_dense(next(keys), width, 3 * width, gain=1.0),
                "attention_out": new_dense(next(keys), width, width, gain=small),
                "wide_norm": new_norm(width),
                "wide_in": new_dense(next(keys), width, 4 * width, gain=1.0),
                "wide_out": new_dense(next(keys), 4 * width, width, gain=math.sqrt(2) * small),  # after a GELU
            }
        params |= {name: params.pop(name) for name in ("last_norm", "last")}  # in forward order
        return params, ()

    def logits(self, params: Any, x: jax.Array) -> jax.Array:
        """(n, length, characters) for characters (n, length) int, length up to the context."""
        h = params["characters"][x] + params["places"][: x.shape[1]]
        for k in range(self.layers):
            block = params[f"block{k}"]
            h = h + attention(block, layer_norm(block["attention_norm"], h), self.heads)
            inner = jax.nn.gelu(dense(block["wide_in"], layer_norm(block["wide_norm"], h)))
            h = h + dense(block["wide_out"], inner)
        return dense(params["last"], layer_norm(params["last_norm"], h))

    def loss(self, params: Any, extra: Any, batch: Any, key: jax.Array) -> tuple[jax.Array, Any]:
        return cross_entropy(self.logits(params, batch["x"]), batch["y"]), extra

    def metrics(self, params: Any, extra: Any, batch: Any) -> dict[str, jax.Array]:
        return figures(self.logits(params, batch["x"]), batch["y"])

    def data(self) -> Data:
        return self.text.load()


def attention(block: dict[str, Layer], x: jax.Array, heads: int) -> jax.Array:
    """Causal self-attention: (n, length, width) from the same. Each place looks at itself and those before it."""
    n, length, width = x.shape
    split = dense(block["queries_keys_values"], x).reshape(n, length, 3, heads, width // heads)
    queries, keys, values = (split[:, :, k] for k in range(3))  # (n, length, heads, width / heads)
    scores = jnp.einsum("nihd,njhd->nhij", queries, keys) / math.sqrt(width // heads)
    earlier = jnp.tril(jnp.ones((length, length), bool))
    weights = jax.nn.softmax(jnp.where(earlier, scores, -jnp.inf), axis=-1)
    mixed = jnp.einsum("nhij,njhd->nihd", weights, values).reshape(n, length, width)
    return dense(block["attention_out"], mixed)
