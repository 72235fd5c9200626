"""The machines that workers and servers run on: what their network interfaces and processors can move."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from asyncsim.records import Family, checked, register

Bandwidth = Annotated[float, Meta(ge=1e-3, le=1e18)]  # bytes per second
Latency = Annotated[float, Meta(ge=0, le=1e12)]  # seconds


@register("host")
@checked
class Host(Family):
    """A machine with a full-duplex network interface (NIC); what is left out is not limited, and free.

    ``workers``: how many of them, each on a GPU of its own, share it (of a server's host: how many shards).
    ``bandwidth``: of its NIC in bytes per second, sending and receiving apart; ``receive_bandwidth``: of receiving,
    where that differs. ``latency``: the host's share of a message's way, in seconds: a message pays its sender's, its
    receiver's, and the cluster's between them. ``link_bandwidth`` and ``link_latency``: of each worker's link (each
    way) to the others on the same host; between them nothing goes through the NIC. ``copy_bandwidth``: the bytes per
    second that the processor reduces or copies: each message that arrives from another host takes its turn there.

    A machine of your own is a subclass with other defaults, registered under its name.
    """

    family = "host"
    unnamed: ClassVar[str] = "host"  # a table without a name is a host of its own figures

    workers: Annotated[int, Meta(ge=1, le=100_000)] = 1
    bandwidth: Bandwidth | None = None
    receive_bandwidth: Bandwidth | None = None
    latency: Latency = 0.0
    link_bandwidth: Bandwidth | None = None
    link_latency: Latency = 0.0
    copy_bandwidth: Bandwidth | None = None

    @property
    def sends(self) -> float:
        """Bytes per second of its NIC, outwards."""
        return self.bandwidth or float("inf")

    @property
    def receives(self) -> float:
        """Bytes per second of its NIC, inwards."""
        return self.receive_bandwidth or self.sends
