"""What the compiled replays share: stacked storage, and a loop over planned rows, a chunk at a time.

What is stored per worker, version, message or mix is a pool: a pytree of arrays stacked along axis 0, indexed by slot.
Rows take slices out, work on slices alone, and write slices back. Two facts about XLA on the CPU shape the code:

* It fuses across a pool's reads and in-place writes and then copies the whole pool at every row, where an old slice is
  used twice. A conditional is the one fence that it keeps (``seal``), and it must carry slices only.
* A loop of traced length compiles once for any number of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

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
    return jax.tree.map(lambda x: jnp.array(jnp.broadcast_to(x, (slots, *jnp.shape(x)))), value)


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


def run_chunks(program: Callable[..., Any], carry: Any, rows: dict[str, Any], start: int, stop: int) -> Any:
    """Rows ``start`` to ``stop`` through a program, a chunk at a time; the last one is padded."""
    given = []
    for first in range(start, stop, CHUNK):
        count = min(CHUNK, stop - first)
        part = {k: padded(v[first : first + count]) for k, v in rows.items()}
        carry, out = program(carry, part, count)
        given.append({k: np.asarray(v)[:count] for k, v in out.items()})
    return carry, {k: np.concatenate([g[k] for g in given]) for k in given[0]} if given else {}


def padded(values: np.ndarray) -> np.ndarray:
    values = values.astype(jnp.zeros(()).dtype) if values.dtype == np.float64 else values
    return np.concatenate([values, np.repeat(values[:1], CHUNK - len(values), 0)])
