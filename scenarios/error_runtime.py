"""Can slow and stale gradients win the race? Error against simulated time for those who wait for K of N workers.

    python scenarios/error_runtime.py            # about 20 minutes on two cores; interrupted, it goes on
    python scenarios/error_runtime.py --quick

The trade-off of Dutta, Joshi, Ghosh, Dube and Nagpurkar (Slow and stale gradients can win the race, AISTATS 2018):
K-sync, K-batch-sync, K-async and K-batch-async with K = 1, 2, 4, 8 of 8 workers; K-sync 8 is fully synchronous, K-async
1 fully asynchronous. Step times are exponential, shifted exponential (.5 + exponential of mean .5) or Pareto (minimum
.5, shape 2), all of mean 1 s; messages take no time. Logistic regression on Fashion-MNIST, plain SGD, batches of 4 a
worker, so that the noise of the gradients is seen, and 3000 s for each run. Four seeds; runs of one seed share
mini-batches and step times. The learning rate is constant, and the same for all: the largest of a grid of factors of 2
at which K-sync 8 and K-async 1 are both stable, that is, their test loss in the second half of a shorter run
(exponential times, two seeds) is on average below half of that at the start. This rule was fixed after a few trial
runs, before the comparison; but the last case, a quarter of that rate, was added when it was seen that K-async 1 is at
its edge. An error is the mean of the evaluations in the last quarter of the time up to it.

What to see: an update takes what the closed forms say, where there is one, but for K-sync 8 with Pareto times: in one
of the four runs a single step of 2031 s holds up everybody. K-async takes as long as K-sync where times are exponential
and, as the paper proves, less where they are shifted (with Pareto times as well). The trade-off in K is there: with
exponential times the lowest K-sync is K = 1 at 100 s, 2 at 600 s and 4 at 3000 s, the lowest K-async 2 and then 4.
Small K ends high (test loss .59 for K-sync 1, .84 for K-async 1, against .51 to .53 for K = 4), and K between the
extremes beats both.

What is not seen, or only in part: at this rate K-async 1 never leads. Stale gradients lead by little, and where times
are not exponential: by .05 at 100 s with shifted ones (K-batch-async 4 against the best K-sync); at the end the lowest
of the fresh and of the stale are within their errors. With exponential times fresh gradients win: such times have no
memory, so it costs nothing to stop a worker and begin anew. The low floor of K = 8 is not reached by K-sync 8: after
3000 s it still falls, and is clearly below K-sync 1 with shifted times only. At a quarter of the rate stale gradients
do win the race: K-async 1 is lowest of all at 100 s (.87, K-sync 8: 1.66) and at 600 s, and by 3000 s K = 2 has caught
up. So which K is best depends on the rate as well. A K that changes during training, as the paper goes on to, is not
tried. In the figure there are marks where the table is read.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from studies import grid, look, run, sweep

import asyncsim

N = 8
SIZES = (1, 2, 4, 8)
RATES = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16)
SHIFTED = asyncsim.ShiftedExponential(shift=0.5, scale=0.5)
CASES: dict[str, tuple[asyncsim.StepTime, float]] = {  # step times, and the part of the learning rate that is taken
    "exponential times": (asyncsim.Exponential(mean=1.0), 1),
    "shifted exponential times": (SHIFTED, 1),
    "Pareto times": (asyncsim.Pareto(minimum=0.5, shape=2.0), 1),
    "shifted exponential times, a quarter of the rate": (SHIFTED, 1 / 4),
}
KINDS = {
    "K-sync": asyncsim.KSync,
    "K-batch-sync": asyncsim.KBatchSync,
    "K-async": asyncsim.KAsync,
    "K-batch-async": asyncsim.KBatchAsync,
}
# what is the same, event by event, is run once
SAME = {("K-batch-sync", 1): ("K-sync", 1), ("K-async", 1): ("K-batch-async", 1), ("K-async", N): ("K-sync", N)}
READ = {"early": 1 / 30, "middle": 1 / 5, "final": 1.0}  # when errors are read, as parts of the time of a run
WINDOW = 0.25  # an error is the mean of the evaluations in this last part of the time up to it
DRAWN = (("K-sync", 1), ("K-sync", 4), ("K-sync", N), ("K-async", 1), ("K-async", 2), ("K-batch-async", 4))
Variant = tuple[str, int]  # a kind, and its K


def scenario(seconds: float, evaluations: int, rate: float = 0.1) -> asyncsim.Scenario:
    return asyncsim.Scenario(
        cluster=asyncsim.Cluster((asyncsim.Workers(asyncsim.Exponential(mean=1.0), N),)),
        algorithm=asyncsim.ASGD(learning_rate=rate),
        problem=asyncsim.Logistic(asyncsim.FashionMNIST()),
        batch_size=4,
        stop=asyncsim.Stop(seconds=seconds),
        evaluate=asyncsim.Every(seconds=seconds / evaluations),
        measures=False,
    )


def study(given: argparse.Namespace) -> dict[str, Any]:
    seconds, evaluations, seeds = (60, 12, 2) if given.quick else (3000, 120, 4)
    sizes, rates = ((1, N), RATES[2:4]) if given.quick else (SIZES, RATES)
    cases = [name for name, (times, _) in CASES.items() if not given.quick or times == SHIFTED]
    variants = [(kind, k) for kind in KINDS for k in sizes]
    rate, tried = chosen_rate(given, scenario(seconds / 3, evaluations), rates)

    over = {
        "case": {
            name: {"cluster.workers[0].step_time": CASES[name][0], "algorithm.learning_rate": CASES[name][1] * rate}
            for name in cases
        },
        "variant": {called(v): {"protocol": KINDS[v[0]](v[1])} for v in variants if v not in SAME},
        "seed": range(seeds),
    }
    found = sweep(given, "runs", scenario(seconds, evaluations, rate), over)
    points = np.linspace(0, seconds, evaluations + 1)
    curves = {metric: smoothed(found.evals(), metric, points) for metric in ("loss", "accuracy")}

    text = [f"learning rate {rate:g}, of these (test loss, synchronous and asynchronous): {tried}\n"]
    rows = []
    for name in cases:
        there = {v: measured(found.table, curves, name, v) for v in variants}
        text += tables(name, there, seconds)
        for v, values in there.items():
            row: dict[str, Any] = {
                "case": name,
                "kind": v[0],
                "k": v[1],
                "seconds_closed_form": expected(CASES[name][0], *v),
            }
            for what, by_seed in values.items():
                row |= {what: by_seed.mean(), f"{what}_error": standard_error(by_seed)}
            rows.append(row)
    return {
        "table.txt": "\n".join(text),
        "figures.csv": asyncsim.Table({key: [row[key] for row in rows] for key in rows[0]}),
        "figure.png": drawn(curves["loss"], points, cases, [v for v in DRAWN if v in variants]),
    }


def chosen_rate(given: argparse.Namespace, short: asyncsim.Scenario, rates: tuple[float, ...]) -> tuple[float, str]:
    """The largest rate at which both extremes are stable, and what was seen of each."""
    extremes = {called(v): {"protocol": KINDS[v[0]](v[1])} for v in (("K-sync", N), ("K-async", 1))}
    over = {"algorithm.learning_rate": rates, "variant": extremes, "seed": range(2)}
    evals = sweep(given, "rates", short, over).evals()
    late = evals["time"] > evals["time"].max() / 2
    stable, words = [], []
    for rate in rates:
        seen = []
        for name in extremes:
            mine = (evals["algorithm.learning_rate"] == rate) & (evals["variant"] == name)
            seen.append(float(evals["loss"][mine & late].mean()))
        if max(seen) < evals["loss"][mine & (evals["time"] == 0)].mean() / 2:
            stable.append(rate)
        words.append(f"{rate:g}: {seen[0]:.2f}, {seen[1]:.2f}")
    return max(stable, default=min(rates)), "; ".join(words)


def called(variant: Variant) -> str:
    return "{} {}".format(*variant)


def expected(times: asyncsim.StepTime, kind: str, k: int) -> float:
    """Mean seconds of an update in closed form; nan where there is none."""
    kind, k = SAME.get((kind, k), (kind, k))
    memoryless = isinstance(times, asyncsim.Exponential)
    if kind == "K-batch-async" or (kind == "K-batch-sync" and memoryless):
        return k * times.mean_seconds / N  # arrivals at the rate of N workers
    if kind == "K-sync" or (kind == "K-async" and memoryless):  # the K-th smallest of N times
        harmonic = sum(1 / j for j in range(N - k + 1, N + 1))
        if isinstance(times, asyncsim.Exponential):
            return times.mean * harmonic
        if isinstance(times, asyncsim.ShiftedExponential):
            return times.shift + times.scale * harmonic
        if isinstance(times, asyncsim.Pareto):
            above = math.gamma(N + 1) / math.gamma(N + 1 - 1 / times.shape)
            return times.minimum * above * math.gamma(N - k + 1 - 1 / times.shape) / math.gamma(N - k + 1)
    return math.nan


def smoothed(evals: asyncsim.Table, metric: str, points: np.ndarray) -> dict[tuple[str, str], np.ndarray]:
    """By case and variant: a row a seed, a column a point, each the mean over the last part of the time up to it."""
    curves: dict[tuple[str, str], list[list[float]]] = {}
    runs = evals["run"]
    for name in dict.fromkeys(runs.tolist()):
        mine = np.flatnonzero(runs == name)
        time, values = evals["time"][mine], evals[metric][mine]
        shown = [values[(time >= (1 - WINDOW) * t - 1e-6) & (time <= t + 1e-6)].mean() for t in points]
        curves.setdefault((evals["case"][mine[0]], evals["variant"][mine[0]]), []).append(shown)
    return {key: np.array(values) for key, values in curves.items()}


def measured(
    table: asyncsim.Table, curves: Mapping[str, Mapping[tuple[str, str], np.ndarray]], case: str, variant: Variant
) -> dict[str, np.ndarray]:
    """The figures of a variant, each with a value for each seed."""
    key = case, called(SAME.get(variant, variant))
    mine = (table["case"] == key[0]) & (table["variant"] == key[1])
    out = {"seconds": table["seconds"][mine] / table["updates"][mine], "staleness": table["staleness_mean"][mine]}
    for metric, values in curves.items():
        out |= {f"{metric}_{when}": values[key][:, place(part, values[key][0])] for when, part in READ.items()}
    return out


def tables(case: str, there: Mapping[Variant, Mapping[str, np.ndarray]], seconds: float) -> list[str]:
    """What is printed of one case."""
    names = {v: called(v) for v in there}
    cells = {}
    for v, values in there.items():
        form = expected(CASES[case][0], *v)
        cells[v, "form"] = "" if math.isnan(form) else f"{form:.4f}"
        cells |= {(v, what): cell(by_seed, what) for what, by_seed in values.items()}
    heads = {"seconds": "seconds per update", "form": "closed form", "staleness": "staleness"}
    text = [grid(f"{case}: how long an update takes, mean staleness (standard errors)", heads, names, cells)]
    moments = {when: f"at {seconds * part:g} s" for when, part in READ.items()}
    for metric, title in (("loss", "test loss"), ("accuracy", "test accuracy in %")):
        heads = {f"{metric}_{when}": moment for when, moment in moments.items()}
        text.append(grid(f"{case}: {title} (standard error)", heads, names, cells))
    lows = {}
    for when in READ:
        for kind in KINDS:
            best, near = lowest({str(k): there[kind, k][f"loss_{when}"] for x, k in there if x == kind})
            lows[kind, when] = best + (f" ({', '.join(near)})" if near else "")
        best, near = lowest({called(v): there[v][f"loss_{when}"] for v in there if v not in SAME})
        lows["all", when] = best + (f" ({len(near)} more)" if near else "")
    title = f"{case}: the K of lowest test loss (and those within two standard errors of it; of all: how many more)"
    return [*text, grid(title, moments, {kind: kind for kind in (*KINDS, "all")}, lows)]


def place(part: float, curve: np.ndarray) -> int:
    return round(part * (len(curve) - 1))


def cell(by_seed: np.ndarray, what: str) -> str:
    scale, places = (100, 1) if what.startswith("accuracy") else (1, 3)
    return f"{scale * by_seed.mean():.{places}f} ({scale * standard_error(by_seed):.{places}f})"


def standard_error(by_seed: np.ndarray) -> float:
    return float(np.std(by_seed, ddof=1) / math.sqrt(len(by_seed)))


def lowest(losses: Mapping[str, np.ndarray]) -> tuple[str, list[str]]:
    """Who has the lowest mean, and who cannot be told from it over pairs of equal seeds."""
    best = min(losses, key=lambda name: losses[name].mean())
    apart = {name: values - losses[best] for name, values in losses.items() if name != best}
    return best, [name for name, values in apart.items() if values.mean() < 2 * standard_error(values)]


def drawn(
    losses: Mapping[tuple[str, str], np.ndarray], points: np.ndarray, cases: list[str], variants: list[Variant]
) -> Any:
    from matplotlib.figure import Figure

    made = Figure(figsize=(10.5, 3.7 * len(cases) / 2 + 0.5), layout="constrained")
    axes = made.subplots(len(cases) // 2, 2, squeeze=False).flat
    means = {(name, v): losses[name, called(SAME.get(v, v))].mean(axis=0)[1:] for name in cases for v in variants}
    low, high = 0.97 * min(y.min() for y in means.values()), 1.03 * max(y.max() for y in means.values())
    ticks = [t for t in (0.4, 0.5, 0.6, 0.8, 1, 1.2, 1.5, 2, 3) if low <= t <= high]
    spans = [t for t in (5, 10, 30, 100, 300, 1000, 3000) if points[1] <= t <= points[-1]]
    for ax, name in zip(axes, cases, strict=True):
        for k, v in enumerate(variants):
            marks = [place(part, points) - 1 for part in READ.values()]
            ax.plot(points[1:], means[name, v], label=called(v), linewidth=1.4, markevery=marks, **look(k))
        ax.set(xscale="log", yscale="log", title=name, xlabel="simulated time (s)", ylabel="test loss")
        ax.set(ylim=(low, high), yticks=ticks, yticklabels=[f"{t:g}" for t in ticks])
        ax.set(xticks=spans, xticklabels=[f"{t:g}" for t in spans])
        ax.minorticks_off()
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(alpha=0.25)
    made.legend(
        *made.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(variants), frameon=False
    )
    return made


if __name__ == "__main__":
    run(__doc__, study)
