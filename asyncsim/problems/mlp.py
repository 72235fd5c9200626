"""A multilayer perceptron for classification."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal

import jax
import jax.numpy as jnp

from asyncsim.data.data_sets import DataSet, Digits
from asyncsim.problems.classifier import Classifier, check_dense
from asyncsim.problems.layers import dense, new_dense
from asyncsim.records import Count, checked, register

ACTIVATIONS = {"relu": jax.nn.relu, "tanh": jnp.tanh}


@register("mlp")
@checked
class MLP(Classifier):
    """Multilayer perceptron: fully connected layers of these hidden widths, then softmax and cross-entropy.

    He initialisation, biases 0.
    """

    data_set: DataSet = Digits()
    hidden: tuple[Count, ...] = (64,)
    activation: Literal["relu", "tanh"] = "relu"

    def validate(self) -> None:
        check_dense(self.data_set)

    def init(self, key: jax.Array) -> tuple[Any, Any]:
        widths = (self.data_set.num_features, *self.hidden, self.data_set.num_classes)
        layers = enumerate(pairwise(widths))
        return {f"layer{k}": new_dense(jax.random.fold_in(key, k), *fans) for k, fans in layers}, ()

    def forward(self, params: Any, extra: Any, x: jax.Array, training: bool) -> tuple[jax.Array, Any]:
        for k in range(len(self.hidden) + 1):
            x = dense(params[f"layer{k}"], ACTIVATIONS[self.activation](x) if k else x)
        return x, extra
