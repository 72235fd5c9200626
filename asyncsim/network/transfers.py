"""Messages on their way: latency first, then their bytes over the links, then their turn at the target's processor."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

import simpy

from asyncsim.cluster.cluster import Cluster
from asyncsim.network.layout import Layout, Route
from asyncsim.network.sharing import SAME_TIME, FairSharing, Flow
from asyncsim.network.turns import Turn, bury, call

FIRST = -1  # the turn before all workers' at an instant
Log = Callable[[tuple[float, ...]], None]


def _nothing() -> None:
    return


class Message(Flow):
    """One transfer. ``done`` is called when the target has it, ``left`` when its last byte is over the links."""

    __slots__ = ("alarm", "done", "kind", "left", "moved", "route", "sent", "start", "worker")

    def __init__(
        self, worker: int, kind: int, route: Route, size: float, now: float, done: Callable[[], Any], left: Any
    ):
        super().__init__(size, route.path)
        self.worker, self.kind, self.route, self.done, self.left, self.start = worker, kind, route, done, left, now
        self.moved = 0.0  # bytes over the links so far, where something looks
        self.sent = False  # whether its bytes are on the links, or were
        self.alarm: Turn | None = None  # when something happens to it next

    def later(self, env: simpy.Environment, seconds: float, what: Callable[[simpy.Event], Any]) -> None:
        """Something happens to it so many seconds from now."""
        self.alarm = turn = Turn(env, seconds, self.worker)
        turn.callbacks.append(what)


class Carrier(Protocol):
    """How messages share links: the three ways below."""

    def carry(self, message: Message) -> None:
        """Its latency is over: bring its bytes over the links, then call ``arrived``."""

    def moved(self, message: Message) -> float:
        """The bytes that are over the links by now."""

    def drop(self, message: Message) -> None:
        """It is given up."""


class Transfers:
    """All messages of a simulation. ``log`` gets a row for each, as ``Recorder.transfer`` wants it."""

    def __init__(self, env: simpy.Environment, cluster: Cluster, log: Log, kind: str = "server"):
        self.env, self.layout, self._log = env, Layout(cluster, kind), log
        self.last_turn = cluster.num_workers  # after all workers' turns at an instant
        self.eager_limit = float("inf") if cluster.eager_limit is None else cluster.eager_limit
        makers: dict[str, Callable[[Transfers], Carrier]] = {"fair": Fair, "fifo": InOrder, "none": Alone}
        makers["rounds"] = Alone  # what is no part of an exchange
        self.carrier: Carrier = makers[cluster.sharing](self)
        self._free: dict[int, float] = {}  # by host: when its processor is done with what has arrived
        self._under_way: dict[Message, None] = {}
        self._held: dict[Message, None] = {}  # announced, to a receiver that is not ready

    def send(
        self,
        worker: int,
        kind: int,
        source: int,
        target: int,
        size: float,
        done: Callable[[], Any] = _nothing,
        *,
        left: Callable[[], Any] = _nothing,
        ready: simpy.Event | None = None,
        hold: Callable[[Message], Any] | None = None,
        as_large_as: float = 0.0,
    ) -> Message:
        """Send ``size`` bytes from place to place, on behalf of a worker; ``done`` is called when they have arrived.

        ``ready``: an event; a message above the eager limit waits until it has happened. ``left`` is called when the
        last byte is over the links, before the target's processor takes the message in. ``hold`` is called when its
        first byte could be on the links; they get it when the sender says so (``begin``).
        ``as_large_as``: it is announced as one of so many bytes would be.
        """
        route = self.layout.route(source, target)
        message = Message(worker, kind, route, size, self.env.now, done, left)
        self._under_way[message] = None
        begin = functools.partial(hold or self.begin, message)
        if max(size, as_large_as) <= self.eager_limit:
            message.later(self.env, route.latency, begin)
        else:
            message.later(self.env, route.latency, lambda _: self._announced(message, ready, begin))
        return message

    def lead(self, source: int, target: int, size: float) -> float:
        """Seconds before the first byte of a message to a receiver that is ready."""
        latency = self.layout.route(source, target).latency
        return latency if size <= self.eager_limit else 3 * latency

    def _announced(self, message: Message, ready: simpy.Event | None, begin: Callable[[simpy.Event], Any]) -> None:
        """The receiver knows of it: its answer, then the first byte, take a latency each."""

        def answer(_: object = None) -> None:
            self._held.pop(message, None)
            message.later(self.env, 2 * message.route.latency, begin)

        if ready is None or ready.callbacks is None:
            answer()
        else:
            self._held[message] = None
            ready.callbacks.append(answer)

    def held(self) -> list[str]:
        """Messages that wait for a receiver, in words."""
        return [
            f"{message.size:g} bytes of worker {message.worker} wait for host {message.route.target} to receive them"
            for message in self._held
        ]

    def begin(self, message: Message, _: object = None) -> None:
        """Its bytes may go over the links now."""
        if message not in self._under_way:
            return  # given up before
        message.sent = True
        if message.path and message.size:
            self.carrier.carry(message)
        else:
            self.arrived(message)

    def arrived(self, message: Message) -> None:
        """The last byte is over the links: the target's processor takes it in."""
        message.moved = message.size
        message.left()
        if message.route.copies == float("inf") or not message.size:  # a word is no work
            self._end(message)
        else:
            seconds = self.processed(message.route.target, message.size, message.route.copies)
            message.later(self.env, seconds, lambda _: self._end(message))

    def processed(self, host: int, size: float, bandwidth: float) -> float:
        """The host's processor goes over so many bytes in its turn; the seconds until it has."""
        self._free[host] = free = max(self.env.now, self._free.get(host, 0.0)) + size / bandwidth
        return free - self.env.now

    def _end(self, message: Message) -> None:
        if message in self._under_way:
            self._write(message, self.env.now)
            message.done()

    def drop(self, message: Message) -> None:
        """Give a message up: what is not over the links yet is not sent."""
        if message in self._under_way:
            self._look(message)
            self._write(message, self.env.now)
            bury(self.env, [message.alarm])
            if message.sent and message.moved < message.size:
                self.carrier.drop(message)

    def close(self) -> None:
        """The simulation ends: write down what is still under way."""
        for message in list(self._under_way):
            self._look(message)
            self._write(message, float("inf"))

    def _look(self, message: Message) -> None:
        if message.sent and message.moved < message.size:
            message.moved = self.carrier.moved(message)

    def _write(self, message: Message, end: float) -> None:
        del self._under_way[message]
        source, target = message.route.source, message.route.target
        self._log((message.start, end, message.kind, message.worker, source, target, message.size, message.moved))


