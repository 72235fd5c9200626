"""What it takes to begin: the command line, and compilation."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import asyncsim
from asyncsim.bench.replays import ENDS, trace_of
from asyncsim.bench.timing import Figures, Spent, spent
from asyncsim.problems import MLP
from asyncsim.replaying import replay
from asyncsim.replaying.pools import PROGRAMS

QUICK = """
[cluster]
workers = [{ count = 8, step_time = { name = "gamma", mean = 0.1, cv = 0.5 } }]
[problem]
name = "mlp"
[stop]
epochs = 40
[variants.async]
algorithm = { name = "asgd", learning_rate = 0.02, momentum = 0.9 }
[variants.sync]
algorithm = { name = "ssgd", learning_rate = 0.16, momentum = 0.9 }
"""


def starting(scale: float) -> Figures:
    """The command line, and how often a replay compiles."""
    yield "starting.help.cpu_seconds", min(_command("--help").cpu for _ in range(3))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "quick.toml"
        file.write_text(QUICK, encoding="utf-8")
        for number in ("first", "second"):
            took = _command("run", str(file), "--out", f"{folder}/{number}", cache=f"{folder}/cache")
            yield f"starting.{number}_run.wall_seconds", took.wall
    problem = MLP()
    first = spent(lambda: replay(trace_of(8, 100), asyncsim.SMEGA2(0.01), problem, every=ENDS)).wall
    second = spent(lambda: replay(trace_of(8, 100), asyncsim.SMEGA2(0.01), problem, every=ENDS)).wall
    yield "starting.compiling_smega2.wall_seconds", first - second
    before = len(PROGRAMS)
    for k in range(50):
        replay(trace_of(8, 100 + k), asyncsim.SMEGA2(0.001 * (k + 1)), problem, every=ENDS)
    yield "starting.programs_for_50_more_rates", len(PROGRAMS) - before


def _command(*arguments: str, cache: str | None = None) -> Spent:
    """The command line in a process of its own."""
    import resource

    environment = {**os.environ, **({"ASYNCSIM_CACHE": cache} if cache else {})}

    def call() -> None:
        subprocess.run([sys.executable, "-m", "asyncsim", *arguments], env=environment, check=True, capture_output=True)

    def children() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before = children()
    wall = spent(call).wall
    return Spent(children() - before, wall)
