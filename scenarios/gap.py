"""How far are the parameters that a gradient meets from those it was computed at, at equal staleness?

    python scenarios/gap.py            # two or three minutes on two cores
    python scenarios/gap.py --quick

Gap (root mean square over all parameters) for ASGD, NAG-ASGD, DANA-Zero, SMEGA2 and Gap-Aware along the same traces:
left during the training of 16 workers, right its mean over a whole run against staleness, for 2 to 64 equal workers
(gamma times, variation .1), whose mean staleness is N - 1; both on logarithmic scales, a point on the left being the
mean over a fortieth of the first seed's run. Fashion-MNIST, multilayer perceptron 784-64-10, batches of 32, four
epochs, learning rate .005, momentum .9 (ASGD: none), two seeds.

What to see: one momentum for all makes the gap of NAG-ASGD 4 times that of ASGD without momentum at staleness 7, and 15
times at 63. Looking ahead to where the parameters will be (DANA-Zero, SMEGA2) brings it back to that of ASGD, from
staleness 7 on; so does shrinking the gradients by their gap (Gap-Aware), which keeps it down most at 63. The normalised
gap, over the root mean square of the gradient, says the same without the size of the gradients.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from studies import figure, grid, look, run, sweep

import asyncsim

METHODS = {
    "ASGD": asyncsim.ASGD(0.005),
    "NAG-ASGD": asyncsim.NAGASGD(0.005),
    "Gap-Aware": asyncsim.GapAware(0.005),
    "DANA-Zero": asyncsim.DanaZero(0.005),
    "SMEGA2": asyncsim.SMEGA2(0.005),
}
COUNT = "cluster.workers[0].count"
WATCHED = 16  # workers of the left panel


def study(given: argparse.Namespace) -> dict[str, Any]:
    epochs, workers, seeds = (0.1, (4, WATCHED), 1) if given.quick else (4, (2, 4, 8, WATCHED, 32, 64), 2)
    cluster = asyncsim.Cluster((asyncsim.Workers(asyncsim.Gamma(mean=0.1, cv=0.1), 1),))
    scenario = asyncsim.Scenario(
        cluster=cluster,
        algorithm=asyncsim.ASGD(),
        problem=asyncsim.MLP(asyncsim.FashionMNIST(), hidden=(64,)),
        stop=asyncsim.Stop(epochs=epochs),
        evaluate=asyncsim.Every(epochs=epochs),
    )
    over = {COUNT: workers, "method": {k: {"algorithm": m} for k, m in METHODS.items()}, "seed": range(seeds)}
    found = sweep(given, "runs", scenario, over, keep="all")
    tables = {k: found.paired(k, (COUNT, "method"), {"method": "ASGD"}) for k in ("gap", "normalised_gap")}
    staleness = found.paired("staleness_mean", (COUNT, "method"), {"method": "ASGD"})

    columns = {n: f"N = {n}" for n in workers}
    text = []
    for name, title in (("gap", "mean gap"), ("normalised_gap", "mean normalised gap")):
        cells = {(r["method"], r[COUNT]): f"{r[name]:.3g}" + "x" * r["diverged"] for r in tables[name].rows()}
        text.append(grid(f"{title} (x: a run that diverged)", columns, {m: m for m in METHODS}, cells))
    cells = {(r["method"], r[COUNT]): f"{r['staleness_mean']:.3g}" for r in staleness.rows()}
    text.append(grid("mean staleness", columns, {m: m for m in METHODS}, cells))

    made, (left, right) = figure(2)
    for k, (name, _) in enumerate(METHODS.items()):
        shown = look(k)
        rows = [r for r in found.table.rows() if (r["method"], r[COUNT], r["seed"]) == (name, WATCHED, 0)]
        updates = found.run(rows[0]["run"]).updates
        samples, gap = binned(updates["samples"] / 60_000, updates["gap"])
        left.plot(samples, gap, label=name, linewidth=1.4, **{**shown, "markersize": 3})
        mine = [r for r in tables["gap"].rows() if r["method"] == name]
        right.plot([r[COUNT] - 1 for r in mine], [r["gap"] for r in mine], label=name, linewidth=1.4, **shown)
    left.set(yscale="log", xlabel="epochs", ylabel="gap", title=f"{WATCHED} workers")
    right.set(xscale="log", yscale="log", xlabel="mean staleness, N - 1", ylabel="gap, mean over the run")
    right.set(xticks=[n - 1 for n in workers], xticklabels=[n - 1 for n in workers])
    right.minorticks_off()
    left.legend(frameon=False, fontsize=8)
    csv = {f"{name}.csv": table for name, table in tables.items()}
    return {"table.txt": "\n".join(text), **csv, "figure.png": made}


def binned(x: np.ndarray, y: np.ndarray, bins: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Means over equal parts."""
    parts = np.array_split(np.arange(len(x)), bins)
    return np.array([x[p].mean() for p in parts]), np.array([y[p].mean() for p in parts])


if __name__ == "__main__":
    run(__doc__, study)
