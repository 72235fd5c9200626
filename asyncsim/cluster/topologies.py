"""What lies between the hosts: one switch, racks with uplinks, or sites joined by long links."""

from __future__ import annotations

import heapq
from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, NamedTuple

from msgspec import Meta

from asyncsim.cluster.hosts import Bandwidth, Host, Latency
from asyncsim.errors import InputError
from asyncsim.records import Count, Family, checked, register


class Hop(NamedTuple):
    """One direction of a link between switches: its name, bytes per second, seconds."""

    name: tuple[str, int, int]
    bandwidth: float
    latency: float


class Topology(Family):
    """What a message passes between the NIC of its sender and that of its receiver.

    Hosts are numbered: those of the workers in order, then those of the servers. A new one is a record with ``way``.
    """

    family = "topology"

    @abstractmethod
    def way(self, source: int, target: int, hosts: Sequence[Host]) -> list[Hop]:
        """The links between switches, from one host to another, by their numbers in the list of all."""

    def check(self, of_workers: Sequence[Host], hosts: Sequence[Host]) -> None:
        """Raise InputError if some host cannot be reached; between peers those of the workers are enough."""
        return


@register("flat")
@checked
class Flat(Topology):
    """One switch, or a network that is never full: nothing but the NICs is limited."""

    def way(self, source: int, target: int, hosts: Sequence[Host]) -> list[Hop]:
        return []


@register("racks")
@checked
class Racks(Topology):
    """Racks of ``hosts`` each, filled in order, the server's hosts last; what leaves or enters one shares its uplink.

    The uplink carries, each way, ``bandwidth`` bytes per second, or else what the rack's NICs send (or receive) in all,
    over ``oversubscription``; then all of them have a bandwidth, or none of them. ``latency``: seconds that each
    crossing of an uplink adds. A dragonfly in this form: a rack is a group (of 384 nodes on the Cray XC), its uplink
    the group's global links, taken together.
    """

    hosts: Count
    oversubscription: Annotated[float, Meta(gt=0, le=1e9)] = 1.0
    bandwidth: Bandwidth | None = None
    latency: Latency = 0.0

    def validate(self) -> None:
        if self.bandwidth is not None and self.oversubscription != 1.0:
            raise InputError("give the uplink's bandwidth or its oversubscription, not both", "bandwidth")

    def check(self, of_workers: Sequence[Host], hosts: Sequence[Host]) -> None:
        if self.bandwidth is None:
            for rack in range(-(-len(of_workers) // self.hosts)):
                sends = [host.sends for host in self._in(rack, of_workers)]
                if min(sends) < max(sends) == float("inf"):
                    number = rack * self.hosts + sends.index(float("inf"))
                    what = f"host {number} has no bandwidth, others in rack {rack} have: what would its uplink carry?"
                    hint = "(hosts are numbered in order, those of the server last)"
                    raise InputError(f"{what} Give that host's, or the racks' {hint}", "bandwidth")

    def way(self, source: int, target: int, hosts: Sequence[Host]) -> list[Hop]:
        here, there = source // self.hosts, target // self.hosts
        if here == there:
            return []
        up = self.bandwidth or sum(host.sends for host in self._in(here, hosts)) / self.oversubscription
        down = self.bandwidth or sum(host.receives for host in self._in(there, hosts)) / self.oversubscription
        return [Hop(("up", here, here), up, self.latency), Hop(("down", there, there), down, self.latency)]

    def _in(self, rack: int, hosts: Sequence[Host]) -> Sequence[Host]:
        return hosts[rack * self.hosts : (rack + 1) * self.hosts]


@checked
class SiteLink:
    """A full-duplex link between sites ``a`` and ``b``, by number: bytes per second each way, and seconds one way."""

    a: Annotated[int, Meta(ge=0)]
    b: Annotated[int, Meta(ge=0)]
    bandwidth: Bandwidth
    latency: Latency = 0.0


@register("sites")
@checked
class Sites(Topology):
    """Data centres, joined by links: ``hosts`` says how many hosts stand at each, ``links`` what joins them.

    A link has ``a`` and ``b``, two sites by number, ``bandwidth`` in bytes per second each way, and ``latency`` in
    seconds one way. The server's hosts come last, and may be left out between peers. A message between sites takes the
    way of the least latency (of equal ones, that over the fewest links). Every site must be reachable from every other.
    """

    hosts: tuple[Count, ...]
    links: tuple[SiteLink, ...]

    def validate(self) -> None:
        seen = set()
        for k, link in enumerate(self.links):
            for end in ("a", "b"):
                if getattr(link, end) >= len(self.hosts):
                    what = f"the sites are 0 to {len(self.hosts) - 1}, not {getattr(link, end)}"
                    raise InputError(what, f"links[{k}].{end}")
            if link.a == link.b:
                raise InputError(f"joins site {link.a} with itself", f"links[{k}]")
            if frozenset((link.a, link.b)) in seen:
                raise InputError(f"joins sites {link.a} and {link.b}, which another link does already", f"links[{k}]")
            seen.add(frozenset((link.a, link.b)))

    def check(self, of_workers: Sequence[Host], hosts: Sequence[Host]) -> None:
        held = sum(self.hosts)
        if held not in (len(of_workers), len(hosts)):
            missing = f": host {held} is at no site" if held < len(hosts) else ""
            there = f"there are {len(hosts)} hosts (first those of the workers, then those of the server)"
            raise InputError(f"{there}, the sites hold {held}{missing}", "hosts")
        reached = self._reached()
        for site in range(1, len(self.hosts)):
            if site not in reached:
                first = sum(self.hosts[:site])
                raise InputError(f"host {first} (site {site}) cannot be reached from host 0 (site 0)", "links")

    def way(self, source: int, target: int, hosts: Sequence[Host]) -> list[Hop]:
        route = self._route(self._site(source), self._site(target))
        assert route is not None
        return route

    def _reached(self) -> set[int]:
        """The sites that site 0 is joined with."""
        beside: dict[int, list[int]] = {}
        for link in self.links:
            beside.setdefault(link.a, []).append(link.b)
            beside.setdefault(link.b, []).append(link.a)
        reached, coming = {0}, [0]
        while coming:
            new = [site for site in beside.get(coming.pop(), []) if site not in reached]
            reached.update(new)
            coming += new
        return reached

    def _site(self, host: int) -> int:
        site = 0
        while host >= self.hosts[site]:
            host -= self.hosts[site]
            site += 1
        return site

    def _route(self, start: int, goal: int) -> list[Hop] | None:
        """The way of the least latency (Dijkstra), or None."""
        queue: list[tuple[float, int, int, list[Hop]]] = [(0.0, 0, start, [])]
        done = set()
        while queue:
            seconds, hops, site, way = heapq.heappop(queue)
            if site == goal:
                return way
            if site in done:
                continue
            done.add(site)
            for link in self.links:
                if site in (link.a, link.b):
                    other = link.b if site == link.a else link.a
                    hop = Hop(("site", site, other), link.bandwidth, link.latency)
                    heapq.heappush(queue, (seconds + link.latency, hops + 1, other, [*way, hop]))
        return None
