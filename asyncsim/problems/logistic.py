"""Logistic regression: the convex problem that theory speaks of, on dense or sparse features."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from asyncsim.data.data_sets import DataSet, Digits
from asyncsim.problems.classifier import Classifier
from asyncsim.problems.layers import dense
from asyncsim.records import NonNegative, checked, register


@register("logistic")
@checked
class Logistic(Classifier):
    """Multinomial logistic regression (softmax, also for two classes) from weights 0.

    The training loss is the mean cross-entropy + ``l2``/2 x the sum of squares of all weights, the bias left out; so
    with ``l2`` > 0 it is strongly convex in the weights. The test loss is the cross-entropy alone. Sparse features (of
    ``sparse_teacher``, say) take a sum over the features that a sample has.
    """

    data_set: DataSet = Digits()
    l2: NonNegative = 0.0

    def init(self, key: jax.Array) -> tuple[Any, Any]:
        features, classes = self.data_set.num_features, self.data_set.num_classes
        return {"weight": jnp.zeros((features, classes)), "bias": jnp.zeros(classes)}, ()

    def forward(self, params: Any, extra: Any, x: Any, training: bool) -> tuple[jax.Array, Any]:
        if self.data_set.sparse:
            rows = params["weight"][x["index"]]  # (n, nonzeros, classes)
            return jnp.einsum("nk,nkc->nc", x["value"], rows) + params["bias"], extra
        return dense(params, x), extra

    def loss(self, params: Any, extra: Any, batch: Any, key: jax.Array) -> tuple[jax.Array, Any]:
        loss, extra = super().loss(params, extra, batch, key)
        return (loss + self.l2 / 2 * jnp.sum(params["weight"] ** 2) if self.l2 else loss), extra
