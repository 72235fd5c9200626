"""One function per figure: each takes runs and, if you like, axes, and returns the axes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from asyncsim.runs import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which the colour-blind can tell apart, with line styles for print without colour
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", "-.", ":")


def _axes(ax: Axes | None) -> Axes:
    if ax is None:
        from matplotlib import pyplot

        ax = pyplot.subplots(figsize=(5, 3.5), layout="constrained")[1]
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def _runs(runs: Run | Iterable[Run]) -> Sequence[Run]:
    return [runs] if isinstance(runs, Run) else list(runs)


def loss_over_time(runs: Run | Iterable[Run], ax: Axes | None = None) -> Axes:
    """Test loss against simulated time, one line a run; a cross where a run diverged."""
    ax = _axes(ax)
    for k, run in enumerate(_runs(runs)):
        time, loss = run.evals["time"], run.evals["loss"]
        colour, style = COLOURS[k % len(COLOURS)], STYLES[k % len(STYLES)]
        ax.plot(time, loss, color=colour, linestyle=style, linewidth=1.8, label=run.label)
        if run.summary["ended"] == "diverged":
            finite = np.flatnonzero(np.isfinite(loss))
            ax.plot(time[finite[-1:]], loss[finite[-1:]], "x", color=colour, markersize=9)
    every = np.concatenate([run.evals["loss"] for run in _runs(runs)])
    every = every[np.isfinite(every)]
    if len(every) and every.min() > 0:
        ax.set_yscale("log")
    ax.set_xlabel("simulated time (s)")
    ax.set_ylabel("test loss")
    ax.set_xlim(left=0)
    ax.grid(alpha=0.25, which="both")
    ax.legend(frameon=False)
    return ax


def staleness_histogram(runs: Run | Iterable[Run], ax: Axes | None = None) -> Axes:
    """Share of the accepted gradients at each staleness, one group of bars a run; a dotted line at the mean of each."""
    from matplotlib.ticker import MaxNLocator

    ax = _axes(ax)
    chosen = _runs(runs)
    width = 0.8 / max(len(chosen), 1)
    for k, run in enumerate(chosen):
        staleness = run.updates["staleness"][run.updates["accepted"]]
        colour = COLOURS[k % len(COLOURS)]
        if len(staleness):
            share = np.bincount(staleness) / len(staleness)
            place = np.arange(len(share)) + (k - (len(chosen) - 1) / 2) * width
            ax.bar(place, share, width, color=colour, label=f"{run.label}: mean {staleness.mean():.2f}")
            ax.axvline(staleness.mean(), color=colour, linestyle=":", linewidth=1)
    ax.set_xlabel("staleness (updates between read and apply)")
    ax.set_ylabel("share of gradients")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(frameon=False)
    return ax


def overview(runs: Run | Iterable[Run]) -> Figure:
    """Loss against simulated time and the staleness histogram side by side, as one figure."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    loss_over_time(runs, left)
    staleness_histogram(runs, right)
    return figure
