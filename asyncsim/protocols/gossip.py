"""Each worker averages with a few neighbours only: D-PSGD, and push-sum along directed links."""

from __future__ import annotations

import itertools
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from asyncsim.errors import InputError
from asyncsim.exchanges import Exchanges
from asyncsim.exchanges.schedules import neighbours
from asyncsim.network.simulation import Process, Simulation
from asyncsim.network.turns import Gate
from asyncsim.protocols.base import Protocol
from asyncsim.protocols.rounds import blocking
from asyncsim.records import Count, checked, register


@register("d_psgd")
@checked
class RingAveraging(Protocol):
    """At every step each worker averages its model with those of its neighbours on a ring, all at equal weight.

    What is averaged are the models before the step; then each adds its own step, along the gradient where it was
    before: x_i = mean(x_(i-1), x_i, x_(i+1)) - eta g_i(x_i). ``reach``: neighbours on each side. A piece is exchanged
    when its gradient is ready, as in released codes; with ``early`` at the beginning of the step, as models are known
    then. Nobody waits for others than its neighbours, but what is late in one piece is later by one hop in the next
    one. D-PSGD: Lian et al. (NeurIPS 2017).
    """

    reach: Count = 1
    early: bool = False

    kind: ClassVar[str] = "peers"
    carries: ClassVar[str] = "models"

    def start(self, sim: Simulation) -> None:
        n = sim.num_workers
        reach = min(self.reach, n - 1)
        steps = [k for k in range(-reach, reach + 1) if k]
        beside = [sorted({(i + k) % n for k in steps} - {i}) for i in range(n)]
        schedule = neighbours(beside)
        rounds = blocking(Exchanges(sim, after=1.0), lambda _: schedule)  # the average is a pass over the model

        def worker(i: int) -> Process:
            mine = sorted([i, *beside[i]])
            for t in itertools.count():
                read, here = sim.log.read(i), rounds[t]
                here.messages[i] = sim.log.publish(i)
                end, ready = sim.begin(i)
                done = here.exchange.join(i, [sim.env.now] * len(ready) if self.early else ready)
                yield end
                yield from here.finish(i, done, f"its neighbours' models before step {t}", beside[i])
                sim.log.merge(i, here.mix(mine, [1 / len(mine)] * len(mine)))
                sim.log.step(i, read)
                rounds.leave(t)

        for i in range(n):
            sim.env.process(worker(i))


@checked
class _Pushing(Protocol):
    """Peers on a directed exponential graph."""

    peers: Count = 1
    graph: Literal["doubling", "exponential"] = "doubling"

    kind: ClassVar[str] = "peers"
    carries: ClassVar[str] = "mass"

    def check(self, num_workers: int) -> None:
        most = num_workers - 1 if self.graph == "exponential" else (num_workers - 1).bit_length()
        if self.peers > most and num_workers > 1:  # alone, a worker sends to nobody
            raise InputError(f"{num_workers} workers have at most {most} peers to send to, got {self.peers}", "peers")

    def distances(self, num_workers: int) -> list[list[int]]:
        """How far away those are that every worker sends to, in each step of a cycle."""
        if num_workers == 1:
            return [[]]
        cycle = 1
        while (2 if self.graph == "doubling" else self.peers + 1) ** cycle < num_workers:
            cycle += 1
        if self.graph == "doubling":
            distances = [[1 << (t + k) % cycle for k in range(self.peers)] for t in range(cycle)]
        else:
            distances = [[k * (self.peers + 1) ** t for k in range(1, self.peers + 1)] for t in range(cycle)]
        return [sorted({distance % num_workers for distance in each} - {0}) for each in distances]