class Alone:
    """Each message as if it were alone: its size over the narrowest link's bandwidth."""

    def __init__(self, transfers: Transfers):
        self._transfers, self._begun = transfers, dict[Message, float]()

    def carry(self, message: Message) -> None:
        env = self._transfers.env
        self._begun[message] = env.now
        message.later(env, message.size / message.route.rate, lambda _: self._over(message))

    def _over(self, message: Message) -> None:
        if self._begun.pop(message, None) is not None:
            self._transfers.arrived(message)

    def moved(self, message: Message) -> float:
        passed = self._transfers.env.now - self._begun[message]
        return min(passed * message.route.rate, message.size)

    def drop(self, message: Message) -> None:
        del self._begun[message]


class InOrder:
    """On each link one message after another, as they come; a message goes on to the next link with its first byte.

    As in the LogGP family of models: sender and receiver are held apart, and what waits in between holds nobody. What
    was handed to a link is sent, also if it is given up then.
    """

    def __init__(self, transfers: Transfers):
        self._transfers, self._begun = transfers, dict[Message, tuple[float, float] | None]()

    def carry(self, message: Message) -> None:
        self._hop(message, 0, 0.0)

    def _hop(self, message: Message, k: int, over: float) -> None:
        """Its first byte is at link k; its last one is over the link before it at the time ``over``."""
        if k and message not in self._begun:
            return  # given up on its way
        env, link = self._transfers.env, message.path[k]
        begins = max(env.now, link.free)
        link.free = over = max(over, begins + message.size / link.capacity)
        last = k + 1 == len(message.path)
        self._begun[message] = (begins, over) if last else None
        if last:
            message.later(env, over - env.now, lambda _: self._over(message))
        elif begins > env.now:
            message.later(env, begins - env.now, lambda _: self._hop(message, k + 1, over))
        else:
            self._hop(message, k + 1, over)

    def _over(self, message: Message) -> None:
        if self._begun.pop(message, None) is not None:
            self._transfers.arrived(message)

    def moved(self, message: Message) -> float:
        """Over the last link."""
        when = self._begun[message]
        if when is None:
            return 0.0
        begins, over = when
        now = self._transfers.env.now
        return message.size * (min(max((now - begins) / (over - begins), 0.0), 1.0) if over > begins else now >= over)

    def drop(self, message: Message) -> None:
        del self._begun[message]


