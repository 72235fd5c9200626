"""Waiting for nobody: what does it cost in accuracy, and what does it save in time? WAGMA-SGD and its competitors.

    python scenarios/wagma_accuracy.py                 # about 25 minutes on two cores; interrupted, it goes on
    python scenarios/wagma_accuracy.py --workers 16
    python scenarios/wagma_accuracy.py --quick

Figure 5 of the WAGMA-SGD paper (Li et al., TPDS 32(7), 2021) and its ablations, with a small model: final test
accuracy, and accuracy against simulated time, for eleven ways of averaging on 64 workers, of which two at each step are
320 ms late on average. The time is that of ResNet-50 on Piz Daint (``wagma_setup.py``): its step, its delays, its
messages. What is learned is
Fashion-MNIST, by a multilayer perceptron 784-64-10 with batches of 16 a worker, in 16 epochs counted over all workers:
at 64 workers 937 steps of each and 93 global averages, where the paper's 90 epochs of ImageNet have 28,000 steps and
2,800 averages. So the accuracies are not the paper's; their order may be. The perceptron is the largest model tried
that fits into half an hour: twice the width takes twice as long, the small convolutional network eight times.

Fixed before any comparison was seen (then a trial of 3 epochs and two seeds was, and nothing changed): momentum .9,
weight decay 1e-4, the shape of the paper's schedule (linear warm-up over 5/90 of the run, a tenth of the rate from 1/3,
2/3 and 8/9 of it on), tau = 10, and one learning rate for all: of seven in steps of factors of two the one at which
Allreduce-SGD ends highest, with one seed that is used for nothing else. Eager-SGD is solo and averages its models nine
times a run (every 10 of 90 epochs). AD-PSGD and D-PSGD are on a ring, SGP sends to two; "no groups" is WAGMA-SGD with
tau = 10 and nothing else, which is local SGD. Accuracy is that of the mean of all models; spread is their
root-mean-square distance from it. Five seeds; runs of one seed share initialisation, mini-batches, step times and
delays, and differences are taken between these. An ordering of the paper is resolved if the difference has its sign and
is more than two standard errors, and contradicted if it is that in the other direction. (With five pairs, one
difference in nine that is none looks like one, so of 36 about four.)

What the learning depends on, and the times hardly do, is the jitter of the step (2 %, ``wagma_setup.py``): a worker is
late that is not done when the first has got through the exchange of all pieces but the last, which takes the longer the
larger the groups are. So in most merges of small groups it is an older model of the worker's own that was averaged.

What came out: of the 36 pairs that the paper orders 28 come in its order, four are not resolved, four contradicted.
Within their errors Allreduce-SGD, local SGD and WAGMA-SGD are alike (85.9, 86.0, 85.8 %), as published (75.9, 75.6,
75.3), and so is eager-SGD; groups of four lose .7 points, fixed groups 2.1, SGP 3.0, AD-PSGD 3.7, D-PSGD 13, and
without groups most is lost. WAGMA-SGD with S = P gains .6 points in 1.25 of the time; the paper has the same accuracy
in 1.24 of it. Contradicted: AD-PSGD is better here than D-PSGD and no groups, SGP worse than small and fixed groups.
The rate is that of Allreduce-SGD, .4, twice of which it cannot bear (.2 is as good for it): methods whose models part
suffer most from that, "no groups" with ten local steps above all. Times over WAGMA-SGD's: local SGD 1.37 (published
1.55), Allreduce-SGD 1.30 (1.63), D-PSGD 1.29 (1.40), SGP 1.26 (1.45), eager-SGD 1.20 (1.35), AD-PSGD .83 (.71).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from studies import figure, grid, look, run, sweep
from wagma_setup import JITTER, injected, machine, per_worker, resnet50
from wagma_setup import PUBLISHED as FIGURES

import asyncsim

RATES = (0.0125, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8)
RATE_SEED = 100
BATCH = 16
STEP = 64 / float(np.median(per_worker(FIGURES["images_per_second"])))  # seconds of 64 images, as in figure 5
TAU = 10
WAGMA = "WAGMA"
PUBLISHED = {  # on 64 nodes: top-1 accuracy in %, minutes; highest first
    "Allreduce-SGD": (75.9, 377),
    "local SGD": (75.6, 357),
    WAGMA: (75.3, 231),
    "SGP": (74.8, 334),
    "WAGMA, S = 4": (72.8, math.nan),
    "WAGMA, fixed groups": (72.2, math.nan),
    "D-PSGD": (71.3, 324),
    "WAGMA, no groups": (68.5, math.nan),
    "AD-PSGD": (66.9, 165),
    "eager-SGD": (math.nan, 311),
}
QUICK = (WAGMA, "Allreduce-SGD", "eager-SGD", "AD-PSGD")
VERDICTS = ("resolved", "contradicted", "not resolved")


def methods(workers: int, steps: int) -> dict[str, tuple[asyncsim.Protocol, type[asyncsim.Algorithm]]]:
    """Who waits for whom, and what is done with what comes, in ``steps`` of each worker."""
    groups = asyncsim.WaitAvoidingGroups
    root = math.isqrt(workers)
    return {
        WAGMA: (groups(root, TAU), asyncsim.WAGMA),
        **({"WAGMA, S = 4": (groups(4, TAU), asyncsim.WAGMA)} if root != 4 else {}),
        "WAGMA, S = P": (groups(workers, TAU), asyncsim.WAGMA),
        "WAGMA, fixed groups": (groups(root, TAU, groups="fixed"), asyncsim.WAGMA),
        "WAGMA, no groups": (groups(None, TAU, groups="none"), asyncsim.WAGMA),
        "local SGD": (asyncsim.PeriodicAveraging(1), asyncsim.LocalSGD),
        "Allreduce-SGD": (asyncsim.GradientAllreduce(), asyncsim.AllreduceSGD),
        "eager-SGD": (asyncsim.EagerAllreduce(average_period=max(1, steps // 9)), asyncsim.EagerSGD),
        "D-PSGD": (asyncsim.RingAveraging(), asyncsim.DPSGD),
        "AD-PSGD": (asyncsim.PairwiseAveraging(averages=0), asyncsim.ADPSGD),
        "SGP": (asyncsim.Push(2), asyncsim.SGP),
    }


def settings(method: tuple[asyncsim.Protocol, type[asyncsim.Algorithm]], rate: float) -> dict[str, Any]:
    protocol, algorithm = method
    return {"protocol": protocol, "algorithm": algorithm(learning_rate=rate, momentum=0.9, weight_decay=1e-4)}


def scenario(workers: int, epochs: float) -> asyncsim.Scenario:
    milestones = (epochs / 3, epochs * 2 / 3, epochs * 8 / 9)
    return asyncsim.Scenario(
        # its tensors travel one by one; 4 MiB at once are fine enough
        cluster=machine(workers, asyncsim.Gamma(STEP, JITTER), injected(workers), bucket_bytes=2**22),
        algorithm=asyncsim.AllreduceSGD(momentum=0.9, weight_decay=1e-4),
        problem=asyncsim.MLP(asyncsim.FashionMNIST(), hidden=(64,)),
        batch_size=BATCH,
        schedule=asyncsim.Schedule(decay="step", warmup=epochs * 5 / 90, milestones=milestones),
        stop=asyncsim.Stop(epochs=epochs),
        evaluate=asyncsim.Every(epochs=epochs / 32),
        measures=False,
        tensor_bytes=resnet50(),
    )


def study(given: argparse.Namespace) -> dict[str, Any]:
    epochs, seeds, rates = (0.25, 2, RATES[2:4]) if given.quick else (16, 5, RATES)
    workers = given.workers or (16 if given.quick else 64)
    base = scenario(workers, epochs)
    made = methods(workers, int(epochs * base.problem.num_samples / (BATCH * workers)))
    made = {name: method for name, method in made.items() if not given.quick or name in QUICK}

    tried = sweep(given, "rates", base, {"algorithm.learning_rate": rates, "seed": [RATE_SEED]})
    chosen = tried.best("accuracy", per="algorithm.learning_rate")
    rate = max(chosen.rows(), key=lambda row: row["accuracy"])["algorithm.learning_rate"]

    over = {"method": {name: settings(method, rate) for name, method in made.items()}, "seed": range(seeds)}
    found = sweep(given, "methods", base, over)
    rows = figures(found)
    checks = orderings(found, [name for name in PUBLISHED if name in made and PUBLISHED[name][0] > 0])

    accuracies = ", ".join(f"{r['algorithm.learning_rate']:g}: {100 * r['accuracy']:.2f}" for r in chosen.rows())
    text = [
        f"{workers} workers, {epochs:g} epochs, {seeds} seeds; learning rate {rate:g}, of these for Allreduce-SGD "
        f"(accuracy in %): {accuracies}\n",
        main_table(rows),
        orderings_table(checks),
        counted(checks),
    ]
    return {
        "table.txt": "\n".join(text),
        "methods.csv": in_a_table(rows),
        "orderings.csv": in_a_table(checks),
        "learning_rates.csv": chosen,
        "figure.png": drawn(found, rows, workers),
    }


def figures(found: asyncsim.Sweep) -> list[dict[str, Any]]:
    """A row for each method: means over the seeds, differences to WAGMA, and the standard errors of both."""
    rows = []
    by_figure = {
        name: found.paired(name, "method", {"method": WAGMA}).rows() for name in ("accuracy", "seconds", "spread")
    }
    for accuracy, seconds, spread in zip(*by_figure.values(), strict=True):
        published, minutes = PUBLISHED.get(accuracy["method"], (math.nan, math.nan))
        row = {**accuracy, "seconds": seconds["seconds"], "seconds_error": seconds["seconds_error"]}
        row |= {"spread": spread["spread"], "spread_error": spread["spread_error"]}
        rows.append({**row, "published_top1": published, "published_minutes": minutes})
    return rows


def orderings(found: asyncsim.Sweep, names: list[str]) -> list[dict[str, Any]]:
    """Of each two methods, the one that the paper has higher first: how they differ here, and what that says."""
    rows = []
    for low in names[1:]:
        to_low = {row["method"]: row for row in found.paired("accuracy", "method", {"method": low}).rows()}
        for high in names[: names.index(low)]:
            apart, error = to_low[high]["difference"], to_low[high]["difference_error"]
            verdict = VERDICTS[0 if apart > 2 * error else 1 if apart < -2 * error else 2]  # also of what is not known
            published = PUBLISHED[high][0] - PUBLISHED[low][0]
            rows.append({"higher": high, "lower": low, "published": published, "difference": apart} | {
                "difference_error": error, "verdict": verdict, "neighbours": high == names[names.index(low) - 1],
            })  # fmt: skip
    return rows


def main_table(rows: list[dict[str, Any]]) -> str:
    heads = {
        "accuracy": "accuracy in %",
        "difference": f"to {WAGMA}, in points",
        "minutes": "minutes",
        "ratio": f"over {WAGMA}'s",
        "spread": "spread",
        "published_top1": "published top-1",
        "published_ratio": f"minutes over {WAGMA}'s",
    }
    reference = next(row for row in rows if row["method"] == WAGMA)
    cells = {}
    for row in rows:
        name = row["method"]
        cells[name, "accuracy"] = cell(row, "accuracy") + "x" * row["diverged"]
        cells[name, "difference"] = cell(row, "difference") if name != WAGMA else ""
        cells[name, "minutes"] = f"{row['seconds'] / 60:.2f}"
        cells[name, "ratio"] = f"{row['seconds'] / reference['seconds']:.2f}"
        cells[name, "spread"] = f"{row['spread']:.2g}"
        if row["published_top1"] > 0:
            cells[name, "published_top1"] = f"{row['published_top1']:.1f}"
        if row["published_minutes"] > 0:
            cells[name, "published_ratio"] = f"{row['published_minutes'] / PUBLISHED[WAGMA][1]:.2f}"
    title = "final test accuracy and simulated time (standard errors); published: ResNet-50 on 64 nodes"
    return grid(title, heads, {row["method"]: row["method"] for row in rows}, cells)


def orderings_table(checks: list[dict[str, Any]]) -> str:
    pairs = [check for check in checks if check["neighbours"]]
    heads = {"published": "published", "here": "here (standard error)", "verdict": "this run"}
    cells: dict[tuple[int, str], str] = {}
    for k, check in enumerate(pairs):
        cells[k, "published"] = f"{check['published']:.1f}"
        cells[k, "here"] = cell(check, "difference")
        cells[k, "verdict"] = check["verdict"]
    names = {k: f"{check['higher']} > {check['lower']}" for k, check in enumerate(pairs)}
    return grid("the paper's order of accuracies: differences in points, and what this run says", heads, names, cells)


def counted(checks: list[dict[str, Any]]) -> str:
    count = {verdict: [c for c in checks if c["verdict"] == verdict] for verdict in VERDICTS}
    against = "; ".join(f"{c['higher']} > {c['lower']}" for c in count["contradicted"])
    numbers = ", ".join(f"{len(mine)} {verdict}" for verdict, mine in count.items())
    return f"of all {len(checks)} pairs of these: {numbers}" + (f" ({against})" if against else "") + "\n"


def cell(row: Mapping[str, Any], name: str) -> str:
    return f"{100 * row[name]:.2f} ({100 * row[f'{name}_error']:.2f})"


def in_a_table(rows: list[dict[str, Any]]) -> asyncsim.Table:
    return asyncsim.Table({key: [row[key] for row in rows] for key in rows[0]})


def curves(found: asyncsim.Sweep) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Of each method, minutes and accuracies in % of all evaluations: means over the seeds."""
    evals = found.evals()
    out = {}
    for name in dict.fromkeys(evals["method"].tolist()):
        mine = evals["method"] == name
        runs = [np.flatnonzero(mine & (evals["seed"] == seed)) for seed in dict.fromkeys(evals["seed"].tolist())]
        there = min(map(len, runs))  # one that diverged ends early
        time, accuracy = (np.mean([evals[c][rows[:there]] for rows in runs], axis=0) for c in ("time", "accuracy"))
        out[name] = time / 60, 100 * accuracy
    return out


