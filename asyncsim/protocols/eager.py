"""All-reduce of gradients that waits for nobody."""

from __future__ import annotations

import itertools
from typing import ClassVar, Literal

from asyncsim.exchanges import Exchanges
from asyncsim.exchanges.schedules import recursive_doubling
from asyncsim.network.simulation import Process, Simulation
from asyncsim.protocols.base import Protocol
from asyncsim.protocols.rounds import blocking
from asyncsim.protocols.wait_avoiding import COPIED, PartialRound, PartialRounds, Period, refuse_unless_power_of_two
from asyncsim.records import checked, register
from asyncsim.streams import Purpose, generator


@register("eager")
@checked
class EagerAllreduce(Protocol):
    """All-reduce of gradients that waits for nobody: who is late contributes next time (eager-SGD).

    A worker adds its gradient to those of its own that no round has had yet. ``initiator`` solo: the first worker that
    comes to an iteration activates its round for all; majority: one drawn for each iteration, the same for all, so that
    half of them are there on average. The sum of what was there is divided by P, whoever contributed. Each
    ``sync_period``-th iteration waits for all gradients; after each ``average_period``-th the models are averaged (0:
    never), as they part: who is late by several rounds sees the newest only. Whole vectors by recursive doubling, piece
    after piece. Li et al. (Taming unbalanced training workloads in deep learning with partial collective operations,
    PPoPP 2020).
    """

    initiator: Literal["solo", "majority"] = "solo"
    sync_period: Period = 0
    average_period: Period = 0

    kind: ClassVar[str] = "peers"
    carries: ClassVar[str] = "gradients"

    def check(self, num_workers: int) -> None:
        refuse_unless_power_of_two(num_workers)

    def start(self, sim: Simulation) -> None:
        n = sim.num_workers
        exchanges, schedule = Exchanges(sim, before=COPIED, after=1.0), recursive_doubling(n)
        held: set[int] = set()  # workers with gradients that no round has had
        share = 1 / n

        def contribution(i: int) -> int | None:
            if i not in held:
                return None
            held.discard(i)
            return sim.log.publish(i, keep=0.0)

        drawn: list[int] = []
        rng = generator(sim.seed, Purpose.NEIGHBOURS)

        def first(t: int) -> int | None:
            while self.initiator == "majority" and len(drawn) <= t:
                drawn.extend(rng.integers(n, size=1000).tolist())
            return drawn[t] if drawn else None

        partial = PartialRounds(n, lambda t: PartialRound(sim, exchanges, schedule, contribution, first(t)))
        full, models = (blocking(exchanges, lambda _: schedule) for _ in range(2))

        def worker(i: int) -> Process:
            for t in itertools.count():
                waits = bool(self.sync_period) and (t + 1) % self.sync_period == 0
                here = full[t] if waits else partial[t]
                read = sim.log.read(i)
                end, ready = sim.begin(i)
                done = here.exchange.join(i, ready)
                yield end
                sim.log.step(i, read)
                held.add(i)
                if waits:
                    here.messages[i] = sim.log.publish(i, keep=0.0)
                    held.discard(i)
                yield from here.finish(i, done, f"the round of iteration {t}")
                came = here if waits else partial.newest(t, i)[1]
                members = sorted(came.messages)
                sim.log.merge(i, came.mix(members, [share] * len(members)), keep=1.0, take=1.0)
                (full if waits else partial).leave(t)
                if self.average_period and (t + 1) % self.average_period == 0:
                    here = models[t]
                    here.messages[i] = sim.log.publish(i)
                    done = here.exchange.join(i, [sim.env.now] * len(ready))
                    yield from here.finish(i, done, f"the models after iteration {t}")
                    sim.log.merge(i, here.mix(range(n), [share] * n))
                    models.leave(t)

        for i in range(n):
            sim.env.process(worker(i))
