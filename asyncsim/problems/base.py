"""What is learned: a loss, where it starts, and its data."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from asyncsim.data.base import Data, num_samples
from asyncsim.errors import InputError
from asyncsim.records import Family
from asyncsim.workload import Workload


class Problem(Family):
    """A learning problem. Parameters are a pytree; ``extra`` is what the model keeps besides (BatchNorm statistics).

    Whose ``extra`` a gradient changes, and whose an evaluation takes, is the replay's choice (``statistics``). What is
    compiled depends on ``rule`` alone, which must be hashable and hold no data.
    """

    family = "problem"
    evaluated_at_once: ClassVar[int] = 2000  # test samples: fewer for models that make much of one sample

    @abstractmethod
    def init(self, key: jax.Array) -> tuple[Any, Any]:
        """Parameters and extra at the start."""

    @abstractmethod
    def loss(self, params: Any, extra: Any, batch: Any, key: jax.Array) -> tuple[jax.Array, Any]:
        """Mean loss over a batch of training samples, and the new extra."""

    @abstractmethod
    def data(self) -> Data:
        """The samples."""

    def metrics(self, params: Any, extra: Any, batch: Any) -> dict[str, jax.Array]:
        """What is measured on test samples, each a mean over the batch; ``loss`` among them."""
        return {"loss": self.loss(params, extra, batch, jax.random.key(0))[0]}

    @property
    def rule(self) -> Any:
        """The hashable thing whose ``loss`` and ``metrics`` are compiled."""
        return self

    @property
    def num_samples(self) -> int:
        """Samples of one epoch."""
        return num_samples(self.data().train)

    def labels(self) -> np.ndarray:
        """(n,) the labels of the training samples, for partitions by label: ``y``. Raises InputError without any."""
        train = self.data().train
        y = np.asarray(train["y"]) if isinstance(train, dict) and "y" in train else np.zeros(())
        if y.ndim != 1 or y.dtype.kind not in "iub":
            raise InputError(f"the samples of {self.name} have no labels: a list y of one whole number each")
        return y

    def workload(self, batch_size: int) -> Workload:
        """The problem as the timing sees it: parameter tensors in float32, in the order in which ``init`` names them
        (forward, in the models here), and the arithmetic of a sample."""
        shapes: list[Any] = []

        def init() -> tuple[Any, Any]:
            params, extra = self.init(jax.random.key(0))
            shapes.extend(jnp.shape(x) for x in _in_order(params))  # a tree of JAX's would sort them by name
            return params, extra

        params, extra = jax.eval_shape(init)
        sizes = tuple(4 * math.prod(shape) for shape in shapes)
        return Workload(batch_size, self.num_samples, sizes, self._sample_flops(params, extra, batch_size))

    def _sample_flops(self, params: Any, extra: Any, batch_size: int) -> float | None:
        """Operations of one gradient, forward and backward, for one sample, as XLA counts them; None if it does not."""

        def shape(x: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((batch_size, *x.shape[1:]), jax.dtypes.canonicalize_dtype(x.dtype))

        batch, key = jax.tree.map(shape, self.data().train), jax.eval_shape(lambda: jax.random.key(0))
        try:
            gradient = jax.jit(jax.value_and_grad(self.rule.loss, has_aux=True))
            cost: Any = gradient.lower(params, extra, batch, key).cost_analysis()
        except Exception:  # a loss that cannot be traced fails, and says why, where it is to be learned
            return None
        flops = cost.get("flops", 0.0) / batch_size if isinstance(cost, dict) else 0.0
        return flops if math.isfinite(flops) and flops > 0 else None


def _in_order(tree: Any) -> list[Any]:
    """The leaves of a tree, those of a dict in its own order."""
    if isinstance(tree, dict):
        return [leaf for part in tree.values() for leaf in _in_order(part)]
    if isinstance(tree, list | tuple):
        return [leaf for part in tree for leaf in _in_order(part)]
    return jax.tree.leaves(tree)
