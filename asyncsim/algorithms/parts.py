"""Parts that recur: published methods are compositions of these."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from asyncsim.algorithms.base import algorithm, static
from asyncsim.errors import InputError
from asyncsim.records import Fraction, NonNegative, Positive


def zeros_like(tree: Any) -> Any:
    """A tree of zeros of the same shapes."""
    return jax.tree.map(jnp.zeros_like, tree)


@algorithm
class Descent:
    """One step of SGD on a state ``{"params": x, "momentum": v}`` (without a momentum: no v at all).

        d = g + wd z
        v = gamma v + d;  x = x - eta v               (Polyak 1964)
        v = gamma v + d;  x = x - eta (d + gamma v)   (nesterov: Sutskever et al., ICML 2013, as in optax.trace)

    eta is the learning rate at this clock, gamma ``momentum``, wd ``weight_decay``, z the parameters that decay.
    """

    learning_rate: Positive = 0.1
    momentum: Fraction | None = None
    weight_decay: NonNegative = 0.0
    nesterov: bool = static(default=False)

    def validate(self) -> None:
        if self.nesterov and self.momentum is None:
            raise InputError("needs a momentum", "nesterov")

    def buffers(self, params: Any) -> dict[str, Any]:
        """The state at the start."""
        return {"params": params} if self.momentum is None else {"params": params, "momentum": zeros_like(params)}

    def descend(self, state: dict[str, Any], gradient: Any, decaying: Any, learning_rate: Any) -> dict[str, Any]:
        """The state after one step; ``decaying`` is z."""
        new = dict(state)
        direction = jax.tree.map(lambda g, z: g + self.weight_decay * z, gradient, decaying)
        if self.momentum is not None:
            new["momentum"] = jax.tree.map(lambda v, d: d + self.momentum * v, state["momentum"], direction)
            if self.nesterov:
                direction = jax.tree.map(lambda v, d: d + self.momentum * v, new["momentum"], direction)
            else:
                direction = new["momentum"]
        new["params"] = jax.tree.map(lambda x, d: x - learning_rate * d, state["params"], direction)
        return new
