"""How long does an all-reduce take whose ranks come one after another, if it waits for all, for half, or for nobody?

    python scenarios/eager_collectives.py            # 8 seconds
    python scenarios/eager_collectives.py --quick

The benchmark of the eager-SGD paper (Li et al., Taming unbalanced training workloads in deep learning with partial
collective operations, PPoPP 2020): of 32 processes the i-th comes i ms late, i = 1 .. 32. Full is an MPI_Allreduce as
in MPICH, by recursive doubling up to 2 KiB and by Rabenseifner's algorithm beyond. Solo: the first who comes activates
all; majority: one drawn of the 32 does, so the figures are means over all of them. Both move whole vectors by recursive
doubling. A process's latency is from its arrival to its completion, and the mean is over all processes; NAP, the number
of active processes, is of those whose contribution is their own of this round. Nodes of Piz Daint (the host
``piz_daint``), vectors of 64 B to 4 MiB, on the simulated network ("in motion": ``sharing`` fair) and in closed form
("closed": rounds). Published: solo 53.32 and majority 2.46 times lower latency than MPI_Allreduce, NAP 1 and 16.

All of that was fixed before. A call costs nothing here but its messages; what each would have to cost more for solo's
published ratio is in the last line. Which sizes the published ratios are over is not known, so each is shown, and the
ratio of mean latencies over these.

What came out: NAP is 1 and 16.5 (published 1 and 16). Majority's ratio is 2.9 up to 64 KiB, 2.5 at 1 MiB and 1.7 at 4
MiB, and 2.6 over all sizes (2.46). Solo's falls from 38,000 at 64 B to 12 at 4 MiB, 87 over all sizes (53): with small
vectors it is what a call costs besides its messages that the published one says, .3 ms if it were for 64 B alone. The
two ways of timing agree but for full and large vectors, by .5 % at 4 MiB: in closed form what comes from several ranks
at once does not meet.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import simpy
from studies import figure, grid, look, run

import asyncsim
from asyncsim.exchanges import Exchange, Exchanges, schedules
from asyncsim.network.simulation import Process, Simulation
from asyncsim.recorder import Recorder

Sharing = Literal["fair", "rounds"]
RANKS = 32
ARRIVALS = [1e-3 * (i + 1) for i in range(RANKS)]  # seconds
SIZES = tuple(64 * 4**k for k in range(9))  # bytes
SHORT = 2048  # bytes: up to here MPICH reduces by recursive doubling
WAYS: dict[str, Sharing] = {"in motion": "fair", "closed": "rounds"}
KINDS = ("full", "majority", "solo")
PUBLISHED = {"majority": 2.46, "solo": 53.32}  # how many times lower than full
PUBLISHED_NAP = {"full": 32, "majority": 16, "solo": 1}


class Seen(NamedTuple):
    latency: float  # seconds, mean over the processes
    active: float  # NAP


def once(sharing: Sharing, size: int, make: Callable[[Exchanges, Callable[[int], None]], Exchange]) -> Seen:
    """One exchange of ``size`` bytes; ``make`` gets what is to be called with each worker that contributes."""
    cluster = asyncsim.Cluster((asyncsim.Workers(1.0, RANKS, "piz_daint"),), sharing=sharing)
    env = simpy.Environment()
    log = Recorder(RANKS, "peers", clock=env, workload=asyncsim.Workload(tensor_bytes=(size,)))
    sim = Simulation(env, log, cluster, 0)
    given, done = [0.0] * RANKS, [0.0] * RANKS

    def contributes(i: int) -> None:
        given[i] = env.now

    exchange = make(Exchanges(sim), contributes)

    def worker(i: int) -> Process:
        yield exchange.join(i, [ARRIVALS[i]])
        done[i] = env.now

    for i in range(RANKS):
        env.process(worker(i))
    env.run()
    return Seen(float(np.mean(np.subtract(done, ARRIVALS))), sum(map(float.__ge__, given, ARRIVALS)))


def measured(kind: str, sharing: Sharing, size: int) -> Seen:
    whole = schedules.recursive_doubling(RANKS)
    if kind == "full":
        schedule = whole if size <= SHORT else schedules.rabenseifner(RANKS)
        return once(sharing, size, lambda exchanges, _: exchanges.blocking(schedule))._replace(active=RANKS)
    first: list[int | None] = [None] if kind == "solo" else list(range(RANKS))
    makes = [functools.partial(partial, whole, i) for i in first]
    return Seen(*np.mean([once(sharing, size, make) for make in makes], axis=0).tolist())


def partial(
    schedule: schedules.Schedule, activator: int | None, exchanges: Exchanges, contributes: Callable[[int], None]
) -> Exchange:
    return exchanges.partial(schedule, contributes, activator)


def study(given: argparse.Namespace) -> dict[str, Any]:
    sizes = SIZES[::4] if given.quick else SIZES
    found = {(way, n, k): measured(k, sharing, n) for way, sharing in WAYS.items() for n in sizes for k in KINDS}
    rows = [
        {"timing": way, "bytes": n, "collective": k, "latency": seen.latency, "active": seen.active}
        | {"times_lower_than_full": found[way, n, "full"].latency / seen.latency}
        for (way, n, k), seen in found.items()
    ]
    return {
        "table.txt": "\n".join([table(found, way, sizes) for way in WAYS] + [cost_of_a_call(found, sizes)]),
        "latencies.csv": asyncsim.Table({key: [row[key] for row in rows] for key in rows[0]}),
        "figure.png": drawn(found, sizes),
    }


def table(found: dict[tuple[str, int, str], Seen], way: str, sizes: tuple[int, ...]) -> str:
    heads = {("latency", k): f"{k}, ms" for k in KINDS} | {("ratio", k): f"full / {k}" for k in PUBLISHED}
    heads |= {("active", k): f"active, {k}" for k in KINDS}
    cells: dict[tuple[Any, ...], str] = {}
    for n in sizes:
        for k in KINDS:
            seen = found[way, n, k]
            cells[n, ("latency", k)] = f"{1e3 * seen.latency:.4g}"
            cells[n, ("active", k)] = f"{seen.active:.3g}"
            cells[n, ("ratio", k)] = f"{found[way, n, 'full'].latency / seen.latency:.4g}"
    for k in KINDS:
        cells["published", ("active", k)] = str(PUBLISHED_NAP[k])
        cells["published", ("ratio", k)] = str(PUBLISHED.get(k, ""))
    mean = {k: np.mean([found[way, n, k].latency for n in sizes]) for k in KINDS}
    for k in KINDS:
        cells["all", ("latency", k)] = f"{1e3 * mean[k]:.4g}"
        cells["all", ("ratio", k)] = f"{mean['full'] / mean[k]:.4g}"
    names: dict[Any, str] = {n: in_bytes(n) for n in sizes} | {"all": "mean latency of these", "published": "published"}
    return grid(f"{way}: mean latency over {RANKS} processes, the i-th of which comes i ms late", heads, names, cells)


def cost_of_a_call(found: dict[tuple[str, int, str], Seen], sizes: tuple[int, ...]) -> str:
    """What each call would cost if solo's ratio were the published one, and majority's ratio then."""
    full, majority, solo = (found["in motion", sizes[0], k].latency for k in KINDS)
    ratio = PUBLISHED["solo"]
    cost = (full - ratio * solo) / (ratio - 1)
    return (
        f"of {in_bytes(sizes[0])}, if every call took {1e3 * cost:.3f} ms more, solo's ratio would be the published "
        f"{ratio}, and majority's {(full + cost) / (majority + cost):.2f} (published: {PUBLISHED['majority']})\n"
    )


def in_bytes(size: int) -> str:
    unit = ("B", "KiB", "MiB")[(size.bit_length() - 1) // 10]
    return f"{size >> 10 * ('B', 'KiB', 'MiB').index(unit)} {unit}"


def drawn(found: dict[tuple[str, int, str], Seen], sizes: tuple[int, ...]) -> Any:
    made, (left, right) = figure(2, 4.0)
    for k, kind in enumerate(KINDS):
        for way, width in (("in motion", 1.4), ("closed", 4.0)):  # a broad pale line under the other
            style = look(k) if way == "in motion" else {"color": look(k)["color"], "alpha": 0.3}
            label = kind if way == "in motion" else None
            values = [found[way, n, kind].latency for n in sizes]
            left.plot(sizes, np.multiply(values, 1e3), label=label, linewidth=width, **style)
            if kind != "full":
                ratios = [found[way, n, "full"].latency / value for n, value in zip(sizes, values, strict=True)]
                right.plot(sizes, ratios, label=label, linewidth=width, **style)
        if kind in PUBLISHED:
            right.axhline(PUBLISHED[kind], color=look(k)["color"], linewidth=0.8, linestyle=":")
    shown = sizes[::2]
    for ax in (left, right):
        ax.set(xscale="log", yscale="log", xlabel="vector", xticks=shown, xticklabels=[in_bytes(n) for n in shown])
        ax.xaxis.minorticks_off()
        ax.legend(frameon=False)
    left.set(ylabel="mean latency (ms)", title="thin: messages in motion; broad: closed form")
    right.set(ylabel="times lower than full", title="dotted: published")
    return made


if __name__ == "__main__":
    run(__doc__, study)
