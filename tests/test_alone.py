"""Workers that never meet: the trace that is added up at once is that of the events, to the last bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncsim.cluster import (
    Cluster,
    Constant,
    Empirical,
    Exponential,
    Gamma,
    Host,
    IndependentDelays,
    Pareto,
    Servers,
    Tensors,
    Uniform,
    Workers,
)
from asyncsim.protocols import Asynchronous, Serial
from asyncsim.recording import Recording, Stop, record
from asyncsim.trace import ARRAYS
from asyncsim.workload import Costs, Workload

WORKLOAD = Workload(tensor_bytes=(600, 400))
STEP_TIMES = [Constant(1.0), Uniform(0.5, 1.5), Gamma(1.0, 0.7), Exponential(1.0), Pareto(1.2, 0.1)]
STEP_TIMES += [Empirical(values=[0.5, 1.0, 4.0]), Constant(5e-324)]  # the last adds nothing to the clock


def by_events(cluster, protocol, costs, stop, seed):
    recording = Recording(cluster, protocol, WORKLOAD, costs, stop=stop, seed=seed)
    assert recording.go_on() is None
    return recording.trace()


def same(cluster, protocol, costs, stop, seed):
    ours, events = (
        record(cluster, protocol, WORKLOAD, costs, stop=stop, seed=seed),
        by_events(cluster, protocol, costs, stop, seed),
    )
    assert ours.end == events.end
    for name in ARRAYS:
        one, other = getattr(ours, name), getattr(events, name)
        assert one.dtype == other.dtype
        assert np.array_equal(one, other), name
    assert (ours.workload, ours.costs) == (events.workload, events.costs)


latencies = st.sampled_from([0.0, 0.1, 0.25])
groups = st.lists(
    st.builds(
        lambda times, count, latency: Workers(times, count, Host(latency=latency)),
        st.sampled_from(STEP_TIMES[:-1]),
        st.integers(1, 4),
        latencies,
    ),
    min_size=1,
    max_size=3,
)
stops = st.fixed_dictionaries(
    {},
    optional={
        "updates": st.sampled_from([1, 2, 5, 40, 333]),
        "seconds": st.sampled_from([0.2, 1.0, 3.0, 12.0]),
        "samples": st.sampled_from([1, 32, 33, 500]),
    },
).filter(bool)


@settings(max_examples=150, deadline=None)
@given(
    groups=groups,
    latency=latencies,
    eager_limit=st.sampled_from([None, 0.0, 100.0]),
    delayed=st.booleans(),
    upload=st.sampled_from([1.0, 0.01]),
    stop=stops,
    seed=st.integers(0, 1000),
)
def test_it_is_the_trace_of_the_events(groups, latency, eager_limit, delayed, upload, stop, seed):
    delays = (IndependentDelays(0.3, Constant(0.5)),) if delayed else ()
    cluster = Cluster(tuple(groups), latency, eager_limit=eager_limit, delays=delays)
    same(cluster, Asynchronous(), Costs(upload=upload), Stop(**stop), seed)


@pytest.mark.parametrize("workers", [1, 3])
def test_steps_that_add_nothing_to_the_clock(workers):
    """As long as it stands still, worker 0 is always first."""
    same(Cluster((Workers(STEP_TIMES[-1], workers),)), Asynchronous(), Costs(), Stop(updates=100), 0)


def test_one_worker_is_alone_by_nature():
    same(Cluster((Workers(Gamma(1.0, 0.5), 1),), 0.1), Serial(), Costs(), Stop(updates=50), 3)


@pytest.mark.parametrize(
    "cluster",
    [
        Cluster((Workers(Constant(1.0), 2, Host(bandwidth=1e4)),)),
        Cluster((Workers(Constant(1.0), 2),), servers=Servers(update_seconds=Constant(0.1))),
        Cluster((Workers(Constant(1.0), 2),), servers=Servers(2)),
        Cluster((Workers(Constant(1.0), 2),), servers=Servers(host=Host(copy_bandwidth=1e4))),
        Cluster((Workers(Constant(1.0), 2),), 0.1, buckets=Tensors()),
    ],
    ids=["links", "server", "shards", "processor", "pieces"],
)
def test_where_they_meet_it_says_so(cluster):
    recording = Recording(cluster, Asynchronous(), WORKLOAD, stop=Stop(updates=20))
    assert recording.at_once() is None
    same(cluster, Asynchronous(), Costs(), Stop(updates=20), 0)
