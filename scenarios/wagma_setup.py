"""The cluster of the WAGMA-SGD paper, with its delays, and the messages of ResNet-50."""

from __future__ import annotations

import json
from pathlib import Path

import asyncsim

STEP = 0.613  # seconds of a step of ResNet-50, 128 images on a P100
DELAY = 0.32  # seconds


def cluster(workers: int) -> asyncsim.Cluster:
    """Nodes of Piz Daint; at each step two of all workers sleep on average, as the released code has it: every worker
    draws twice by itself whether it is one of them."""
    return asyncsim.Cluster(
        (asyncsim.Workers(asyncsim.Gamma(mean=STEP, cv=0.02), workers, "piz_daint"),),
        delays=(asyncsim.IndependentDelays(probability=1 - (1 - 1 / workers) ** 2, seconds=DELAY),),
        sharing="rounds",
        # tensors travel one by one in that code: 4 MiB are fine enough; a part of them, in the backward pass
        buckets=asyncsim.PyTorchDDP(bucket_bytes=2**22, first_bucket_bytes=2**22, overlap=0.3),
    )


def resnet50() -> tuple[int, ...]:
    """Bytes of its tensors in forward order."""
    text = (Path(__file__).parent / "data" / "resnet50_tensors.json").read_text(encoding="utf-8")
    return tuple(json.loads(text)["tensor_bytes"])
