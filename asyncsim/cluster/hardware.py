"""Step times from the arithmetic of a step and the speed of a named GPU."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import indent
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta

from asyncsim.cluster.gpus import GPUS, described
from asyncsim.cluster.step_times import Constant, Gamma, Place, StepTime
from asyncsim.errors import InputError, nearest
from asyncsim.records import Positive, checked, register
from asyncsim.workload import Workload


@register("gpu")
@checked
class GPU(StepTime):
    """Seconds from arithmetic: sample_flops x batch size / (peak x efficiency) on a named GPU.

    ``sample_flops``: floating-point operations, forward and backward, for one sample; left out, those of the problem
    as XLA counts them. ``efficiency``: the share of the peak that the whole step reaches. Nothing but a measurement
    gives it: large transformers in 16 bits are often reported at 0.3 to 0.5, convolutional networks well below, and a
    small model that cannot fill the GPU reaches a few hundredths or less, as launching kernels and moving data then
    cost more than arithmetic. Take it from a step that you have timed. ``cv`` makes the times gamma-distributed with
    that coefficient of variation.
    """

    model: str
    precision: Literal["fp32", "tf32", "fp16", "bf16"]
    efficiency: Annotated[float, Meta(gt=0, le=1)]
    sample_flops: Positive | None = None
    cv: Annotated[float, Meta(ge=0, le=1e9)] = 0.0

    def validate(self) -> None:
        if self.model not in GPUS:
            # V100 means one of those that begin so, not the A100, which is nearer
            begin = [name for name in GPUS if name.lower().startswith(self.model.lower())]
            hint = f"; did you mean {' or '.join(map(repr, begin))}?" if begin else nearest(self.model, GPUS)
            raise InputError(f"no GPU is called {self.model!r}; there are: {', '.join(GPUS)}{hint}", "model")
        figures = GPUS[self.model].flops
        if self.precision not in figures:
            what = f"there is no figure in {self.precision} for {self.model}; there are: {', '.join(figures)}"
            raise InputError(what, "precision")

    def for_workload(self, workload: Workload) -> StepTime:
        flops = self.sample_flops or workload.sample_flops
        if flops is None:
            raise InputError(
                "is missing, and the workload does not say it; give the operations of forward and backward for one "
                "sample, or a workload that knows them, such as problem.workload(batch_size)",
                "sample_flops",
            )
        seconds = flops * workload.batch_size / (GPUS[self.model].flops[self.precision] * self.efficiency)
        return Gamma(seconds, self.cv) if self.cv >= 1e-9 else Constant(seconds)

    def stream(self, rng: np.random.Generator, place: Place) -> Iterator[float]:
        return self.for_workload(Workload()).stream(rng, place)  # the batch size that ``record`` takes by default

    @property
    def mean_seconds(self) -> float:
        return self.for_workload(Workload()).mean_seconds


# so that ``asyncsim list gpu`` names them
GPU.__doc__ = f"{GPU.__doc__}\n    Peaks in TFLOP/s, dense, from data sheets:\n\n{indent(described(), '    ')}\n    "
