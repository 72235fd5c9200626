"""The throughput of WAGMA-SGD and its rivals, simulated from facts about the machine, and what was published.

python scenarios/wagma_throughput.py                          # figures 4, 7 and 10
python scenarios/wagma_throughput.py --figure 4 --workers 8 32 128 256
python scenarios/wagma_throughput.py --figure 4 --tensors 4e6
python scenarios/wagma_throughput.py --quick
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import asyncsim

DATA = Path(__file__).parent / "data"
PUBLISHED = json.loads((DATA / "wagma_figures.json").read_text(encoding="utf-8"))

# of all figures
OVERLAP = (
    0.3  # of what is left of the backward pass when a gradient is ready, the part in which it is exchanged already
)
JITTER = 0.02  # coefficient of variation of a GPU's own step times
HOST = "piz_daint"
TOPOLOGY = asyncsim.Racks(hosts=384)
# of figure 10
OVERHEAD = 0.3  # seconds
BURSTS = 0.45

SYSTEMS = {
    "localSGD": "local SGD",
    "Allreduce": "Allreduce-SGD",
    "DPSGD": "D-PSGD",
    "ADPSGD": "AD-PSGD",
    "SGP": "SGP",
    "eager": "eager-SGD",
    "WAGMA": "WAGMA-SGD",
}


@dataclass(frozen=True)
class Setup:
    """One figure: what is learned, and who is late."""

    title: str
    unit: str
    published: dict[str, dict[str, float]]
    samples: float  # of a worker's step, in the figure's unit
    tensors: tuple[int, ...]  # bytes, in forward order
    step_time: asyncsim.StepTime
    delays: Callable[[int], tuple[asyncsim.Delay, ...]]  # by number of workers
    protocols: dict[str, asyncsim.Protocol]
    dense: tuple[int, ...] = ()  # the tensors that an all-reduce of gradients adds up, if not all


def resnet50() -> tuple[int, ...]:
    """Its 161 tensors."""
    return tuple(json.loads((DATA / "resnet50_tensors.json").read_text(encoding="utf-8"))["tensor_bytes"])


def transformer() -> tuple[int, ...]:
    """The base model of Vaswani et al. (2017): 6 + 6 layers of width 512, inner 2048, a norm before each part and one
    after each stack, no biases in attention, and one embedding of 33,708 rows for source, target and output: 61,362,176
    parameters in 185 tensors, as published."""
    width, inner = 512, 2048
    attention, norm = [width * width] * 4, [width, width]
    forward = [width * inner, inner, inner * width, width]
    encoder, decoder = attention + norm + forward + norm, attention + norm + attention + norm + forward + norm
    sizes = [33_708 * width, *encoder * 6, *norm, *decoder * 6, *norm]
    assert sum(sizes) == 61_362_176
    return tuple(4 * size for size in sizes)


def ddppo() -> tuple[int, ...]:
    """Wijmans et al. (ICLR 2020) as far as it is published: a ResNet-18 of half the width with group norm, a layer to 512
    features, two LSTM layers of 512, four actions and a value; the layer has what is left of 8,476,421 parameters."""
    planes = 32
    sizes, fed = [3 * planes * 49, planes, planes], planes
    for wide in (planes, planes, 2 * planes, 2 * planes, 4 * planes, 4 * planes, 8 * planes, 8 * planes):
        sizes += [9 * fed * wide, wide, wide, 9 * wide * wide, wide, wide]
        sizes += [fed * wide, wide, wide] if fed != wide else []
        fed = wide
    hidden = 512
    recurrent = [4 * hidden * (hidden + 64), 4 * hidden * hidden, 4 * hidden, 4 * hidden]  # 64: goal and last action
    recurrent += [4 * hidden * hidden, 4 * hidden * hidden, 4 * hidden, 4 * hidden]
    heads = [4 * hidden, 4, hidden, 1]
    features = 8_476_421 - sum(sizes) - sum(recurrent) - sum(heads)
    return tuple(4 * size for size in [*sizes, features - hidden, hidden, *recurrent, *heads])


def injected(workers: int) -> tuple[asyncsim.Delay, ...]:
    """320 ms before the forward pass of two workers a step, as the released code has it: each draws twice by itself."""
    return (asyncsim.IndependentDelays(probability=1 - (1 - 1 / workers) ** 2, seconds=0.32),)


def sentences() -> asyncsim.StepTime:
    """Step times of figure 6: batches of sentences of like length, up to 8192 tokens."""
    times = PUBLISHED["transformer_step_seconds"]
    at, density = np.array(times["at"]), np.array(times["density"])
    below = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2 * np.diff(at))])
    values = np.interp((np.arange(2000) + 0.5) / 2000, below / below[-1], at)
    return asyncsim.Empirical(values=tuple((values * times["mean"] / values.mean()).tolist()))


def experience() -> tuple[float, tuple[asyncsim.Delay, ...]]:
    """The mean seconds in which an environment makes its experience (figure 9, without the one sample of 43.5 s), and
    what comes before each step: that, an overhead, and, where a time is an outlier, its excess, which comes in bursts."""
    lines = (DATA / "ddppo_collect_seconds.csv").read_text(encoding="utf-8").splitlines()
    times = np.array([float(line) for line in lines if line[0].isdigit()])
    times = times[times < 43]
    usual, late = times[times <= 2.02], times[times > 2.02]
    excess = asyncsim.Empirical(values=tuple((late - usual.mean()).tolist()))
    bursts = asyncsim.Bursts(probability=len(late) / len(times), concentration=BURSTS, seconds=excess)
    always = asyncsim.IndependentDelays(1.0, asyncsim.Empirical(values=tuple((usual + OVERHEAD).tolist())))
    return float(times.mean()), (always, bursts)


def per_worker(published: dict[str, dict[str, float]]) -> list[float]:
    """What a worker does in a second where nobody waits, at each size."""
    return [cells["ideal"] / int(workers) for workers, cells in published.items()]


def setups() -> dict[str, Setup]:
    """All figures."""
    images, tokens, steps = (PUBLISHED[f"{name}_per_second"] for name in ("images", "tokens", "experience"))
    common: dict[str, asyncsim.Protocol] = {
        "localSGD": asyncsim.PeriodicAveraging(),
        "DPSGD": asyncsim.RingAveraging(),
        "ADPSGD": asyncsim.PairwiseAveraging(averages=None),
        "eager": asyncsim.EagerAllreduce(sync_period=33),
    }
    collecting, before = experience()
    embedding, *others = transformer()
    sentence = sentences()
    return {
        "4": Setup(
            "Figure 4: ResNet-50, 320 ms on two workers a step",
            "images/s",
            images,
            128,
            resnet50(),
            asyncsim.Gamma(128 / float(np.median(per_worker(images))), JITTER),
            injected,
            {
                **common,
                "Allreduce": asyncsim.GradientAllreduce(),
                "SGP": asyncsim.Push(peers=2),
                "WAGMA": asyncsim.WaitAvoidingGroups(),
            },
        ),
        "7": Setup(
            "Figure 7: Transformer, batches of sentences",
            "tokens/s",
            tokens,
            per_worker(tokens)[0] * sentence.mean_seconds,
            transformer(),
            sentence,
            lambda workers: (),
            {
                **common,
                "Allreduce": asyncsim.GradientAllreduce(gathered_bytes=1.33 * embedding),
                "SGP": asyncsim.Push(peers=1),
                "WAGMA": asyncsim.WaitAvoidingGroups(sync_period=8),
            },
            dense=tuple(others),
        ),
        "10": Setup(
            "Figure 10: DD-PPO in Habitat",
            "experience steps/s",
            steps,
            256,
            ddppo(),
            asyncsim.Gamma(256 / float(np.median(per_worker(steps))) - collecting, JITTER),
            lambda workers: before,
            {
                **common,
                "ADPSGD": asyncsim.PairwiseAveraging(),
                "SGP": asyncsim.Push(peers=4),
                "WAGMA": asyncsim.WaitAvoidingGroups(sync_period=8),
            },
        ),
    }


@dataclass(frozen=True)
class Cell:
    """One bar."""

    figure: str
    workers: int
    system: str
    steps: int
    tensors: str
    balanced: bool = False


def simulate(cell: Cell) -> float:
    """Samples per second, in the figure's unit."""
    setup = setups()[cell.figure]
    tensors = setup.dense if cell.system == "Allreduce" and setup.dense else setup.tensors
    bucket = 1 if cell.tensors == "each" else sum(tensors) if cell.tensors == "whole" else int(float(cell.tensors))
    cluster = asyncsim.Cluster(
        (asyncsim.Workers(setup.step_time, cell.workers, HOST),),
        delays=() if cell.balanced else setup.delays(cell.workers),
        topology=TOPOLOGY,
        sharing="rounds",
        buckets=asyncsim.Tensors(bucket_bytes=bucket, overlap=OVERLAP),
    )
    workload = asyncsim.Workload(tensor_bytes=tensors)
    stop = asyncsim.Stop(updates=cell.steps * cell.workers)
    trace = asyncsim.record(cluster, setup.protocols[cell.system], workload, stop=stop)
    done = trace.time[trace.gradients]
    warm = len(done) // 20
    return float((len(done) - 1 - warm) / (done[-1] - done[warm]) * setup.samples)
