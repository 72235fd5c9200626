"""Group averages that wait for nobody."""

from __future__ import annotations

import functools
import itertools
from typing import Any, ClassVar, Literal

from asyncsim.errors import InputError
from asyncsim.exchanges import Exchanges, Schedule
from asyncsim.exchanges.schedules import butterfly, recursive_doubling
from asyncsim.network.simulation import Process, Simulation
from asyncsim.protocols.base import Protocol
from asyncsim.protocols.rounds import Rounds, blocking
from asyncsim.protocols.wait_avoiding import COPIED, PartialRound, PartialRounds, Period, refuse_unless_power_of_two
from asyncsim.records import Count, checked, register


@register("wagma")
@checked
class WaitAvoidingGroups(Protocol):
    """Group averages that wait for nobody, and a global one now and then: WAGMA-SGD, algorithm 2.

    In iteration t each worker makes a step, and averages its model within its group of ``group_size`` (S) workers. Left
    out, S is the power of two next to the square root of P (at least 2). The first worker that comes to an iteration
    activates it in all groups; of who is late, the newest finished model is taken, at full weight. A worker that was
    late gets (sum of the group + its own) / (S + 1). At each ``sync_period``-th (tau) iteration all wait for all, and
    average globally, so that no contribution is older than tau - 1 iterations; 0: never.

    ``groups``: dynamic, by a butterfly that goes on with t: r = 0 .. log2(S) - 1 pairs p with p XOR
    2^((t log2(S) + r) mod log2(P)); fixed, always those of t = 0; none, local steps between global averages, as in
    local SGD. ``wait``: first, the activation above; all, groups wait for all their members. ``average``: after, of the
    models after the step; before, of those before it, to which the step is added, as in the released code and in the
    proof. ``count_own``: late, or always, as in the released code, also a worker in time divides by S + 1. (That code's
    global average comes in every 11th iteration.) Pieces one after another: a worker is late if its step is not done
    when its last piece is activated. P and S are powers of two. Li et al. (TPDS 32(7), 2021); its line on the groups is
    printed without resetting the mask, which its own example contradicts.
    """

    group_size: Count | None = None
    sync_period: Period = 10
    groups: Literal["dynamic", "fixed", "none"] = "dynamic"
    wait: Literal["first", "all"] = "first"
    average: Literal["after", "before"] = "after"
    count_own: Literal["late", "always"] = "late"

    kind: ClassVar[str] = "peers"
    carries: ClassVar[str] = "models"

    def check(self, num_workers: int) -> None:
        refuse_unless_power_of_two(num_workers)
        size = self.group_size
        if size is not None and self.groups == "none":
            raise InputError("goes with groups; there are none", "group_size")
        if size is not None and (size & (size - 1) or size > num_workers):
            raise InputError(f"expected a power of two of at most {num_workers} workers, got {size}", "group_size")
        if self.size_of_groups(num_workers) == 1 < num_workers and not self.sync_period:
            raise InputError("without groups, and never global: nothing would be averaged", "sync_period")

    def size_of_groups(self, num_workers: int) -> int:
        """S."""
        if self.groups == "none":
            return 1
        return self.group_size or min(max(1 << ((num_workers.bit_length() - 1) // 2), 2), num_workers)

    def bits(self, num_workers: int, t: int) -> tuple[int, ...]:
        """Of the workers' numbers, those by which a group in iteration t is made, in the order of its exchanges."""
        depth = num_workers.bit_length() - 1
        width = self.size_of_groups(num_workers).bit_length() - 1
        begin = t * width if self.groups == "dynamic" else 0
        return tuple((begin + r) % depth for r in range(width))

    def start(self, sim: Simulation) -> None:
        n, size = sim.num_workers, self.size_of_groups(sim.num_workers)
        exchanges = Exchanges(sim, before=COPIED, after=1.0)
        sent: dict[int, int] = {}  # the newest finished model of each

        @functools.cache
        def grouped(bits: tuple[int, ...]) -> tuple[Schedule, list[list[int]]]:
            """The schedule of these groups, and of each worker its group."""
            schedule = butterfly(n, bits)
            assert schedule.groups is not None
            labels = schedule.groups.tolist()
            members: dict[int, list[int]] = {}
            for i, label in enumerate(labels):
                members.setdefault(label, []).append(i)
            return schedule, [members[label] for label in labels]

        def message(i: int) -> int:
            if i not in sent:  # late in its first iteration: what all began with
                sent[i] = sim.log.publish(i)
            return sent[i]

        def schedule(t: int) -> Schedule:
            return grouped(self.bits(n, t))[0]

        whole = recursive_doubling(n)
        globally, waiting = blocking(exchanges, lambda _: whole), blocking(exchanges, schedule)
        avoiding = PartialRounds(n, lambda t: PartialRound(sim, exchanges, schedule(t), message))
        groups: Rounds[Any] = avoiding if self.wait == "first" else waiting
        everybody, mean, in_group = range(n), [1 / n] * n, [1 / size] * size

        def worker(i: int) -> Process:
            for t in itertools.count():
                syncs = bool(self.sync_period) and (t + 1) % self.sync_period == 0
                read = sim.log.read(i)
                end, ready = sim.begin(i)
                if size == 1 and not syncs:
                    yield end
                    sim.log.step(i, read)
                    continue
                rounds: Rounds[Any] = globally if syncs else groups
                here = rounds[t]
                done = here.exchange.join(i, ready)
                yield end
                if self.average == "after":
                    sim.log.step(i, read)
                sent[i] = sim.log.publish(i)
                if syncs or self.wait == "all":
                    here.messages[i] = sent[i]
                members = None if syncs else grouped(self.bits(n, t))[1][i]
                yield from here.finish(i, done, f"the {'global' if syncs else 'group'} average of {t}", members)
                if syncs:
                    sim.log.merge(i, here.mix(everybody, mean))
                else:
                    number = t
                    if self.wait == "first":
                        number, here = avoiding.newest(t, i)
                    mix = here.mix(grouped(self.bits(n, number))[1][i], in_group)
                    own = here.messages[i] != sent[i] or self.count_own == "always"
                    sim.log.merge(i, mix, keep=own / (size + 1), take=1 - own / (size + 1))
                if self.average == "before":
                    sim.log.step(i, read)
                rounds.leave(t)

        for i in everybody:
            sim.env.process(worker(i))
