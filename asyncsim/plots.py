"""One function per figure: each takes runs and, if you like, axes, and returns the axes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from asyncsim.errors import expect
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
    chosen = [runs] if not isinstance(runs, Iterable) else list(runs)
    for run in chosen:
        expect(run, Run, "runs")
    return chosen


def _legend(ax: Axes) -> None:
    if ax.get_legend_handles_labels()[0]:
        ax.legend(frameon=False)


def _label(text: str) -> str:
    """A label as it stands: no mathematics, and not hidden by a leading underscore."""
    return text.replace("$", r"\$") if not text.startswith("_") else f" {text}"


def loss_over_time(runs: Run | Iterable[Run], ax: Axes | None = None) -> Axes:
    """Test loss against simulated time, one line a run; a cross where a run diverged."""
    ax = _axes(ax)
    every: list[float] = []
    for k, run in enumerate(_runs(runs)):
        time, loss = run.evals["time"], run.evals["loss"]
        colour, style = COLOURS[k % len(COLOURS)], STYLES[k % len(STYLES)]
        broken = run.summary["ended"] == "diverged"
        label = _label(run.label) + (f" (diverged at {run.summary['seconds']:.3g} s)" if broken else "")
        few = "." if len(time) < 15 else ""  # so that two points do not look like a finding
        ax.plot(time, loss, color=colour, linestyle=style, marker=few, linewidth=1.8, label=label)
        finite = np.flatnonzero(np.isfinite(loss))
        every.extend(loss[finite])
        if broken:
            ax.plot(time[finite[-1:]], loss[finite[-1:]], "x", color=colour, markersize=9)
    if every and min(every) > 0:
        ax.set_yscale("log")
    ax.set_xlabel("simulated time (s)")
    ax.set_ylabel("test loss")
    ax.set_xlim(left=0)
    ax.grid(alpha=0.25, which="both")
    _legend(ax)
    return ax


def staleness_histogram(runs: Run | Iterable[Run], ax: Axes | None = None) -> Axes:
    """Share of the accepted gradients at each staleness, one outline a run.

    A run whose gradients are all equally stale is a single line; where others spread, it does not set the scale.
    """
    from matplotlib.ticker import MaxNLocator

    ax = _axes(ax)
    highest = 0.0
    for k, run in enumerate(_runs(runs)):
        staleness = run.updates["staleness"][run.updates["accepted"]]
        if not len(staleness):
            continue
        share = np.bincount(staleness) / len(staleness)
        look: dict[str, Any] = {
            "color": COLOURS[k % len(COLOURS)],
            "linestyle": STYLES[k % len(STYLES)],
            "linewidth": 1.8,
        }
        if share.max() == 1:
            label = f"{_label(run.label)}: always {staleness[0]}"
            ax.plot([staleness[0]] * 2, [0, 1], label=label, **look)
        else:
            label = f"{_label(run.label)}: mean {staleness.mean():.2f}, max {staleness.max()}"
            edges = np.arange(len(share) + 1) - 0.5
            ax.stairs(share, edges, label=label, **look)
            ax.stairs(share, edges, fill=True, color=look["color"], alpha=0.15)
            highest = max(highest, share.max())
    ax.set_ylim(0, 1.3 * highest if highest else 1.1)
    low, high = ax.get_xlim()
    ax.set_xlim(min(low, -0.5), max(high, 1.5))
    ax.set_xlabel("staleness (updates between read and apply)")
    ax.set_ylabel("share of gradients")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(ax)
    return ax


def overview(runs: Run | Iterable[Run]) -> Figure:
    """Loss against simulated time and the staleness histogram side by side, as one figure."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    loss_over_time(runs, left)
    staleness_histogram(runs, right)
    return figure
