"""Who holds which samples: how the training samples are dealt out among the workers."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np

from asyncsim.errors import InputError
from asyncsim.records import Count, Family, Positive, checked, register
from asyncsim.streams import Purpose, generator


class Parts:
    """The samples of each worker: ``parts[i]`` are those of worker i, (n_i,) int32."""

    def __init__(self, samples: np.ndarray, sizes: np.ndarray):
        self._samples, self.sizes = samples.astype(np.int32), sizes  # those of worker 0 first; (num_workers,)
        self._ends = np.cumsum(sizes)

    @classmethod
    def of(cls, owners: np.ndarray, num_workers: int) -> Parts:
        """From the worker that each sample belongs to."""
        return cls(np.argsort(owners, kind="stable"), np.bincount(owners, minlength=num_workers))

    def __getitem__(self, worker: int) -> np.ndarray:
        return self._samples[self._ends[worker] - self.sizes[worker] : self._ends[worker]]


class Partition(Family):
    """How the training samples are dealt out: each to one worker, or all to everybody (``shared``).

    What a worker gets is a function of (seed, number of workers) and of the samples' labels, where they matter.
    """

    family = "partition"
    by_label: ClassVar[bool] = False  # whether labels matter
    anew: ClassVar[bool] = False  # whether a reshuffled order deals the samples out anew for each epoch

    @abstractmethod
    def parts(self, num_samples: int, labels: np.ndarray, num_workers: int, rng: np.random.Generator) -> Parts:
        """The samples of each worker: at least one, given that there are as many samples as workers.

        ``labels``: (num_samples,) whole numbers; empty where they do not matter. Raises InputError where it cannot.
        """

    def deal(self, num_samples: int, labels: np.ndarray, num_workers: int, seed: int, epoch: int = 0) -> Parts:
        """The samples of each worker, another deal for each epoch. Raises InputError where there are too few."""
        if num_workers > num_samples:
            raise InputError(f"{num_workers} workers cannot share {num_samples} samples: some would have none")
        return self.parts(num_samples, labels, num_workers, generator(seed, Purpose.PARTITION, epoch))


@register("shared")
@checked
class Shared(Partition):
    """Every worker draws from all samples."""

    def parts(self, num_samples: int, labels: np.ndarray, num_workers: int, rng: np.random.Generator) -> Parts:
        raise TypeError("shared samples are nobody's part")


@register("iid")
@checked
class IID(Partition):
    """All samples are dealt out at random, in disjoint parts of equal size (to within one).

    In a reshuffled order they are dealt out anew for each epoch, as data-parallel samplers do: together the workers go
    through all samples once an epoch.
    """

    anew = True

    def parts(self, num_samples: int, labels: np.ndarray, num_workers: int, rng: np.random.Generator) -> Parts:
        ends = np.arange(num_workers + 1) * num_samples // num_workers
        return Parts(rng.permutation(num_samples), np.diff(ends))


@register("sharded")
@checked
class Sharded(Partition):
    """Samples sorted by label and cut into shards of equal size (to within one), some to each worker, at random.

    So a worker has few labels. The pathological split of McMahan et al., AISTATS 2017, who gave two shards to each.
    """

    shards_per_worker: Count = 2

    by_label = True

    def parts(self, num_samples: int, labels: np.ndarray, num_workers: int, rng: np.random.Generator) -> Parts:
        shards = num_workers * self.shards_per_worker
        if shards > num_samples:
            what = f"{num_samples} samples cannot be cut into {shards} shards, {self.shards_per_worker} for each worker"
            raise InputError(what, "shards_per_worker")
        holder = rng.permutation(np.repeat(np.arange(num_workers), self.shards_per_worker))
        owners = np.empty(num_samples, int)
        owners[np.argsort(labels, kind="stable")] = holder[np.arange(num_samples) * shards // num_samples]
        return Parts.of(owners, num_workers)


TRIES = 100


@register("dirichlet")
@checked
class Dirichlet(Partition):
    """Each label's samples are shared out in proportions drawn from a symmetric Dirichlet distribution over workers.

    A worker's share of one label has mean 1/N and variance (1/N)(1 - 1/N)/(N alpha + 1), for N workers: a small
    ``alpha`` gives each worker few labels and unequal parts, a large one parts that are alike, to within one sample of
    each label. Where a worker would be left without samples, all is drawn again. After Hsu et al., arXiv 1909.06335
    (2019), in the disjoint form of Yurochkin et al., ICML 2019, which gives out every sample once.
    """

    alpha: Positive = 0.5

    by_label = True

    def parts(self, num_samples: int, labels: np.ndarray, num_workers: int, rng: np.random.Generator) -> Parts:
        kinds, sizes = np.unique(labels, return_counts=True)
        place = rng.permutation(num_samples)  # which samples of a label go to whom is chance
        place = place[np.argsort(labels[place], kind="stable")]
        for _ in range(TRIES):
            shares = rng.dirichlet(np.full(num_workers, self.alpha), size=len(kinds))
            # rounded up or down by chance, each label for itself: no worker is always the one to lose
            ends = np.floor(np.cumsum(shares, 1) * sizes[:, None] + rng.random((len(kinds), 1))).astype(int)
            ends[:, -1] = sizes
            counts = np.diff(ends, axis=1, prepend=0)  # (labels, num_workers)
            if np.all(counts.sum(0) > 0):
                owners = np.empty(num_samples, int)
                owners[place] = np.repeat(np.tile(np.arange(num_workers), len(kinds)), counts.ravel())
                return Parts.of(owners, num_workers)
        what = f"{TRIES} draws each left one of {num_workers} workers without samples"
        raise InputError(f"{what}: take a larger alpha than {self.alpha:g}, or fewer workers", "alpha")