@register("sgp")
@checked
class Push(_Pushing):
    """After every step each worker sends equal parts of its mass to ``peers`` others, and waits for what others send.

    In step t the others are 2^(t + k) away, k = 0 to ``peers`` - 1, exponents modulo the number of bits that P - 1 has
    (``graph`` doubling, as in the code of WAGMA-SGD's authors), or k (peers + 1)^t, k = 1 to ``peers`` (exponential, as
    in Assran's); with one peer both are the same. Pieces are sent as their gradients get ready. Stochastic gradient
    push: Assran et al. (ICML 2019).
    """

    def start(self, sim: Simulation) -> None:
        n = sim.num_workers
        sources = [[[(i - d) % n for d in each] for i in range(n)] for each in self.distances(n)]
        schedules = [neighbours(each) for each in sources]
        exchanges = Exchanges(sim, before=1.0, after=1.0)  # a part of the mass; z = x / w
        rounds = blocking(exchanges, lambda t: schedules[t % len(schedules)])

        def worker(i: int) -> Process:
            for t in itertools.count():
                read, here, mine = sim.log.read(i), rounds[t], sources[t % len(sources)][i]
                part = 1 / (1 + len(mine))
                end, ready = sim.begin(i)
                done = here.exchange.join(i, ready)
                yield end
                sim.log.step(i, read)
                here.messages[i] = sim.log.publish(i, keep=part)
                yield from here.finish(i, done, f"what is pushed to it in step {t}", mine)
                if mine:
                    sim.log.merge(i, here.mix(mine, [part] * len(mine)), keep=1.0, take=1.0)
                rounds.leave(t)

        for i in range(n):
            sim.env.process(worker(i))


@register("overlap_sgp")
@checked
class OverlapPush(_Pushing):
    """Push-sum under the gradient: what is sent at the beginning of a step is taken in at the beginning of a later one.

    Each worker takes in what has come, sends equal parts of its mass to ``peers`` others (as ``sgp`` says), and makes a
    step where it then is. It does not wait, unless something is missing that was sent to it in step t - 1 -
    ``staleness`` or before. Models travel whole, and a processor's passes over them (``sgp``) are not counted.
    Overlap-SGP (``synch_freq`` is the staleness): Assran et al. (ICML 2019).
    """

    staleness: Annotated[int, Meta(ge=0)] = 0

    def start(self, sim: Simulation) -> None:
        n = sim.num_workers
        cycle = self.distances(n)
        inboxes = [_Inbox(sim, cycle) for _ in range(n)]

        def deliver(i: int, j: int, t: int, mix: int, part: float) -> Process:
            yield sim.send(i, j)
            inboxes[j].put(t, mix, part)

        def worker(i: int) -> Process:
            mine = inboxes[i]
            for t in itertools.count():
                while n > 1 and mine.complete < t - self.staleness:
                    yield from sim.wait(i, mine.more.event(i), f"what was pushed to it in step {mine.complete}")
                for mix, part in mine.empty():
                    sim.log.merge(i, mix, keep=1.0, take=part)
                targets = [(i + d) % n for d in cycle[t % len(cycle)]]
                if targets:
                    part = 1 / (1 + len(targets))
                    mix = sim.log.mix([sim.log.publish(i, keep=part)], [1.0])
                    for j in targets:
                        sim.env.process(deliver(i, j, t, mix, part))
                read = sim.log.read(i)
                yield sim.compute(i)
                sim.log.step(i, read)

        for i in range(n):
            sim.env.process(worker(i))


class _Inbox:
    """What has come to a worker, and until which step all has."""

    def __init__(self, sim: Simulation, cycle: list[list[int]]):
        self._senders = [len(each) for each in cycle]  # in each step of the cycle, how many send to it
        self._came: dict[int, int] = {}  # messages of a step that is not complete
        self._mixes: list[tuple[int, float]] = []
        self.complete = 0  # of all steps before this one everything has come
        self.more = Gate(sim.env)

    def put(self, step: int, mix: int, part: float) -> None:
        """A message that was sent in this step has come."""
        self._mixes.append((mix, part))
        self._came[step] = self._came.get(step, 0) + 1
        while self._came.get(self.complete) == self._senders[self.complete % len(self._senders)]:
            del self._came[self.complete]
            self.complete += 1
        self.more.open()

    def empty(self) -> list[tuple[int, float]]:
        """All that has come since the last time: mixes, and the part of each that is this worker's."""
        came, self._mixes = self._mixes, []
        return came
