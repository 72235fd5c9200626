"""What the server does itself: an update, which takes its time, one at a time or all at once."""

from __future__ import annotations

import simpy

from asyncsim.cluster.cluster import Cluster
from asyncsim.cluster.step_times import Place
from asyncsim.network.turns import Lock, Turn
from asyncsim.recorder import Recorder
from asyncsim.streams import Purpose, generator


class Server:
    """The time that updates take. ``lock``: the line in front of it; ``locked``: whether all must stand in it."""

    def __init__(self, env: simpy.Environment, log: Recorder, cluster: Cluster, seed: int):
        servers = cluster.servers
        self._env, self.lock, self.locked = env, Lock(env), servers.lock
        self._per_buffer = 0.0  # seconds
        if servers.update_bandwidth is not None:
            self._per_buffer = log.workload.model_bytes / servers.shards / servers.update_bandwidth
        self._moving = log.costs.update * self._per_buffer
        self._overhead = None
        if servers.update_seconds is not None:
            rng = generator(seed, Purpose.SERVER)
            self._overhead = servers.update_seconds.stream(rng, Place(seed)).__next__

    @property
    def takes_time(self) -> bool:
        return self._overhead is not None or self._per_buffer > 0

    def update(self, worker: int, adds: bool, makes: bool) -> simpy.Event:
        """The server ``adds`` the worker's gradient to a sum (two buffers), ``makes`` an update, or both."""
        seconds = 2 * self._per_buffer * adds
        if makes:
            seconds += self._moving + (self._overhead() if self._overhead else 0.0)
        return Turn(self._env, seconds, worker)
