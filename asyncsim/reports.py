"""Figures in words: summaries side by side, as text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from asyncsim.errors import InputError

UNITS = {
    "seconds": "s",
    "throughput": "samples/s",
    "time_to_target": "s",
    "bytes_sent": "B",
    "server_bytes": "B",
    "worker_bytes": "B",
}
TITLES = {  # in this order: what a summary calls it, and what a table does
    "seconds": "simulated time",
    "updates": "updates",
    "gradients": "gradients",
    "learning_rate": "learning rate",
    "dropped": "dropped",
    "cancelled": "cancelled",
    "in_flight": "in flight",
    "throughput": "throughput",
    "staleness_mean": "staleness, mean",
    "staleness_max": "staleness, max",
    "message_age_mean": "message age, mean",
    "message_age_max": "message age, max",
    "gap": "gap, mean",
    "normalised_gap": "normalised gap, mean",
    "gradient_norm": "gradient norm, mean",
    "update_norm": "update norm, mean",
    "effective_learning_rate": "effective learning rate",
    "momentum_norm": "momentum norm, mean",
    "momentum_cosine": "momentum cosine, mean",
    "loss": "test loss",
    "accuracy": "test accuracy",
    "spread": "spread of peers",
    "compute_share": "busy",
    "send_share": "sending",
    "receive_share": "receiving",
    "wait_share": "waiting",
    "apply_share": "at the server",
    "bytes_sent": "sent",
    "undelivered": "undelivered messages",
    "server_buffers": "buffers on the server",
    "server_bytes": "state on the server",
    "worker_buffers": "buffers on a worker",
    "worker_bytes": "state on a worker",
    "time_to_target": "time to target",
    "ended": "ended by",
}
BRIEF = [
    *("seconds", "updates", "learning_rate", "dropped", "cancelled", "throughput", "staleness_mean", "staleness_max"),
    *("message_age_mean", "message_age_max"),
    *("gap", "normalised_gap", "momentum_norm", "momentum_cosine", "server_buffers", "server_bytes"),
    *("loss", "accuracy", "spread", "undelivered"),
    *("compute_share", "send_share", "receive_share", "apply_share", "wait_share", "time_to_target", "ended"),
]


def show(name: str, value: Any) -> str:
    """A figure of a summary in words, with its unit."""
    if isinstance(value, float) and math.isnan(value):
        return "not reached" if name == "time_to_target" else "nan"
    if name.endswith("_share"):
        return f"{100 * value:.1f} %"
    unit = UNITS.get(name, "B" if "bytes" in name else "")
    if unit == "B":
        power = min(int(math.log10(value) // 3), 5) if value else 0
        value, unit = value / 1000.0**power, ("", "k", "M", "G", "T", "P")[power] + "B"
    text = f"{value:.5g}" if isinstance(value, float) else str(value)
    return f"{text} {unit}".strip()


class Summarised(Protocol):
    """A run, as far as a table needs to know it."""

    @property
    def label(self) -> str: ...

    @property
    def summary(self) -> dict[str, Any]: ...


def comparison(runs: Summarised | Iterable[Summarised], *, target: str = "") -> str:
    """The main figures of some runs side by side, as text; ``target`` says what the time to target is of."""
    chosen = list(runs) if isinstance(runs, Iterable) else [runs]
    for run in chosen:
        if not hasattr(run, "summary") or not hasattr(run, "label"):
            raise InputError(f"expected runs, got {run!r}", "runs")
    titles = {**{k: TITLES[k] for k in BRIEF}, **({"time_to_target": f"time to {target}"} if target else {})}
    # only where there are some
    for name in ("dropped", "cancelled", "undelivered", "send_share", "receive_share", "apply_share"):
        if not any(run.summary.get(name, 0) >= 0.0005 for run in chosen):  # shares are shown to a tenth of a percent
            del titles[name]
    return side_by_side([run.label for run in chosen], [run.summary for run in chosen], titles)


def side_by_side(labels: Iterable[str], summaries: Iterable[Mapping[str, Any]], titles: Mapping[str, str]) -> str:
    """Some summaries as text: a line a figure, a column a summary; figures that none has are left out."""
    labels, summaries = list(labels), list(summaries)
    found = [k for k in titles if any(k in s for s in summaries)]
    lines = [["", *labels], *([titles[k], *(show(k, s[k]) if k in s else "" for s in summaries)] for k in found)]
    return in_columns(lines)


def in_columns(lines: list[list[str]]) -> str:
    """Lines of cells as text: the first column to the left, the others to the right."""
    widths = [max(len(line[k]) for line in lines) for k in range(len(lines[0]))]

    def aligned(line: list[str]) -> str:
        cells = (cell.rjust(w) if k else cell.ljust(w) for k, (cell, w) in enumerate(zip(line, widths, strict=True)))
        return "  ".join(cells).rstrip()

    return "\n".join(map(aligned, lines))
