"""How the learning rate moves: a factor on the algorithm's own, by the clock of samples."""

from __future__ import annotations

from typing import Literal

import numpy as np

from asyncsim.errors import InputError
from asyncsim.records import NonNegative, Positive, checked


@checked
class Schedule:
    """Linear warm-up, then constant, steps or a cosine. All lengths are in epochs (samples processed / data set size).

    ``warmup``: over this long the factor rises linearly from ``warmup_start`` to 1. ``decay``: ``"constant"``;
    ``"step"``: x ``gamma`` at each of the ``milestones``; ``"cosine"``: from 1 at the end of the warm-up down to
    ``final`` at ``length``. Since the clock counts samples, a schedule means the same for any number of workers.
    """

    decay: Literal["constant", "step", "cosine"] = "constant"
    warmup: NonNegative = 0.0
    warmup_start: NonNegative = 0.0
    milestones: tuple[Positive, ...] = ()
    gamma: Positive = 0.1
    length: Positive | None = None
    final: NonNegative = 0.0

    def validate(self) -> None:
        if self.decay == "step" and not self.milestones:
            raise InputError("a step decay needs milestones, in epochs", "milestones")
        if list(self.milestones) != sorted(self.milestones):
            raise InputError(f"come one after the other, got {list(self.milestones)}", "milestones")
        if self.decay == "cosine" and self.length is None:
            raise InputError("a cosine decay needs its length, in epochs", "length")
        if self.decay == "cosine" and self.length is not None and self.length <= self.warmup:
            raise InputError(f"is over before the warm-up of {self.warmup:g} epochs is", "length")

    def factor(self, epochs: np.ndarray) -> np.ndarray:
        """The factor on the learning rate when so many epochs have been processed."""
        epochs = np.asarray(epochs, float)
        factor = np.ones_like(epochs)
        if self.decay == "step":
            factor = self.gamma ** np.searchsorted(self.milestones, epochs, side="right").astype(float)
        if self.decay == "cosine":
            assert self.length is not None
            part = np.clip((epochs - self.warmup) / (self.length - self.warmup), 0, 1)
            factor = self.final + (1 - self.final) * (1 + np.cos(np.pi * part)) / 2
        if self.warmup:
            rise = self.warmup_start + (1 - self.warmup_start) * epochs / self.warmup
            factor = np.where(epochs < self.warmup, rise, factor)
        return factor
