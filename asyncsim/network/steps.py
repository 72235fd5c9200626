"""The gradients that workers compute: how long each takes, and when its pieces are ready."""

from __future__ import annotations

import itertools

from asyncsim.cluster.cluster import Cluster


class Steps:
    """The times of all workers' gradients, one after another.

    ``pieces``: in the order in which they get ready; None: a gradient is one piece, sent when it is done.
    """

    def __init__(self, cluster: Cluster, seed: int, tensor_bytes: tuple[int, ...]):
        self.pieces = cluster.buckets.pieces(tensor_bytes)
        self.times = []  # of each worker; where pieces do not matter, with its delays
        self.next = []  # next[worker](): the delay before a gradient, where it is apart, and how long it takes
        for worker in range(cluster.num_workers):
            if self.pieces is None:
                times, delays = cluster.step_times(worker, seed), None
            else:
                times, delays = cluster.step_times_and_delays(worker, seed)
            self.times.append(times)
            self.next.append(zip(itertools.repeat(0.0) if delays is None else delays, times, strict=False).__next__)

    @property
    def shares(self) -> list[float]:
        """Of each piece its share of the model's bytes."""
        return [1.0] if self.pieces is None else [piece.share for piece in self.pieces]
