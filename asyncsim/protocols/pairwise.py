"""Pairs of workers average their models while they compute, and wait for nobody: AD-PSGD."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

import simpy
from msgspec import Meta

from asyncsim.errors import InputError
from asyncsim.network.simulation import Process, Simulation
from asyncsim.network.turns import Lock
from asyncsim.protocols.base import Protocol
from asyncsim.records import checked, register
from asyncsim.streams import Purpose, generator

MOST = 10_000  # averages of a worker in a step


@register("ad_psgd")
@checked
class PairwiseAveraging(Protocol):
    """Every second worker averages with another one, pair by pair, while both go on computing.

    Workers of odd numbers are active, those of even numbers passive, so that nobody waits in a circle. During each of
    its gradients an active worker does ``averages`` of them, one after another; where these take longer, the next
    gradient waits. 0: one after another without pause, as in released codes, and nobody waits for them. A passive
    worker answers one at a time. Then both models travel at once, and when both are there, each takes half of the
    difference between them as they were sent: steps made in between stay whole. A gradient is applied to the model as
    it then is. ``graph``: ring, the neighbour after, then the one before; exponential, those 1, 3, 5, 9, 17, ... after
    and before, in turn; random, any passive one.

    On hosts with a ``copy_bandwidth`` a model is copied before it is sent, and averaged after; and the computing side
    goes over it twice, as gradients get ready, to average with the shared model and to store it. Without pause the two
    sides share the processor, which then does the latter at about half its speed. AD-PSGD: Lian et al. (ICML 2018);
    graphs and copies as in the code of WAGMA-SGD's authors.
    """

    averages: Annotated[int, Meta(ge=0, le=MOST)] = 1
    graph: Literal["ring", "exponential", "random"] = "ring"

    kind: ClassVar[str] = "peers"
    carries: ClassVar[str] = "models"

    def start(self, sim: Simulation) -> None:
        locks = {j: Lock(sim.env) for j in range(0, sim.num_workers, 2)}
        if not self.averages:
            self._check_that_it_takes_time(sim)

        def average(i: int, j: int) -> Process:
            """Active i with passive j."""
            yield sim.send(i, j, 0.0)
            yield from locks[j].enter(i)
            yield sim.process(i, 1.0) & sim.process(j, 1.0)
            sent = sim.log.publish(i), sim.log.publish(j)
            yield sim.send(i, j) & sim.send(j, i)
            yield sim.process(i, 1.0) & sim.process(j, 1.0)
            mix = sim.log.mix(sent, [0.5, -0.5])
            sim.log.merge(min(i, j), mix, keep=1.0, take=1.0 if j < i else -1.0)
            sim.log.merge(max(i, j), mix, keep=1.0, take=1.0 if j > i else -1.0)
            locks[j].leave()

        def gossip(i: int, partners: Iterator[int]) -> Process:
            for _ in range(self.averages) if self.averages else itertools.count():
                yield from average(i, next(partners))

        def worker(i: int) -> Process:
            partners = self._partners(i, sim) if i % 2 else None
            going: simpy.Event | None = None
            if partners is not None and not self.averages:
                sim.env.process(gossip(i, partners))
            while True:
                if partners is not None and self.averages:
                    going = sim.env.process(gossip(i, partners))
                read = sim.log.read(i)
                end, ready = sim.begin(i)
                yield end
                copied = sim.pass_over(i, ready, 2.0, shared=not self.averages)
                if copied is not None:
                    yield from sim.wait(i, copied, "its processor")
                sim.log.step(i, read)
                if going is not None and not going.processed:
                    yield from sim.wait(i, going, "its averages")

        for i in range(sim.num_workers):
            sim.env.process(worker(i))

    def _check_that_it_takes_time(self, sim: Simulation) -> None:
        """Without pause, an active worker would else average for ever, or nearly so, at one instant."""
        for i in range(1, sim.num_workers, 2):
            some = itertools.islice(self._partners(i, sim), 2 * sim.num_workers)
            seconds, step = max(sim.seconds_between(i, j) for j in some), sim.mean_seconds(i)
            if seconds * MOST < step:
                what = f"without pause worker {i} averages more than {MOST} times a step, each in {seconds:.3g} s"
                raise InputError(f"{what}: it needs a slower network, or averages >= 1", "averages")

    def _partners(self, i: int, sim: Simulation) -> Iterator[int]:
        """Those that an active worker averages with, one after another, without end."""
        n = sim.num_workers
        passive = range(0, n, 2)
        if self.graph == "random":
            rng = generator(sim.seed, Purpose.NEIGHBOURS, i)
            while True:
                yield from (passive[k] for k in rng.integers(len(passive), size=1000).tolist())
        steps = [1]
        if self.graph == "exponential":
            steps += [1 + (1 << k) for k in range(1, (n - 1).bit_length()) if 1 + (1 << k) < n]
        both = [(i + sign * step) % n for step in steps for sign in (1, -1)]
        yield from itertools.cycle([j for j in both if j % 2 == 0])
