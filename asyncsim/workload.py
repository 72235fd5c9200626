"""What one gradient and one message cost: all that the timing needs to know of the model and of the method."""

from __future__ import annotations

from asyncsim.records import Count, NonNegative, checked


@checked
class Workload:
    """The learning problem as the timing sees it.

    ``batch_size``: samples of one gradient. ``num_samples``: samples of one epoch. ``tensor_bytes``: bytes of each
    parameter tensor, in order of the forward pass. ``flops_per_sample``: floating-point operations of one sample,
    forward and backward (0: unknown).
    """

    batch_size: Count = 32
    num_samples: Count = 1
    tensor_bytes: tuple[Count, ...] = ()
    flops_per_sample: NonNegative = 0.0

    @property
    def model_bytes(self) -> int:
        return sum(self.tensor_bytes)


@checked
class Costs:
    """What a method sends and touches, in models: 1 is one message as large as all parameters.

    ``upload``: one message from a worker; ``download``: one message to a worker; ``buffers``: parameter-sized buffers
    that the server reads or writes in one update.
    """

    upload: NonNegative = 1.0
    download: NonNegative = 1.0
    buffers: NonNegative = 1.0
