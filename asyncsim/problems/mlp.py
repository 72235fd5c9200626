"""A multilayer perceptron for classification."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from asyncsim.problems.base import Data, Problem
from asyncsim.problems.datasets import DataSet, Digits
from asyncsim.records import Count, checked, register

ACTIVATIONS = {"relu": jax.nn.relu, "tanh": jnp.tanh}


@register("mlp")
@checked
class MLP(Problem):
    """Fully connected layers of these hidden widths, then softmax and cross-entropy; He initialisation, biases 0."""

    data_set: DataSet = Digits()
    hidden: tuple[Count, ...] = (64,)
    activation: Literal["relu", "tanh"] = "relu"

    def init(self, key: jax.Array) -> tuple[Any, Any]:
        widths = (self.data_set.num_features, *self.hidden, self.data_set.num_classes)
        params = {}
        for k, (fan_in, fan_out) in enumerate(pairwise(widths)):
            scale = jnp.sqrt(2 / fan_in)
            weight = scale * jax.random.normal(jax.random.fold_in(key, k), (fan_in, fan_out))
            params[f"layer{k}"] = {"weight": weight, "bias": jnp.zeros(fan_out)}
        return params, ()

    def logits(self, params: Any, x: jax.Array) -> jax.Array:
        """(n, classes) from (n, features)."""
        for k in range(len(self.hidden) + 1):
            layer = params[f"layer{k}"]
            x = (ACTIVATIONS[self.activation](x) if k else x) @ layer["weight"] + layer["bias"]
        return x

    def loss(self, params: Any, extra: Any, batch: Any, key: jax.Array) -> tuple[jax.Array, Any]:
        logits = self.logits(params, batch["x"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean(), extra

    def metrics(self, params: Any, extra: Any, batch: Any) -> dict[str, jax.Array]:
        logits = self.logits(params, batch["x"])
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()
        return {"loss": loss, "accuracy": jnp.mean(logits.argmax(-1) == batch["y"])}

    def data(self) -> Data:
        return self.data_set.load()