class Fair:
    """All messages share the links max-min fairly; rates are found anew at each instant at which something changes.

    A message that has all of its links to itself is ``_solo``: it needs no more than an alarm at its end, until another
    comes to one of them.
    """

    def __init__(self, transfers: Transfers):
        self._transfers, self._sharing = transfers, FairSharing()
        self._solo: dict[Message, tuple[float, float, float]] = {}  # since when, at which rate, until when
        self._settling = False
        self._next = 0  # which alarm is the one that counts

    def carry(self, message: Message) -> None:
        env = self._transfers.env
        for link in message.path:
            if link.flows:
                break
        else:
            now, rate = env.now, message.route.rate
            end = now + message.size / rate
            for link in message.path:
                link.flows[message] = None
            self._solo[message] = now, rate, end
            message.later(env, end - now, lambda _: self._over(message))
            return
        self._go_on()
        for link in message.path:
            for other in link.flows:
                if other in self._solo:  # at most one, which has it for itself
                    self._meet(other)
                    break
        self._sharing.start(message)

    def _over(self, message: Message) -> None:
        """A message is over its links, if it has met no other there."""
        if self._solo.pop(message, None) is None:
            return
        self._leave(message)
        self._transfers.arrived(message)

    def _leave(self, message: Message) -> None:
        for link in message.path:
            link.flows.pop(message, None)

    def _meet(self, message: Message) -> None:
        """Another comes to one of its links."""
        since, rate, end = self._solo[message]
        now = self._transfers.env.now
        self._leave(message)
        if end <= now * (1 + SAME_TIME):
            return  # at the very instant of its end, for which its alarm is set
        del self._solo[message]
        bury(self._transfers.env, [message.alarm])
        self._sharing.start(message, message.size - rate * (now - since))

    def moved(self, message: Message) -> float:
        if message in self._solo:
            since, rate, _ = self._solo[message]
            return min(rate * (self._transfers.env.now - since), message.size)
        self._go_on()
        return message.size - self._sharing.left(message) if message.group is not None else message.size

    def drop(self, message: Message) -> None:
        if self._solo.pop(message, None) is not None:
            self._leave(message)  # its alarm is buried
        elif message.group is not None:
            self._go_on()
            self._sharing.stop(message)

    def _go_on(self) -> None:
        """Bring all flows up to now, and when all changes of this instant are made, find the rates."""
        if self._transfers.env.now > self._sharing.now:
            self._advance()
        if not self._settling:
            self._settling = True
            last = Turn(self._transfers.env, 0.0, self._transfers.last_turn)
            assert last.callbacks is not None
            last.callbacks.append(self._settle)

    def _advance(self) -> None:
        for flow in self._sharing.advance(self._transfers.env.now):
            assert isinstance(flow, Message)
            call(self._transfers.env, 0.0, flow.worker, functools.partial(self._transfers.arrived, flow))

    def _settle(self, _: object) -> None:
        env, self._settling = self._transfers.env, False
        end = self._sharing.settle()
        self._next += 1
        if end < float("inf"):
            # at once at that time, so that what ends takes its turns with all else that happens then
            call(env, max(end - env.now, 0.0), FIRST, functools.partial(self._ring, self._next))

    def _ring(self, number: int) -> None:
        if number == self._next:
            self._advance()  # also where the clock could not go on by so little
            if self._sharing.busy:
                self._go_on()
