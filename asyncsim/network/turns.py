"""What happens at one instant goes in a fixed order: by worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import simpy


class Turn(simpy.Event):
    """A delay after which workers that finish at the same instant go on in the order of their numbers.

    SimPy orders equal times by when each event was scheduled; then a fast worker would sometimes come before and
    sometimes after a slow one. The priority makes it one rule: everything SimPy does by itself at an instant comes
    first (priorities 0 and 1), then worker 0, 1, 2, ... With ``seconds`` None it is scheduled later, by ``start``.
    """

    def __init__(self, env: simpy.Environment, seconds: float | None, worker: int):
        super().__init__(env)
        self._worker = worker
        if seconds is not None:  # as in start, which would be one more call for each gradient
            self._ok = True
            self._value = None
            env.schedule(self, 2 + worker, seconds)  # type: ignore[arg-type]

    def start(self, seconds: float = 0.0) -> None:
        """Happen so many seconds from now."""
        self._ok = True
        self._value = None
        self.env.schedule(self, 2 + self._worker, seconds)  # type: ignore[arg-type]


def call(env: simpy.Environment, seconds: float, worker: int, what: Callable[[], Any]) -> None:
    """Do something so many seconds from now, at the worker's turn."""
    turn = Turn(env, seconds, worker)
    assert turn.callbacks is not None
    turn.callbacks.append(lambda _: what())
