"""What one gradient and one message cost: all that the timing needs to know of the model and of the method."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from asyncsim.records import Count, NonNegative, Positive, checked

BatchSize = Annotated[int, Meta(ge=1, le=10_000_000)]
Bytes = Annotated[int, Meta(ge=1, le=10**15)]


@checked
class Workload:
    """The learning problem as the timing sees it.

    ``batch_size``: samples of one gradient. ``num_samples``: samples of one epoch, where known. ``tensor_bytes``: bytes
    of each parameter tensor. ``sample_flops``: floating-point operations, forward and backward, for one sample, where
    known (a product of an m x k and a k x n matrix counts 2mnk).
    """

    batch_size: BatchSize = 32
    num_samples: Count | None = None
    tensor_bytes: tuple[Bytes, ...] = ()
    sample_flops: Positive | None = None

    @property
    def model_bytes(self) -> int:
        return sum(self.tensor_bytes)


@checked
class Costs:
    """What a method sends and touches, in models: 1 is as large as all parameters.

    ``upload``: one message from a worker; ``download``: one message to a worker; ``update``: the buffers that the
    server reads or writes to make one update (2: a gradient, and the parameters).
    """

    upload: NonNegative = 1.0
    download: NonNegative = 1.0
    update: NonNegative = 2.0
