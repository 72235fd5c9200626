"""Samples: of training and of test."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from asyncsim.errors import InputError


class Data(NamedTuple):
    """Training and test samples: pytrees of NumPy arrays, each with samples along axis 0 (no leaves: no data)."""

    train: Any
    test: Any


def num_samples(tree: Any) -> int:
    """The common length of axis 0 of all arrays (0 without arrays)."""
    if any(np.ndim(x) == 0 for x in jax.tree.leaves(tree)):
        raise InputError("every array of a data set has samples along its axis 0; here is a single number")
    lengths = {len(x) for x in jax.tree.leaves(tree)}
    if len(lengths) > 1:
        raise InputError(f"the arrays of a data set have different numbers of samples: {sorted(lengths)}")
    return lengths.pop() if lengths else 0
