"""Which samples a gradient is taken on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal

import numpy as np

from asyncsim.data.partitions import Partition, Parts, Shared
from asyncsim.records import checked
from asyncsim.streams import Purpose, generator

BLOCK = 8192  # samples drawn at once, in whole mini-batches
KEPT = 2**23  # how many numbers of samples are kept for later blocks, beside the blocks themselves

# of a worker, the samples of one block of its stream: (worker, number of the block, length) -> (length,) int32
Stream = Callable[[int, int, int], np.ndarray]


@checked
class Sampling:
    """Which samples a worker draws from, and in which order.

    ``partition``: ``shared`` (all workers draw from all samples), or ``iid``, ``sharded``, ``dirichlet`` (each has a
    part of its own). ``order``: ``"replacement"`` (each sample of a mini-batch is drawn from the whole part) or
    ``"reshuffled"`` (a worker goes through its part once per its own epoch, each time in a fresh order; its stream of
    samples is cut into mini-batches across the ends of epochs). A gradient that is cancelled has used up its
    mini-batch.
    """

    partition: Partition = Shared()
    order: Literal["replacement", "reshuffled"] = "replacement"


class Batches:
    """Mini-batches: that of worker i at its k-th step depends on (seed, i, k), and on the partition, alone."""

    def __init__(
        self,
        seed: int,
        num_samples: int,
        batch_size: int,
        sampling: Sampling | None = None,
        num_workers: int = 1,
        labels: np.ndarray | None = None,
    ):
        self.num_samples, self.batch_size = num_samples, batch_size
        sampling = Sampling() if sampling is None else sampling
        partition, reshuffled = sampling.partition, sampling.order == "reshuffled"

        @functools.lru_cache(maxsize=max(2, KEPT // max(num_samples, 1)))
        def deal(epoch: int) -> Parts:
            return partition.deal(num_samples, np.zeros(0, int) if labels is None else labels, num_workers, seed, epoch)

        if isinstance(partition, Shared):
            everything, part = np.arange(num_samples, dtype=np.int32), lambda worker: everything
        else:
            part = deal(0).__getitem__
        if reshuffled and partition.anew:
            # workers go through their epochs side by side: blocks of about an epoch let one deal serve them all
            block, stream = min(BLOCK, num_samples // num_workers), _dealt_anew(deal)
        else:
            block, stream = BLOCK, (_reshuffled if reshuffled else _with_replacement)(seed, part)
        self._steps = max(1, block // batch_size)

        @functools.lru_cache(maxsize=4096)
        def mini_batches(number: int, worker: int) -> np.ndarray:
            return stream(worker, number, self._steps * batch_size).reshape(self._steps, batch_size)

        self._block = mini_batches

    def indices(self, workers: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """(n, batch_size) indices of samples, for n gradients. Without a data set: (n, 0)."""
        out = np.zeros((len(workers), self.batch_size if self.num_samples else 0), np.int32)
        if self.num_samples:
            number, place = np.divmod(steps, self._steps)
            blocks, group = np.unique(np.stack([number, workers], 1), axis=0, return_inverse=True)
            for k, block in enumerate(blocks.tolist()):
                mine = group.ravel() == k
                out[mine] = self._block(*block)[place[mine]]
        return out


def _with_replacement(seed: int, part_of: Callable[[int], np.ndarray]) -> Stream:
    def stream(worker: int, number: int, length: int) -> np.ndarray:
        part, rng = part_of(worker), generator(seed, Purpose.DATA, worker, number)
        return part[rng.integers(len(part), size=length, dtype=np.int32)]

    return stream


def _reshuffled(seed: int, part_of: Callable[[int], np.ndarray]) -> Stream:
    """A fresh order of the worker's part for each epoch; of small parts, many epochs are drawn at once."""

    def stream(worker: int, number: int, length: int) -> np.ndarray:
        part = part_of(worker)
        epochs = max(1, BLOCK // len(part))

        def orders(group: int) -> np.ndarray:
            rng = generator(seed, Purpose.RESHUFFLING, worker, group)
            return rng.permuted(np.tile(part, (epochs, 1)), axis=1).ravel()

        return _cut(orders, epochs * len(part), number, length)

    return stream


def _dealt_anew(deal: Callable[[int], Parts]) -> Stream:
    """The worker's part of a fresh deal for each epoch, which comes in a random order."""

    def stream(worker: int, number: int, length: int) -> np.ndarray:
        return _cut(lambda epoch: deal(epoch)[worker], int(deal(0).sizes[worker]), number, length)

    return stream


def _cut(piece: Callable[[int], np.ndarray], size: int, number: int, length: int) -> np.ndarray:
    """The block of a stream that consists of pieces of equal size."""
    start = number * length
    pieces = range(start // size, (start + length - 1) // size + 1)
    skipped = start - pieces.start * size
    return np.concatenate([piece(k) for k in pieces])[skipped : skipped + length]
