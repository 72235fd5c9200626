"""A quadratic bowl with known eigenvalues: what theory speaks of."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from asyncsim.data.base import Data
from asyncsim.errors import InputError
from asyncsim.problems.base import Problem
from asyncsim.records import Count, NonNegative, Positive, checked, register


@register("quadratic")
@checked
class Quadratic(Problem):
    """f(x) = 1/2 sum_j lambda_j x_j^2 from x = ``start`` in each direction; the minimum is 0 at 0.

    A gradient is lambda x + ``noise`` times a standard normal vector, fresh for each mini-batch. There is no data set;
    ``samples`` says what counts as an epoch. The test loss is the exact f.
    """

    eigenvalues: tuple[NonNegative, ...] = (1.0,)
    noise: NonNegative = 0.0
    start: Positive = 1.0
    samples: Count = 1000

    def validate(self) -> None:
        if not self.eigenvalues:
            raise InputError("needs at least one", "eigenvalues")

    def init(self, key: jax.Array) -> tuple[Any, Any]:
        return {"x": jnp.full(len(self.eigenvalues), self.start, jnp.zeros(()).dtype)}, ()

    def _value(self, params: Any) -> jax.Array:
        x = params["x"]
        return jnp.sum(jnp.asarray(self.eigenvalues, x.dtype) * x * x) / 2

    def loss(self, params: Any, extra: Any, batch: Any, key: jax.Array) -> tuple[jax.Array, Any]:
        value = self._value(params)
        if self.noise:
            x = params["x"]
            value += self.noise * jnp.vdot(jax.random.normal(key, x.shape, x.dtype), x)
        return value, extra

    def metrics(self, params: Any, extra: Any, batch: Any) -> dict[str, jax.Array]:
        return {"loss": self._value(params)}

    def data(self) -> Data:
        return Data((), ())

    @property
    def num_samples(self) -> int:
        return self.samples
