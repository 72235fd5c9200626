"""What the compiled replays share: stacked storage, and a loop over planned rows, a chunk at a time.

What is stored per worker, version, message or mix is a pool: a pytree of arrays stacked along axis 0, indexed by slot.
Rows take slices out, work on slices alone, and write slices back. Two facts about XLA on the CPU shape the code:

* It fuses across a pool's reads and in-place writes and then copies the whole pool at every row, where an old slice is
  used twice. A conditional is the one fence that it keeps (``seal``), and it must carry slices only.
* A loop of traced length compiles once for any number of rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from asyncsim.replaying.rules import Setting

CHUNK = 1024  # rows handed to the compiled loop at once
PROGRAMS: list[str] = []  # one entry for each tracing of a program: tests count them


def take(pool: Any, slot: Any) -> Any:
    """The slice of each array at a slot."""
    return jax.tree.map(lambda s: lax.dynamic_index_in_dim(s, slot, 0, keepdims=False), pool)


def put(pool: Any, slot: Any, value: Any) -> Any:
    """The pool with the slice at a slot replaced."""
    return jax.tree.map(lambda s, x: lax.dynamic_update_index_in_dim(s, jnp.asarray(x, s.dtype), slot, 0), pool, value)


def stack(value: Any, slots: int) -> Any:
    """A pool with the same value in every slot."""
    return jax.tree.map(lambda x: jnp.array(jnp.broadcast_to(x, (slots, *jnp.shape(x)))), strong(value))


def strong(tree: Any) -> Any:
    """A copy as arrays whose types are their own: a Python number in a state would compile twice."""
    return jax.tree.map(lambda x: jnp.array(x, jnp.asarray(x).dtype), tree)


def seal(on: Any, f: Callable[..., Any], *slices: Any) -> Any:
    """f(*slices), fenced off from what is around it; ``on`` is a traced True."""
    nothing = zeros_of(jax.eval_shape(f, *slices))
    return lax.cond(on, f, lambda *_: nothing, *slices)


def zeros_of(shapes: Any) -> Any:
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)


def loop(body: Callable[..., Any], carry: Any, rows: dict[str, jax.Array], count: Any) -> Any:
    """``lax.scan`` whose length is traced: the carry, and what each row gave (zeros from row ``count`` on)."""
    shapes = jax.eval_shape(body, carry, take(rows, 0))[1]
    length = rows["worker"].shape[0]
    out = jax.tree.map(lambda s: jnp.zeros((length, *s.shape), s.dtype), shapes)

    def one(k: Any, both: Any) -> Any:
        carry, out = both
        carry, given = body(carry, take(rows, k))
        return carry, put(out, k, given)

    return lax.fori_loop(0, count, one, (carry, out))


def padded(values: np.ndarray) -> np.ndarray:
    """A chunk's column, in the precision of the replay, filled up to the full length of a chunk."""
    values = values.astype(jnp.zeros(()).dtype) if values.dtype == np.float64 else values
    return np.concatenate([values, np.repeat(values[:1], CHUNK - len(values), 0)])


class Compiled(ABC):
    """What both kinds of compiled replay share: planned rows, run through a program a chunk at a time.

    A subclass plans the ``rows`` (columns by name), prepares the ``carry`` of its ``program`` and says how many rows
    are done at a cut (``planned``) and which gradient of the trace each is (``gradient_of``: its row there, or -1).
    """

    program: Any  # the jitted program: (carry, learning, rows, count, rule, flags) -> carry, what each row gave
    rows: dict[str, np.ndarray]
    gradient_of: np.ndarray
    flags: Any
    carry: Any

    def __init__(self, setting: Setting):
        self.setting, self._at = setting, 0

    @abstractmethod
    def planned(self, cut: int) -> int:
        """Planned rows that are done where the first ``cut`` rows of the trace are."""

    def advance(self, cut: int) -> dict[str, np.ndarray]:
        """Go on until so many rows of the trace are done; what was measured on each gradient, in its order."""
        start, self._at = self._at, self.planned(cut)
        given = []
        for first in range(start, self._at, CHUNK):
            part, count = self._chunk(first, min(first + CHUNK, self._at))
            self.carry, out = type(self).program(*self._arguments(part, count))
            given.append({k: np.asarray(v)[:count] for k, v in out.items()})
        if not given:
            return {}
        at = self.gradient_of[start : self._at]
        real = np.flatnonzero(at >= 0)
        order = real[np.argsort(at[real])]
        return {k: np.concatenate([g[k] for g in given])[order] for k in given[0]}

    def _chunk(self, start: int, stop: int) -> tuple[dict[str, np.ndarray], int]:
        part = {k: padded(v[start:stop]) for k, v in self.rows.items()}
        part["batch"] = self.setting.batches.indices(part["worker"], part["step"])
        return part, stop - start

    def _arguments(self, part: dict[str, np.ndarray], count: int) -> tuple[Any, ...]:
        return self.carry, self.setting.learning, part, count, self.setting.rule, self.flags

    def compiled_text(self) -> str:
        """The program as XLA compiled it, for tests."""
        return type(self).program.lower(*self._arguments(*self._chunk(0, 1))).compile().as_text() or ""
