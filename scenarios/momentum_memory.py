"""What does each method keep on the parameter server, as the number of workers grows?

    python scenarios/momentum_memory.py            # seconds: nothing is trained
    python scenarios/momentum_memory.py --quick

Buffers as large as the model, and bytes, counted in the state that each method makes for a residual network as large as
ResNet-20 (0.27 million parameters), on the server and on each worker. A copy of what each worker was sent counts where
the method uses it.

The figure draws seven of the methods; some of their lines meet.

What to see: SMEGA2 needs three buffers for any number of workers; a momentum for each worker (Multi-ASGD, the DANA
family) or a copy of what each was sent (DC-ASGD, Gap-Aware) grows with N; DANA-Slim moves the momenta to the workers.
"""

from __future__ import annotations

import argparse
from typing import Any

from studies import figure, grid, look, run

import asyncsim

METHODS = {
    "SGD, ASGD": asyncsim.ASGD(),
    "ASGD, momentum": asyncsim.ASGD(momentum=0.9),
    "synchronous, momentum": asyncsim.SSGD(momentum=0.9),
    "staleness-aware": asyncsim.StalenessAware(),
    "learning rate / delay": asyncsim.InverseDelay(),
    "delay-adaptive": asyncsim.DelayAdaptive(),
    "NAG-ASGD": asyncsim.NAGASGD(),
    "SMEGA2": asyncsim.SMEGA2(),
    "DANA-Slim": asyncsim.DanaSlim(),
    "Multi-ASGD": asyncsim.MultiASGD(),
    "DC-ASGD, constant": asyncsim.DCASGD(),
    "DC-ASGD, adaptive": asyncsim.DCASGD(form="adaptive"),
    "Gap-Aware": asyncsim.GapAware(),
    "DANA-Zero": asyncsim.DanaZero(),
    "DANA-DC": asyncsim.DanaDC(),
    "DANA-GA": asyncsim.DanaGA(),
}
WORKERS = (1, 8, 16, 32, 64, 128)
DRAWN = ("SMEGA2", "NAG-ASGD", "DANA-Slim", "Multi-ASGD", "Gap-Aware", "DANA-Zero", "DANA-GA")


def study(given: argparse.Namespace) -> dict[str, Any]:
    workers = WORKERS[:2] if given.quick else WORKERS
    problem = asyncsim.ResNet(asyncsim.Digits(), channels=(16, 32, 64), blocks=3)
    sizes = {
        (name, n): asyncsim.memory(method, problem, n, summed=method.protocol == "sync")
        for name, method in METHODS.items()
        for n in workers
    }
    names, columns = {m: m for m in METHODS}, {n: f"N = {n}" for n in workers}
    megabytes = {key: f"{m.server_bytes / 1e6:.2f}" for key, m in sizes.items()}
    buffers = {key: f"{m.server_buffers:g}" for key, m in sizes.items()}
    on_worker = {(name, 0): f"{sizes[name, 1].worker_buffers:g}" for name in METHODS}
    text = [
        grid("buffers on the server", columns, names, buffers),
        grid("megabytes on the server", columns, names, megabytes),
        grid(
            "buffers on each worker, besides its copy of the parameters and its gradient",
            {0: "any N"},
            names,
            on_worker,
        ),
    ]
    table = asyncsim.Table(
        {
            "method": [name for name, _ in sizes],
            "workers": [n for _, n in sizes],
            **{field: [getattr(m, field) for m in sizes.values()] for field in asyncsim.Memory._fields},
        }
    )
    made, (ax,) = figure(1, 4.2)
    for k, name in enumerate(DRAWN):
        ax.plot(workers, [sizes[name, n].server_bytes / 1e6 for n in workers], label=name, linewidth=1.4, **look(k))
    ax.set(xscale="log", yscale="log", xlabel="workers N", ylabel="state on the server (MB)")
    ax.set(xticks=workers, xticklabels=workers)
    ax.minorticks_off()
    ax.legend(frameon=False, fontsize=8)
    return {"table.txt": "\n".join(text), "memory.csv": table, "figure.png": made}


if __name__ == "__main__":
    run(__doc__, study)
