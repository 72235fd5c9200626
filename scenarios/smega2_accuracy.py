"""Does SMEGA2 keep the accuracy of one worker up to 64, with one momentum buffer, where NAG-ASGD breaks down?

    python scenarios/smega2_accuracy.py            # about an hour on two cores; interrupted, it goes on where it was
    python scenarios/smega2_accuracy.py --quick

Final test accuracy against the number of workers N, for ten methods, on a cluster of equal workers (each step a draw
from a gamma distribution of variation .1) and on one of mixed workers (CVB: .6 between machines, .1 within; each seed
draws its machines). Fashion-MNIST, multilayer perceptron 784-64-10, batches of 32 a worker, 16 epochs counted over all
workers, momentum .9, weight decay 1e-4. The schedule is that of the SMEGA2 authors at a tenth of its length: a linear
warm-up from lr/N over half an epoch, lr/10 and lr/100 from epochs 8 and 12 on. One learning rate for all: that at which
one worker with Nesterov's momentum is best. Synchronous SGD has N times that rate, as it makes N times fewer updates.
All else is at its defaults. Five seeds; runs of one seed share initialisation and mini-batches, and, on one cluster,
the trace (synchronous SGD has its own).

What to see: for each kind of cluster the mean accuracy with its standard error, then the difference to the method's own
single worker, and to SMEGA2 at the same N, over pairs of equal seeds. NAG-ASGD breaks down at 8 workers, where SMEGA2
is within 1.2 points of one worker; but SMEGA2 does not hold to 64 here. With equal workers it is lost at 32, as is
DANA-Zero; with mixed ones it is 4 points down at 32. At the end of each cycle it is synchronous heavy ball at N times
the learning rate, and that breaks down at 64 as well: at the learning rate that is best for one worker this model does
not bear such batches. What shrinks stale gradients (staleness-aware, Gap-Aware, DANA-GA) does hold: DANA-GA to 1.4
points at 64, with 131 buffers in place of 3. ``learning_rate.py`` says what smaller rates do. The quick form (a quarter
of an epoch, a rate of its own) shows none of this. In the figure the grey line is SMEGA2 with one worker; what is more
than 20 points below it is not shown.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from studies import figure, grid, look, run, sweep

import asyncsim

WORKERS = (1, 8, 16, 32, 64)
RATES = (0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16)
TIMES = {"equal": asyncsim.Gamma(mean=0.1, cv=0.1), "mixed": asyncsim.CVB(mean=0.1, task_cv=0.1, machine_cv=0.6)}
METHODS = {
    "SMEGA2": asyncsim.SMEGA2,
    "ASGD": asyncsim.ASGD,
    "NAG-ASGD": asyncsim.NAGASGD,
    "Multi-ASGD": asyncsim.MultiASGD,
    "DC-ASGD": asyncsim.DCASGD,
    "staleness-aware": asyncsim.StalenessAware,
    "Gap-Aware": asyncsim.GapAware,
    "DANA-Zero": asyncsim.DanaZero,
    "DANA-GA": asyncsim.DanaGA,
    "synchronous": asyncsim.SSGD,
}
# what one column of a sweep sets, and what its table calls it
PATHS = ("cluster.workers[0].step_time", "cluster.workers[0].count", "schedule.warmup_start", "algorithm")
CLUSTER, COUNT, METHOD = "cluster.workers[0].step_time.name", "cluster.workers[0].count", "algorithm.name"
GROUP = (CLUSTER, COUNT, METHOD)


def scenario(epochs: float) -> asyncsim.Scenario:
    return asyncsim.Scenario(
        cluster=asyncsim.Cluster((asyncsim.Workers(TIMES["equal"], 1),)),
        algorithm=asyncsim.NAGASGD(),
        problem=asyncsim.MLP(asyncsim.FashionMNIST(), hidden=(64,)),
        batch_size=32,
        schedule=asyncsim.Schedule(decay="step", warmup=epochs / 32, milestones=(epochs / 2, epochs * 3 / 4)),
        stop=asyncsim.Stop(epochs=epochs),
        evaluate=asyncsim.Every(epochs=epochs / 16),
        measures=False,
    )


def settings(times: str, workers: int, method: str, rate: float) -> tuple[Any, ...]:
    """The values of ``PATHS``."""
    scale = workers if method == "synchronous" else 1
    made = METHODS[method](learning_rate=scale * rate, momentum=0.9, weight_decay=1e-4)
    return TIMES[times], workers, 1 / workers, made


def study(given: argparse.Namespace) -> dict[str, Any]:
    epochs, seeds, workers, rates = (0.25, 2, (1, 8), RATES[2:4]) if given.quick else (16, 5, WORKERS, RATES)
    methods = [m for m in METHODS if not given.quick or m in ("SMEGA2", "NAG-ASGD", "Gap-Aware", "synchronous")]
    clusters = ["equal"] if given.quick else list(TIMES)

    alone = {PATHS: [settings("equal", 1, "NAG-ASGD", r) for r in rates], "seed": range(min(seeds, 3))}
    chosen = sweep(given, "rates", scenario(epochs), alone).best("accuracy", per="algorithm.learning_rate")
    best = max(chosen.rows(), key=lambda row: row["accuracy"])
    rate = best["algorithm.learning_rate"]

    # one worker learns the same, however long its steps take
    rows = [settings(c, n, m, rate) for c in clusters for n in workers for m in methods if n > 1 or c == "equal"]
    found = sweep(given, "methods", scenario(epochs), {PATHS: rows, "seed": range(seeds)})
    to_one = found.paired("accuracy", GROUP, {COUNT: 1, CLUSTER: "gamma"})
    to_smega2 = found.paired("accuracy", GROUP, {METHOD: "smega2"})

    rates_tried = ", ".join(f"{r['algorithm.learning_rate']:g}: {100 * r['accuracy']:.2f}" for r in chosen.rows())
    text = [f"learning rate {rate:g}, of these for one worker (accuracy in %): {rates_tried}\n"]
    columns = {n: f"N = {n}" for n in workers}
    names = {METHODS[m].name: m for m in methods}
    for cluster in clusters:
        parts = {
            "accuracy in % (standard error)": (to_one, "accuracy"),
            "difference to its own single worker, in points (standard error)": (to_one, "difference"),
            "difference to SMEGA2 at the same N, in points (standard error)": (to_smega2, "difference"),
        }
        for title, (table, figure_of) in parts.items():
            cells = {key: cell(row, figure_of) for key, row in by_group(table, cluster).items()}
            text.append(grid(f"{cluster} workers: {title}", columns, names, cells))
    return {
        "table.txt": "\n".join(text),
        "to_one_worker.csv": to_one,
        "to_smega2.csv": to_smega2,
        "learning_rates.csv": chosen,
        "figure.png": drawn(to_one, clusters, workers, names),
    }


def by_group(table: asyncsim.Table, cluster: str) -> dict[tuple[str, int], dict[str, Any]]:
    """The rows of one kind of cluster by method and number of workers; a single worker is that of the equal ones."""
    kinds = {1: "gamma"}
    return {
        (row[METHOD], row[COUNT]): row
        for row in table.rows()
        if row[CLUSTER] == kinds.get(row[COUNT], type(TIMES[cluster]).name)
    }


def cell(row: Mapping[str, Any], name: str) -> str:
    """``87.12 (.08)``; with a cross for each run that diverged."""
    return f"{100 * row[name]:.2f} ({100 * row[f'{name}_error']:.2f})" + "x" * row["diverged"]


def drawn(table: asyncsim.Table, clusters: list[str], workers: tuple[int, ...], names: dict[str, str]) -> Any:
    made, axes = figure(len(clusters), 4.4)
    for ax, cluster in zip(axes, clusters, strict=True):
        cells = by_group(table, cluster)
        for k, (name, label) in enumerate(names.items()):
            mean, error = ([100 * cells[name, n][c] for n in workers] for c in ("accuracy", "accuracy_error"))
            ax.errorbar(workers, mean, error, label=label, capsize=2, linewidth=1.4, **look(k))
        best = 100 * cells["smega2", 1]["accuracy"]
        ax.axhline(best, color="0.6", linewidth=0.8, zorder=0)
        ax.set(title=f"{cluster} workers", xlabel="workers N", ylabel="final test accuracy (%)")
        ax.set(xscale="log", xticks=workers, xticklabels=workers, ylim=(max(0, best - 20), best + 1))
        ax.minorticks_off()
    axes[0].legend(frameon=False, fontsize=8, ncols=2, loc="lower left")
    return made


if __name__ == "__main__":
    run(__doc__, study)