def drawn(found: asyncsim.Sweep, rows: list[dict[str, Any]], workers: int) -> Any:
    made, (left, right) = figure(2, 5.0)
    lines = curves(found)
    final = {row["method"]: (100 * row["accuracy"], 100 * row["accuracy_error"]) for row in rows}
    low, high = (pick(mean for mean, _ in final.values()) for pick in (min, max))
    for k, (name, (time, accuracy)) in enumerate(lines.items()):
        left.plot(time, accuracy, label=name, linewidth=1.4, markevery=[-1], **look(k))
    left.set(xlabel="simulated time (minutes)", ylabel="test accuracy of the mean model (%)")
    left.set(xlim=(0, None), ylim=(low - 6, high + 0.5), title=f"{workers} workers, about two late at each step")
    made.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False, fontsize=9)
    order = sorted(final, key=lambda name: final[name][0])
    table = found.table
    for y, name in enumerate(order):
        style = look(list(lines).index(name)) | {"linestyle": "none"}
        seeds = 100 * table["accuracy"][table["method"] == name]
        right.plot(seeds, [y] * len(seeds), ".", color="0.7", markersize=4, zorder=1)
        right.errorbar(final[name][0], y, xerr=final[name][1], capsize=3, **style)
    right.set(yticks=range(len(order)), yticklabels=order, xlabel="final test accuracy (%)")
    right.set_title("mean, its standard error; each seed", fontsize=10)
    return made


if __name__ == "__main__":
    text = "64 or 16 (default: 64; quick: 16)"
    run(__doc__, study, {"--workers": {"type": int, "choices": (16, 64), "help": text}})
