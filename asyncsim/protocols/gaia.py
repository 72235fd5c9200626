"""Sites that tell each other only what has changed enough: a protocol that values steer."""

from __future__ import annotations

from typing import ClassVar

import simpy

from asyncsim.network.simulation import Process, Simulation
from asyncsim.protocols.base import Protocol
from asyncsim.records import Count, checked, register


@register("gaia")
@checked
class SignificantUpdates(Protocol):
    """After each gradient a site sends the others those of its changes that are significant, if there are any.

    Each worker is a site (a data centre, say) with a model of its own. What is significant is the algorithm's decision:
    the share of parameters that it would send now, from 0 to 1; so many of its ``costs.upload`` models travel to every
    other site, and are added there when they arrive. Nobody waits; but while ``under_way`` messages of a site have not
    arrived everywhere, it keeps its changes to itself, so that a network that is too slow is not flooded. The
    approximate synchronous parallel of Gaia (Hsieh et al., NSDI 2017), recalled; its selective barrier and mirror
    clock, which bound how late an update may come, are not modelled.
    """

    under_way: Count = 8

    kind: ClassVar[str] = "peers"
    carries: ClassVar[str] = "changes"
    steered: ClassVar[bool] = True

    def start(self, sim: Simulation) -> None:
        going = [0] * sim.num_workers  # messages of each that have not arrived everywhere

        def site(i: int) -> Process:
            others = [j for j in range(sim.num_workers) if j != i]
            while True:
                read = sim.log.read(i)
                yield sim.compute(i)
                sim.log.step(i, read)
                share = 0.0 if going[i] == self.under_way else (yield from sim.ask(i))
                if share > 0:
                    message = sim.log.publish(i)
                    mix = sim.log.mix([message], [1.0])
                    sim.log.release(message)
                    going[i] += 1
                    arrivals = [sim.env.process(to(i, j, mix, share)) for j in others]
                    sim.env.process(arrived(i, arrivals, mix))

        def to(i: int, j: int, mix: int, share: float) -> Process:
            yield sim.send(i, j, share * sim.log.costs.upload)
            sim.log.merge(j, mix, keep=1.0, take=1.0)

        def arrived(i: int, arrivals: list[simpy.Process], mix: int) -> Process:
            yield sim.env.all_of(arrivals)
            sim.log.release(mix)
            going[i] -= 1

        for i in range(sim.num_workers):
            sim.env.process(site(i))
