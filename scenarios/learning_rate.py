"""Which learning rates and momenta does each method bear under staleness?

    python scenarios/learning_rate.py            # about a quarter of an hour on two cores
    python scenarios/learning_rate.py --quick

Test accuracy after two epochs against learning rate and momentum, for eleven methods, with 8 and 32 equal workers
(gamma times, variation .1; mean staleness 7 and 31). For each number of workers there is one trace: what differs is
what is learned along it. Fashion-MNIST, multilayer perceptron 784-64-10, batches of 32.

What to see: in each panel learning rate to the right, momentum upwards, yellow for high accuracy; the number is the
best accuracy of the panel, and all that is 25 points or more below the best of all has one colour. What ASGD, NAG-ASGD
and their like bear lies on a diagonal: the more momentum, the less learning rate; at staleness 31 the best of them is
78 %. There SMEGA2 and DANA-Zero still gain from a momentum of .9 and more (83 and 82 %), at a smaller rate than one
worker would take; DANA-GA gains most (84 %), at larger rates.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from studies import grid, run, sweep

import asyncsim

RATES = (0.00125, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08)
MOMENTA = (0.0, 0.5, 0.9, 0.95)
METHODS = {
    "ASGD": asyncsim.ASGD,
    "NAG-ASGD": asyncsim.NAGASGD,
    "Multi-ASGD": asyncsim.MultiASGD,
    "DC-ASGD": asyncsim.DCASGD,
    "staleness-aware": asyncsim.StalenessAware,
    "rate / delay": asyncsim.InverseDelay,
    "delay-adaptive": asyncsim.DelayAdaptive,
    "Gap-Aware": asyncsim.GapAware,
    "DANA-Zero": asyncsim.DanaZero,
    "DANA-GA": asyncsim.DanaGA,
    "SMEGA2": asyncsim.SMEGA2,
}
COUNT, RATE, MOMENTUM = "cluster.workers[0].count", "algorithm.learning_rate", "algorithm.momentum"


def study(given: argparse.Namespace) -> dict[str, Any]:
    epochs, workers = (0.25, (8,)) if given.quick else (2, (8, 32))
    rates, momenta = (RATES[2::2], MOMENTA[::2]) if given.quick else (RATES, MOMENTA)
    methods = {k: METHODS[k] for k in (("ASGD", "SMEGA2") if given.quick else METHODS)}
    scenario = asyncsim.Scenario(
        cluster=asyncsim.Cluster((asyncsim.Workers(asyncsim.Gamma(mean=0.1, cv=0.1), 8),)),
        algorithm=asyncsim.ASGD(momentum=0.0),
        problem=asyncsim.MLP(asyncsim.FashionMNIST(), hidden=(64,)),
        stop=asyncsim.Stop(epochs=epochs),
        evaluate=asyncsim.Every(epochs=epochs),
        measures=False,
    )
    named = {name: {"algorithm": cls(momentum=0.0)} for name, cls in methods.items()}
    found = sweep(given, "runs", scenario, {COUNT: workers, "method": named, RATE: rates, MOMENTUM: momenta})
    accuracy = {(r["method"], r[COUNT], r[RATE], r[MOMENTUM]): r["accuracy"] for r in found.table.rows()}
    text = []
    for n in workers:
        for name in methods:
            cells = {(m, r): f"{100 * accuracy[name, n, r, m]:.1f}" for m in momenta for r in rates}
            title = f"{name}, staleness {n - 1}: accuracy in %, momentum down, learning rate across"
            text.append(grid(title, {r: f"{r:g}" for r in rates}, {m: f"{m:g}" for m in momenta}, cells))
    best = found.best("accuracy", per=(COUNT, "method"))
    kept = {(r["method"], r[COUNT]): f"{100 * r['accuracy']:.1f} ({r[RATE]:g}, {r[MOMENTUM]:g})" for r in best.rows()}
    columns = {n: f"staleness {n - 1}" for n in workers}
    text.insert(0, grid("best accuracy in % (learning rate, momentum)", columns, {m: m for m in methods}, kept))
    return {
        "table.txt": "\n".join(text),
        "best.csv": best,
        "figure.png": drawn(accuracy, workers, list(methods), rates, momenta),
    }


def drawn(
    accuracy: dict[Any, float],
    workers: tuple[int, ...],
    methods: list[str],
    rates: tuple[float, ...],
    momenta: tuple[float, ...],
) -> Any:
    from matplotlib.figure import Figure

    made = Figure(figsize=(1.6 * len(methods) + 1, 1.9 * len(workers) + 0.4), layout="constrained")
    axes = made.subplots(len(workers), len(methods), squeeze=False, sharex=True, sharey=True)
    high = 100 * max(accuracy.values())
    for row, n in zip(axes, workers, strict=True):
        for ax, name in zip(row, methods, strict=True):
            values = np.array([[100 * accuracy[name, n, r, m] for r in rates] for m in momenta])
            image = ax.imshow(values, origin="lower", aspect="auto", vmin=high - 25, vmax=high, cmap="viridis")
            y, x = np.unravel_index(values.argmax(), values.shape)
            ink = "black" if values.max() > high - 10 else "white"
            ax.text(x, y, f"{values.max():.1f}", ha="center", va="center", color=ink, fontsize=7, weight="bold")
            ax.set(xticks=range(len(rates)), yticks=range(len(momenta)), yticklabels=[f"{m:g}" for m in momenta])
            ax.set_xticklabels([f"{r:g}" for r in rates], rotation=90, fontsize=7)
        row[0].set_ylabel(f"staleness {n - 1}\nmomentum")
    for ax, name in zip(axes[0], methods, strict=True):
        ax.set_title(name, fontsize=9)
    made.supxlabel("learning rate", fontsize=9)
    made.colorbar(image, ax=axes, label="accuracy (%)", extend="min", pad=0.01)
    return made


if __name__ == "__main__":
    run(__doc__, study)
