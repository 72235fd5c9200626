"""What all models for classification share: softmax, cross-entropy and accuracy."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import jax
import jax.numpy as jnp
import optax

from asyncsim.data.base import Data
from asyncsim.data.data_sets import DataSet
from asyncsim.errors import InputError
from asyncsim.problems.base import Problem


class Classifier(Problem):
    """A model of the labels of a data set: what it gives are logits; the loss is the mean cross-entropy, in nats.

    A model says how it starts (``init``) and what its logits are (``forward``).
    """

    data_set: DataSet

    @abstractmethod
    def forward(self, params: Any, extra: Any, x: Any, training: bool) -> tuple[jax.Array, Any]:
        """Logits (n, classes) of samples as the data set has them, and the new extra."""

    def loss(self, params: Any, extra: Any, batch: Any, key: jax.Array) -> tuple[jax.Array, Any]:
        logits, extra = self.forward(params, extra, batch["x"], training=True)
        return cross_entropy(logits, batch["y"]), extra

    def metrics(self, params: Any, extra: Any, batch: Any) -> dict[str, jax.Array]:
        return figures(self.forward(params, extra, batch["x"], training=False)[0], batch["y"])

    def data(self) -> Data:
        return self.data_set.load()


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """The mean over all labels; logits (..., classes), labels (...)."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def figures(logits: jax.Array, labels: jax.Array) -> dict[str, jax.Array]:
    """Loss, and the share of labels with the largest logit."""
    return {"loss": cross_entropy(logits, labels), "accuracy": jnp.mean(logits.argmax(-1) == labels)}


def check_dense(data_set: DataSet) -> None:
    """Raise InputError for a data set of sparse samples."""
    if data_set.sparse:
        raise InputError(f"the samples of {data_set.name} are sparse: only logistic takes them", "data_set")
