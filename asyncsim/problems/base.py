"""What is learned: a loss, where it starts, and its data."""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from asyncsim.errors import InputError
from asyncsim.records import Family
from asyncsim.sources import source_of
from asyncsim.workload import Workload


class Data(NamedTuple):
    """Training and test samples: pytrees of NumPy arrays, each with samples along axis 0 (no leaves: no data)."""

    train: Any
    test: Any


class Problem(Family):
    """A learning problem. Parameters are a pytree; ``extra`` is what the model keeps besides (BatchNorm statistics).

    ``extra`` belongs to the worker: each has its own, changed by its own gradients; an evaluation takes the workers'
    mean. What is compiled depends on ``rule`` alone, which must be hashable and hold no data.
    """

    family = "problem"

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

    def workload(self, batch_size: int) -> Workload:
        """The problem as the timing sees it: parameter tensors in float32, and the arithmetic of a sample."""
        params, extra = jax.eval_shape(lambda: self.init(jax.random.key(0)))
        sizes = tuple(4 * math.prod(x.shape) for x in jax.tree.leaves(params))
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


def num_samples(tree: Any) -> int:
    """The common length of axis 0 of all arrays (0 without arrays)."""
    if any(np.ndim(x) == 0 for x in jax.tree.leaves(tree)):
        raise InputError("every array of a data set has samples along its axis 0; here is a single number")
    lengths = {len(x) for x in jax.tree.leaves(tree)}
    if len(lengths) > 1:
        raise InputError(f"the arrays of a data set have different numbers of samples: {sorted(lengths)}")
    return lengths.pop() if lengths else 0


class _CustomRule(NamedTuple):
    user_loss: Callable[..., Any]
    user_metrics: Callable[..., Any] | None

    def loss(self, params: Any, extra: Any, batch: Any, key: jax.Array) -> tuple[jax.Array, Any]:
        return self.user_loss(params, batch), extra

    def metrics(self, params: Any, extra: Any, batch: Any) -> dict[str, jax.Array]:
        found = {} if self.user_metrics is None else self.user_metrics(params, batch)
        if not isinstance(found, dict) or "loss" in found:
            raise InputError(f"gives a dict of other figures than the loss, not {found!r}", "metrics")
        return {"loss": self.user_loss(params, batch), **found}


class CustomProblem(Problem):
    """A user's own loss function and data.

    ``loss(params, batch)`` is the mean loss of a batch (the rows of ``train`` that were drawn); ``params`` the
    parameters at the start, a pytree of arrays of real numbers; ``train`` and ``test`` pytrees of arrays with samples
    along axis 0 (``test``: by default the training samples). ``metrics(params, batch)`` may return more test figures by
    name, such as accuracy. Keep the functions at module level or reuse them: each new function object compiles anew,
    and what a function reads from outside is read once, when it is compiled.
    """

    name = "custom"

    def __init__(
        self,
        loss: Callable[[Any, Any], jax.Array],
        params: Any,
        train: Any,
        test: Any = None,
        metrics: Callable[[Any, Any], dict[str, jax.Array]] | None = None,
    ):
        for name, function in (("loss", loss), ("metrics", metrics)):
            if not callable(function) and function is not None:
                raise InputError(f"expected a function of params and batch, got {function!r}"[:200], name)
        self._rule, self._params = _CustomRule(loss, metrics), params
        self._data = Data(jax.tree.map(np.asarray, train), jax.tree.map(np.asarray, train if test is None else test))
        for name, samples in self._data._asdict().items():
            try:
                empty = num_samples(samples) == 0
            except InputError as error:
                raise error.within(name) from None
            if empty:
                raise InputError("has no samples", name)

    def fingerprint(self) -> str:
        """Equal for problems of equal functions, start and data: what a sweep calls its runs by."""
        functions = [source_of(f) for f in self._rule if callable(f)]
        found = hashlib.sha256("".join(functions).encode())
        for path, x in jax.tree_util.tree_leaves_with_path((self._params, self._data)):
            array = np.ascontiguousarray(x)
            found.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}".encode() + array.tobytes())
        return found.hexdigest()

    def __repr__(self) -> str:
        return f"CustomProblem({getattr(self._rule.user_loss, '__name__', 'loss')}, {self.num_samples} samples)"

    def init(self, key: jax.Array) -> tuple[Any, Any]:
        return self._params, ()

    def loss(self, params: Any, extra: Any, batch: Any, key: jax.Array) -> tuple[jax.Array, Any]:
        return self._rule.loss(params, extra, batch, key)

    def data(self) -> Data:
        return self._data

    @property
    def rule(self) -> Any:
        return self._rule
