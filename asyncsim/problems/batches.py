"""Which samples a gradient is taken on."""

from __future__ import annotations

import functools

import numpy as np

from asyncsim.streams import Purpose, generator

BLOCK = 8192  # samples drawn at once, in whole mini-batches


class Batches:
    """Mini-batches drawn with replacement: that of worker i at its k-th step depends on (seed, i, k) alone."""

    def __init__(self, seed: int, num_samples: int, batch_size: int):
        self.num_samples, self.batch_size = num_samples, batch_size
        self._steps = max(1, BLOCK // batch_size)

        @functools.lru_cache(maxsize=4096)
        def block(worker: int, number: int) -> np.ndarray:
            rng = generator(seed, Purpose.DATA, worker, number)
            return rng.integers(num_samples, size=(self._steps, batch_size), dtype=np.int32)

        self._block = block

    def indices(self, workers: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """(n, batch_size) indices of samples, for n gradients. Without a data set: (n, 0)."""
        out = np.zeros((len(workers), self.batch_size if self.num_samples else 0), np.int32)
        if self.num_samples:
            number, place = np.divmod(steps, self._steps)
            for which in np.unique(np.stack([workers, number], 1), axis=0):
                mine = (workers == which[0]) & (number == which[1])
                out[mine] = self._block(*which.tolist())[place[mine]]
        return out
