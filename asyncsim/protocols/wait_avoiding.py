"""Rounds that wait for nobody, of which eager-SGD and WAGMA-SGD are made.

Whoever is first activates the round of its iteration for all; a worker that is late takes part, without noticing, with
what it has. When it comes to that iteration itself, the round is over: it takes the result of the newest one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated

import simpy
from msgspec import Meta

from asyncsim.errors import InputError
from asyncsim.exchanges import Exchanges, PartialExchange, Schedule
from asyncsim.network.simulation import Process, Simulation
from asyncsim.protocols.rounds import Round, Rounds

# Passes of the processor (``Host.copy_bandwidth``): a copy into the buffer that is sent, which is worth half of one
# over what is averaged, or, with gradients, cleared.
COPIED = 0.5
Period = Annotated[int, Meta(ge=0, le=10**9)]  # iterations; 0: never


class PartialRound(Round):
    """A round that waits for nobody. ``messages``: what each worker has contributed."""

    exchange: PartialExchange

    def __init__(
        self,
        sim: Simulation,
        exchanges: Exchanges,
        schedule: Schedule,
        message: Callable[[int], int | None],
        activator: int | None = None,
    ):
        super().__init__(sim, exchanges.partial(schedule, self._contribute, activator))
        self._message = message
        self._partners = () if activator is None else (activator,)

    def finish(self, worker: int, done: simpy.Event, what: str, partners: Iterable[int] | None = None) -> Process:
        return super().finish(worker, done, what, self._partners)

    def _contribute(self, worker: int) -> None:
        row = self._message(worker)
        if row is not None:
            self.messages[worker] = row


class PartialRounds(Rounds[PartialRound]):
    """Rounds that wait for nobody; the newest counts."""

    def newest(self, number: int, worker: int) -> tuple[int, PartialRound]:
        """Of this round, which is over for the worker, and later ones, the latest that is; with its number."""
        latest = next((k for k in reversed(self._open) if k <= number or self._open[k].exchange.over(worker)), number)
        latest = max(latest, number)
        return latest, self._open[latest]


def refuse_unless_power_of_two(num_workers: int) -> None:
    """Raise InputError; the butterfly and the activation's hypercube need it."""
    if num_workers & (num_workers - 1):
        below = 1 << (num_workers.bit_length() - 1)
        what = f"partial collectives run on a power of two of workers (recursive doubling), not on {num_workers}"
        raise InputError(f"{what}; {below} or {2 * below} would do")
