"""Figures 4, 7 and 10 of the WAGMA-SGD paper: what is learned, who is late, and the systems in them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from wagma_setup import DATA, JITTER, OVERLAP, PUBLISHED, injected, per_worker, resnet50

import asyncsim
from asyncsim.cluster.named_hosts import PizDaint

WIDTH = 512  # of the Transformer


@dataclass(frozen=True)
class Constants:
    """What no measurement gives, the same for all systems and sizes of a figure."""

    overlap: float = OVERLAP  # all figures: exchanges proceed in this part of the backward pass
    jitter: float = JITTER  # figures 4 and 10: coefficient of variation of a GPU's own times
    copy: float = PizDaint().copy_bandwidth or 0.0  # all: bytes a second, of a host's processor
    # figure 7: of a worker's step, from the ideal bar of 4 workers; that of 16 would make it 4475
    tokens: float = per_worker(PUBLISHED["tokens_per_second"])[0] * PUBLISHED["transformer_step_seconds"]["mean"]
    # figure 10, both from its inset: the fastest iterations of 1024 workers that wait for nobody take .37 s longer than
    # the ideal ones; half of local SGD's take less than 4.2 s, so that long times must come together
    overhead: float = 0.3  # seconds that are no collecting and no learning
    bursts: float = 0.5  # first parameter of the beta distribution of how many are late at once


@dataclass(frozen=True)
class Setup:
    """One figure: what is learned, and who is late."""

    title: str
    unit: str
    published: dict[str, dict[str, float]]
    between: tuple[int, ...]  # numbers of workers for which nothing is published
    samples: float  # of a worker's step, in the figure's unit
    tensors: tuple[int, ...]  # bytes, in forward order
    step_time: asyncsim.StepTime
    delays: Callable[[int], tuple[asyncsim.Delay, ...]]  # by number of workers
    protocols: dict[str, asyncsim.Protocol]
    dense: tuple[int, ...] = ()  # the tensors that an all-reduce of gradients adds up, if not all


def transformer() -> tuple[int, ...]:
    """The base model of Vaswani et al. (2017): 6 + 6 layers of width 512, inner 2048, a norm before each part and one
    after each stack, no biases in attention, and one embedding of 33,708 rows for source, target and output: 61,362,176
    parameters in 185 tensors, as published."""
    width, inner = WIDTH, 2048
    attention, norm = [width * width] * 4, [width, width]
    forward = [width * inner, inner, inner * width, width]
    encoder, decoder = attention + norm + forward + norm, attention + norm + attention + norm + forward + norm
    sizes = [33_708 * width, *encoder * 6, *norm, *decoder * 6, *norm]
    assert sum(sizes) == 61_362_176
    return tuple(4 * size for size in sizes)


def ddppo() -> tuple[int, ...]:
    """Wijmans et al. (ICLR 2020) as far as it is published: a ResNet-18 of half the width with group norm, a layer to
    512 features, two LSTM layers of 512, four actions and a value; the layer has what is left of 8,476,421 parameters.
    """
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


def sentences() -> asyncsim.StepTime:
    """Step times of figure 6: batches of sentences of like length, up to 8192 tokens."""
    times = PUBLISHED["transformer_step_seconds"]
    at, density = np.array(times["at"]), np.array(times["density"])
    below = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2 * np.diff(at))])
    values = np.interp((np.arange(2000) + 0.5) / 2000, below / below[-1], at)
    return asyncsim.Empirical(values=tuple((values * times["mean"] / values.mean()).tolist()))


def experience(constants: Constants) -> tuple[float, tuple[asyncsim.Delay, ...]]:
    """The mean seconds in which a worker collects experience (figure 9, without the one sample of 43.5 s), and what
    comes before each step: that, an overhead, and, where a time is an outlier, its excess, which comes in bursts."""
    lines = (DATA / "ddppo_collect_seconds.csv").read_text(encoding="utf-8").splitlines()
    times = np.array([float(line) for line in lines if line[0].isdigit()])
    times = times[times < 43]
    usual, late = times[times <= 2.02], times[times > 2.02]
    excess = asyncsim.Empirical(values=tuple((late - usual.mean()).tolist()))
    bursts = asyncsim.Bursts(probability=len(late) / len(times), concentration=constants.bursts, seconds=excess)
    always = asyncsim.IndependentDelays(1.0, asyncsim.Empirical(values=tuple((usual + constants.overhead).tolist())))
    return float(times.mean()), (always, bursts)


@functools.cache
def setups(constants: Constants) -> dict[str, Setup]:
    """All figures."""
    images, tokens, steps = (PUBLISHED[f"{name}_per_second"] for name in ("images", "tokens", "experience"))
    common: dict[str, asyncsim.Protocol] = {
        "localSGD": asyncsim.PeriodicAveraging(),
        "DPSGD": asyncsim.RingAveraging(),
        "ADPSGD": asyncsim.PairwiseAveraging(averages=0),
    }
    collecting, before = experience(constants)
    embedding, *others = transformer()
    sentence = sentences()
    return {
        "4": Setup(
            "Figure 4: ResNet-50, 320 ms on two workers a step",
            "images/s",
            images,
            (8, 32, 128, 256),
            128,
            resnet50(),
            asyncsim.Gamma(128 / float(np.median(per_worker(images))), constants.jitter),
            injected,
            {
                **common,
                "Allreduce": asyncsim.GradientAllreduce(),
                "SGP": asyncsim.Push(peers=2),
                "eager": asyncsim.EagerAllreduce(sync_period=33),
                "WAGMA": asyncsim.WaitAvoidingGroups(),
            },
        ),
        "7": Setup(
            "Figure 7: Transformer, batches of sentences",
            "tokens/s",
            tokens,
            (8, 32, 64),
            constants.tokens,
            transformer(),
            sentence,
            lambda workers: (),
            {
                **common,
                "Allreduce": asyncsim.GradientAllreduce(gathered_bytes=embedding + 2 * constants.tokens * WIDTH * 4),
                "SGP": asyncsim.Push(peers=1),
                "WAGMA": asyncsim.WaitAvoidingGroups(sync_period=8),
            },
            dense=tuple(others),
        ),
        "10": Setup(
            "Figure 10: DD-PPO in Habitat",
            "experience steps/s",
            steps,
            (32, 128, 256, 512),
            256,
            ddppo(),
            asyncsim.Gamma(256 / float(np.median(per_worker(steps))) - collecting, constants.jitter),
            lambda workers: before,
            {
                **common,
                "ADPSGD": asyncsim.PairwiseAveraging(),  # without pause it would average 70 times a step: the same time
                "SGP": asyncsim.Push(peers=4),
                "WAGMA": asyncsim.WaitAvoidingGroups(sync_period=8),
            },
        ),
    }
