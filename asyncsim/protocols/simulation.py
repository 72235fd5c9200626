"""The cluster in motion: what a protocol's processes wait for."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import simpy

from asyncsim.cluster.cluster import Cluster
from asyncsim.recorder import Recorder
from asyncsim.vocabulary import COMPUTE, RECEIVE, SEND


class Turn(simpy.Event):
    """A delay after which workers that finish at the same instant go on in the order of their numbers.

    SimPy orders equal times by when each event was scheduled; then a fast worker would sometimes come before and
    sometimes after a slow one. The priority makes it one rule: everything SimPy does by itself at an instant comes
    first (priorities 0 and 1), then worker 0, 1, 2, ...
    """

    def __init__(self, env: simpy.Environment, seconds: float, worker: int):
        super().__init__(env)
        self._ok = True
        self._value = None
        env.schedule(self, 2 + worker, seconds)  # type: ignore[arg-type]


class Simulation:
    """What a protocol sees: the log it writes to, and the work and messages its workers wait for."""

    def __init__(self, env: simpy.Environment, log: Recorder, cluster: Cluster, seed: int):
        self.env = env
        self.log = log
        self.num_workers = cluster.num_workers
        self._latency = cluster.latency
        self._seconds = [cluster.step_times(i, seed).__next__ for i in range(self.num_workers)]

    def compute(self, worker: int) -> simpy.Event:
        """Worker computes one gradient."""
        self.log.enter(worker, COMPUTE)
        return Turn(self.env, self._seconds[worker](), worker)

    def upload(self, worker: int) -> Generator[simpy.Event, Any, None]:
        """What the worker sends travels to the server."""
        if self._latency:
            self.log.enter(worker, SEND)
            yield Turn(self.env, self._latency, worker)

    def download(self, worker: int) -> Generator[simpy.Event, Any, None]:
        """The server's reply travels to the worker."""
        if self._latency:
            self.log.enter(worker, RECEIVE)
            yield Turn(self.env, self._latency, worker)
