"""One seed, many independent streams of random numbers: one for each purpose and worker.

A stream depends on (seed, purpose, worker) alone, so adding a worker, or drawing more for one purpose, leaves all
other draws as they were.
"""

from __future__ import annotations

import enum

import numpy as np

from asyncsim.errors import InputError, expect


class Purpose(enum.IntEnum):
    """What a stream is for. The numbers are part of every result: never reuse one."""

    STEP_TIME = 0
    NETWORK = 1
    FAULTS = 2
    NEIGHBOURS = 3
    INITIALISATION = 4
    DATA = 5
    GENERATED_DATA = 6
    MACHINES = 7  # how fast each worker is, where a model draws that once
    DELAYED = 8  # who is delayed, and when
    DELAY_SECONDS = 9  # for how long
    PARTITION = 10  # who holds which samples
    RESHUFFLING = 11  # in which order an epoch goes through them
    SERVER = 12  # how long the server takes for an update


def generator(seed: int, purpose: Purpose, *which: int) -> np.random.Generator:
    """The generator for one purpose and, as a rule, one worker."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(int(purpose), *which)))


def check_seed(seed: int) -> None:
    """Raise InputError unless the seed is a whole number that all generators take as it is."""
    expect(seed, int, "seed")
    if not 0 <= seed < 2**31:
        raise InputError(f"expected a whole number from 0 to {2**31 - 1}, got {seed}", "seed")
