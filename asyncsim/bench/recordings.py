"""Timing alone over bare SimPy timeouts; how much a trace takes."""

from __future__ import annotations

import functools
import statistics
from typing import Any

import numpy as np
import simpy

from asyncsim.bench.timing import Figures, ratio, spent
from asyncsim.cluster import Cluster, Constant, Gamma, Host, Racks, Tensors, Workers
from asyncsim.cluster.named_hosts import PizDaint
from asyncsim.protocols import Asynchronous, WaitAvoidingGroups
from asyncsim.recording import Stop, record
from asyncsim.trace import Trace
from asyncsim.vocabulary import ROW_ARRAYS
from asyncsim.workload import Workload

SIZES = (8, 64, 1024)
NIC = Host(bandwidth=1e9, latency=1e-5)
TENSORS = (4_000_000,) * 25


def timeouts(workers: int, gradients: int) -> None:
    """As many events as gradients, and nothing else."""
    env, each = simpy.Environment(), gradients // workers
    draws = np.random.default_rng(0).gamma(100, 0.01, (workers, each)).tolist()

    def worker(times: list[float]) -> Any:
        for seconds in times:
            yield env.timeout(seconds)

    for times in draws:
        env.process(worker(times))
    env.run()


def recording(scale: float) -> Figures:
    """Gradients per second of the processor, over timeouts of bare SimPy."""
    count = max(int(2**16 * scale), 2048)
    more: dict[int, float] = {}
    for workers in SIZES:
        cluster = Cluster((Workers(Gamma(1.0, 0.1), workers),))

        def ours(times: int = 1, cluster: Cluster = cluster) -> Trace:
            return record(cluster, Asynchronous(), stop=Stop(updates=times * count))

        yield f"recording.async.{workers}", ratio(ours, functools.partial(timeouts, workers, count)).cpu
        # of an event more: making a thousand workers takes its time as well
        more[workers] = statistics.median(spent(lambda: ours(4)).cpu - spent(ours).cpu for _ in range(5))
    yield "recording.cost_of_1024_over_8", more[1024] / more[8]
    trace = record(Cluster((Workers(Constant(1.0), 8),)), Asynchronous(), stop=Stop(updates=10_000))
    # lists of members, spans and transfers apart
    yield "recording.bytes_a_row", sum(getattr(trace, name).nbytes for name in ROW_ARRAYS) / len(trace)
    few = count // 8
    for workers in SIZES[:2]:
        slow = Cluster((Workers(Gamma(1.0, 0.1), workers, NIC),))

        def on_network(cluster: Cluster = slow) -> Trace:
            return record(cluster, Asynchronous(), Workload(tensor_bytes=TENSORS), stop=Stop(updates=few))

        yield f"recording.nic.{workers}", ratio(on_network, functools.partial(timeouts, workers, few)).cpu
    many = Cluster(
        (Workers(Gamma(1.0, 0.1), 1024, PizDaint()),), topology=Racks(hosts=384), sharing="rounds", buckets=Tensors()
    )
    stop = Stop(updates=int(1024 * 200 * scale))
    taken = spent(lambda: record(many, WaitAvoidingGroups(), Workload(tensor_bytes=TENSORS), stop=stop))
    yield "recording.wagma_1024x200.cpu_seconds", taken.cpu / scale
