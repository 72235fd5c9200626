"""The machine of the WAGMA-SGD paper, the delays that it injects, and ResNet-50: what its studies have in common."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import asyncsim
from asyncsim.cluster.named_hosts import PizDaint

DATA = Path(__file__).parent / "data"
PUBLISHED = json.loads((DATA / "wagma_figures.json").read_text(encoding="utf-8"))

# The machine is asyncsim's "piz_daint": its bandwidth and latency were measured, what its processor copies or adds in a
# second follows from a parameter server's throughput in another paper, so none of this from the figures simulated here.
HOST = PizDaint()
TOPOLOGY = asyncsim.Racks(hosts=384)  # a group of the dragonfly
OVERLAP = 0.3  # exchanges proceed in this part of the backward pass; chosen on figure 4 (.25 to .35 fit it)
JITTER = 0.02  # coefficient of variation of a GPU's own step times, as in traces of jobs without stragglers
DELAY = 0.32  # seconds


def machine(
    workers: int,
    step_time: asyncsim.StepTime,
    delays: tuple[asyncsim.Delay, ...] = (),
    bucket_bytes: int = 1,
    overlap: float = OVERLAP,
    copy: float | None = None,
) -> asyncsim.Cluster:
    """Nodes of Piz Daint that exchange models tensor by tensor, or in buckets of at least so many bytes. ``copy``: what
    their processors copy or add, in bytes per second, if not what the machine's do."""
    host = HOST if copy is None else replace(HOST, copy_bandwidth=copy)
    return asyncsim.Cluster(
        (asyncsim.Workers(step_time, workers, host),),
        delays=delays,
        topology=TOPOLOGY,
        sharing="rounds",
        buckets=asyncsim.Tensors(bucket_bytes=bucket_bytes, overlap=overlap),
    )


def injected(workers: int) -> tuple[asyncsim.Delay, ...]:
    """320 ms before the forward pass of two workers a step, as the released code has it: each draws twice by itself
    whether it is one of them."""
    return (asyncsim.IndependentDelays(probability=1 - (1 - 1 / workers) ** 2, seconds=DELAY),)


def resnet50() -> tuple[int, ...]:
    """Bytes of its 161 tensors, in forward order."""
    return tuple(json.loads((DATA / "resnet50_tensors.json").read_text(encoding="utf-8"))["tensor_bytes"])


def per_worker(published: dict[str, dict[str, float]]) -> list[float]:
    """What a worker does in a second where nobody waits (the bars called ideal), at each size."""
    return [cells["ideal"] / int(workers) for workers, cells in published.items()]


Timing = tuple[asyncsim.Cluster, asyncsim.Protocol, asyncsim.Workload, asyncsim.Stop]


def rate(timing: Timing) -> float:
    """Gradients per second of all workers together, without the first twentieth of them."""
    cluster, protocol, workload, stop = timing
    trace = asyncsim.record(cluster, protocol, workload, stop=stop)
    done = trace.time[trace.gradients]
    warm = len(done) // 20
    return float((len(done) - 1 - warm) / (done[-1] - done[warm]))
