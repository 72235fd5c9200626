"""A user's own loss function and data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from asyncsim.data.base import Data, num_samples
from asyncsim.errors import InputError, within
from asyncsim.problems.base import Problem
from asyncsim.sources import fingerprint_of


class _PlainRule(NamedTuple):
    """Functions of parameters and batch."""

    user_loss: Callable[..., Any]
    user_metrics: Callable[..., Any] | None

    def loss(self, params: Any, extra: Any, batch: Any, key: jax.Array) -> tuple[jax.Array, Any]:
        return self.user_loss(params, batch), extra

    def metrics(self, params: Any, extra: Any, batch: Any) -> dict[str, jax.Array]:
        found = {} if self.user_metrics is None else self.user_metrics(params, batch)
        if not isinstance(found, dict):
            raise InputError(f"gives a dict of figures by name, not {type(found).__name__}", "metrics")
        return found if "loss" in found else {"loss": self.user_loss(params, batch), **found}


class _FullRule(NamedTuple):
    """Functions of the whole contract, with what the model keeps besides its parameters, and a random key."""

    user_loss: Callable[..., Any]
    user_metrics: Callable[..., Any] | None

    def loss(self, params: Any, extra: Any, batch: Any, key: jax.Array) -> tuple[jax.Array, Any]:
        found = self.user_loss(params, extra, batch, key)
        if not isinstance(found, tuple) or len(found) != 2:
            raise InputError(f"gives a pair with extra: (loss, extra), not {type(found).__name__}", "loss")
        return found

    def metrics(self, params: Any, extra: Any, batch: Any) -> dict[str, jax.Array]:
        if self.user_metrics is None:
            return {"loss": self.loss(params, extra, batch, jax.random.key(0))[0]}
        found = self.user_metrics(params, extra, batch)
        if not isinstance(found, dict) or "loss" not in found:
            names = ", ".join(found) if isinstance(found, dict) else type(found).__name__
            raise InputError(f"gives a dict of figures with the loss among them, not {names}", "metrics")
        return found


class CustomProblem(Problem):
    """A user's own loss function and data.

    ``loss(params, batch)`` is the mean loss of a batch (the rows of ``train`` that were drawn); ``params`` the
    parameters at the start, a pytree of arrays of real numbers; ``train`` and ``test`` pytrees of arrays with samples
    along axis 0 (``test``: by default the training samples). ``metrics(params, batch)`` may return more test figures by
    name, such as accuracy.

    With ``extra``, what the model keeps besides parameters (BatchNorm statistics; ``()`` for nothing but the key), the
    functions are ``loss(params, extra, batch, key)``, which returns the loss and the new extra, and ``metrics(params,
    extra, batch)``, which returns all figures, ``loss`` among them (without it the test loss is ``loss`` at a fixed
    key).

    Keep the functions at module level or reuse them: each new function object compiles anew, and what a function reads
    from outside is read once, when it is compiled.
    """

    def __init__(
        self,
        loss: Callable[..., Any],
        params: Any,
        train: Any,
        test: Any = None,
        metrics: Callable[..., dict[str, jax.Array]] | None = None,
        extra: Any = None,
    ):
        arguments = "params and batch" if extra is None else "params, extra, batch (and key)"
        for name, function in (("loss", loss), ("metrics", metrics)):
            if not callable(function) and function is not None:
                raise InputError(f"expected a function of {arguments}, got {function!r}"[:200], name)
        self._rule = _PlainRule(loss, metrics) if extra is None else _FullRule(loss, metrics)
        self._params, self._extra = params, () if extra is None else extra
        self._data = Data(jax.tree.map(np.asarray, train), jax.tree.map(np.asarray, train if test is None else test))
        for name, samples in self._data._asdict().items():
            if within(name, num_samples, samples) == 0:
                raise InputError("has no samples", name)

    def fingerprint(self) -> str:
        """Equal for problems of equal functions, start and data: what a sweep calls its runs by."""
        return fingerprint_of(*self._rule, self._params, self._extra, self._data)

    def __repr__(self) -> str:
        return f"CustomProblem({getattr(self._rule.user_loss, '__name__', 'loss')}, {self.num_samples} samples)"

    def init(self, key: jax.Array) -> tuple[Any, Any]:
        return self._params, self._extra

    def loss(self, params: Any, extra: Any, batch: Any, key: jax.Array) -> tuple[jax.Array, Any]:
        return self._rule.loss(params, extra, batch, key)

    def metrics(self, params: Any, extra: Any, batch: Any) -> dict[str, jax.Array]:
        return self._rule.metrics(params, extra, batch)

    def data(self) -> Data:
        return self._data

    @property
    def rule(self) -> Any:
        return self._rule
