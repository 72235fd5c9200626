"""Who stands where, and over which links a message goes: a cluster's hosts and links, numbered."""

from __future__ import annotations

from typing import NamedTuple

from asyncsim.cluster.cluster import Cluster
from asyncsim.cluster.topologies import Hop
from asyncsim.network.sharing import Link


class Route(NamedTuple):
    """How a message gets from one place to another."""

    source: int  # host
    target: int
    latency: float  # seconds
    path: tuple[Link, ...]  # those links on it that limit anything
    copies: float  # bytes per second at which the target's processor takes it in
    rate: float  # bytes per second of the narrowest link


class Layout:
    """Places are numbered: worker i is place i, shard k of the server, where there is one, place num_workers + k."""

    def __init__(self, cluster: Cluster, kind: str):
        self.cluster, self._host_of = cluster, cluster.host_of
        last = len(cluster.hosts) if kind == "server" else 1 + max(self._host_of[: cluster.num_workers])
        self.hosts = cluster.hosts[:last]  # between peers there is no server
        self._routes: dict[tuple[int, int], Route] = {}
        self._links: dict[tuple[str, int, int], Link] = {}

    def host_of(self, place: int) -> int:
        """The number of the host at which it is."""
        return self._host_of[place]

    def route(self, source: int, target: int) -> Route:
        """The way from place to place."""
        if (source, target) not in self._routes:
            self._routes[source, target] = self._found(source, target)
        return self._routes[source, target]

    def _found(self, source: int, target: int) -> Route:
        a, b = self._host_of[source], self._host_of[target]
        here, there = self.hosts[a], self.hosts[b]
        if a == b:
            carries = here.link_bandwidth or float("inf")
            hops = [Hop(("out", source, source), carries, 0.0), Hop(("in", target, target), carries, 0.0)]
            return self._route(a, b, here.link_latency, hops, float("inf"))
        way = self.cluster.topology.way(a, b, self.hosts)
        hops = [Hop(("send", a, a), here.sends, 0.0), *way, Hop(("receive", b, b), there.receives, 0.0)]
        latency = here.latency + self.cluster.latency + there.latency + sum(hop.latency for hop in way)
        return self._route(a, b, latency, hops, there.copy_bandwidth or float("inf"))

    def _route(self, a: int, b: int, latency: float, hops: list[Hop], copies: float) -> Route:
        path = tuple(
            self._links.setdefault(hop.name, Link(hop.bandwidth)) for hop in hops if hop.bandwidth < float("inf")
        )
        return Route(a, b, latency, path, copies, min([hop.bandwidth for hop in hops]))
