"""Which samples a gradient is taken on: partitions, orders, mini-batches."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncsim.algorithms import ASGD, Averaging
from asyncsim.data import IID, Blobs, Dirichlet, Sampling, Sharded, Shared
from asyncsim.data.sampling import BLOCK, Batches
from asyncsim.errors import InputError
from asyncsim.problems import MLP, CustomProblem, Quadratic
from asyncsim.records import build, table
from asyncsim.replaying import replay
from asyncsim.streams import Purpose, generator
from asyncsim.testing import small_trace
from asyncsim.trace import Trace

PARTITIONS = {"iid": IID(), "sharded": Sharded(), "many shards": Sharded(5), "dirichlet": Dirichlet(1.0)}


def stream(batches, worker, length):
    """The first samples of a worker's mini-batches, one after the other."""
    steps = np.arange(-(-length // batches.batch_size))
    return batches.indices(np.full(len(steps), worker), steps).ravel()[:length]


def test_a_mini_batch_depends_on_seed_worker_and_step_alone():
    a, b = Batches(1, 100, 4), Batches(1, 100, 4)
    workers, steps = np.array([0, 2, 1, 0]), np.array([300, 7, 0, 2])
    there = a.indices(workers, steps)
    for k in (2, 0, 3, 1):
        assert b.indices(workers[k : k + 1], steps[k : k + 1])[0].tolist() == there[k].tolist()
    assert len({tuple(row) for row in there.tolist()}) == 4
    assert Batches(2, 100, 4).indices(workers, steps).tolist() != there.tolist()
    assert Batches(1, 0, 4).indices(workers, steps).shape == (4, 0)


def test_mini_batches_cover_the_data_evenly():
    counts = np.bincount(stream(Batches(0, 10, 50), 0, 20_000), minlength=10)
    assert counts.sum() == 20_000
    # chi square with 9 degrees of freedom: 27.9 is passed once in a thousand seeds
    assert ((counts - 2000) ** 2 / 2000).sum() < 27.9


def test_the_default_draws_what_it_always_drew():
    """Results of former versions stand: blocks of 8192 samples from the stream (seed, DATA, worker, number)."""
    steps = BLOCK // 32
    for worker, number in ((0, 0), (3, 2)):
        rng = generator(7, Purpose.DATA, worker, number)
        drawn = rng.integers(1437, size=(steps, 32), dtype=np.int32)
        found = Batches(7, 1437, 32).indices(np.full(steps, worker), number * steps + np.arange(steps))
        assert np.array_equal(found, drawn)


@settings(max_examples=60, deadline=None)
@given(
    partition=st.sampled_from(list(PARTITIONS.values())),
    num_workers=st.integers(1, 12),
    more=st.integers(0, 200),
    classes=st.integers(1, 6),
    seed=st.integers(0, 1000),
)
def test_parts_are_disjoint_and_cover_every_sample(partition, num_workers, more, classes, seed):
    size = 60 + more
    labels = np.random.default_rng(seed).integers(classes, size=size)
    parts = partition.deal(size, labels, num_workers, seed)
    assert sorted(np.concatenate([parts[i] for i in range(num_workers)]).tolist()) == list(range(size))
    assert parts.sizes.min() > 0
    assert [len(parts[i]) for i in range(num_workers)] == parts.sizes.tolist()
    if not isinstance(partition, Dirichlet):
        room = 1 if isinstance(partition, IID) else partition.shards_per_worker
        assert parts.sizes.max() - parts.sizes.min() <= room


@settings(max_examples=40, deadline=None)
@given(
    partition=st.sampled_from([Shared(), *PARTITIONS.values()]),
    num_workers=st.integers(1, 5),
    size=st.integers(30, 300),
    batch_size=st.integers(1, 40),
    seed=st.integers(0, 100),
)
def test_a_reshuffled_epoch_visits_every_sample_of_a_part_once(partition, num_workers, size, batch_size, seed):
    labels = np.arange(size) % 3
    batches = Batches(seed, size, batch_size, Sampling(partition, "reshuffled"), num_workers, labels)
    for worker in range(num_workers):
        if isinstance(partition, Shared):
            parts = [np.arange(size)] * 3
        else:
            parts = [
                partition.deal(size, labels, num_workers, seed, e if partition.anew else 0)[worker] for e in range(3)
            ]
        length = len(parts[0])
        epochs = stream(batches, worker, 3 * length).reshape(3, length)
        for epoch, part in zip(epochs, parts, strict=True):
            assert sorted(epoch.tolist()) == sorted(part.tolist())
        if length > 12:
            assert epochs[0].tolist() != epochs[1].tolist() != epochs[2].tolist()


@pytest.mark.parametrize(("size", "num_workers"), [(100, 4), (103, 4), (7, 7)])
def test_iid_workers_together_go_through_all_samples_once_an_epoch(size, num_workers):
    batches = Batches(3, size, 5, Sampling(IID(), "reshuffled"), num_workers)
    lengths = IID().deal(size, np.zeros(0), num_workers, 3).sizes
    streams = [stream(batches, i, 4 * n).reshape(4, n) for i, n in enumerate(lengths)]
    for epoch in range(4):
        seen = np.concatenate([s[epoch] for s in streams])
        assert sorted(seen.tolist()) == list(range(size))
    if num_workers < size:
        assert sorted(streams[0][0].tolist()) != sorted(streams[0][1].tolist())  # dealt anew


def test_orders_are_fresh_for_each_worker():
    batches = Batches(0, 1000, 10, Sampling(order="reshuffled"), 3)
    assert len({tuple(stream(batches, i, 1000).tolist()) for i in range(3)}) == 3


def test_shards_give_few_labels():
    labels = np.random.default_rng(0).integers(10, size=2000)
    parts = Sharded(2).deal(2000, labels, 20, 0)
    assert max(len(set(labels[parts[i]])) for i in range(20)) <= 4  # two shards, each across one border at most
    assert parts.sizes.tolist() == [100] * 20
    even = np.repeat(np.arange(10), 200)
    parts = Sharded(2).deal(2000, even, 20, 0)
    assert max(len(set(even[parts[i]])) for i in range(20)) <= 2


def test_dirichlet_shares_have_their_mean_and_variance():
    labels, n, alpha = np.repeat(np.arange(4), 2000), 5, 2.0
    shares = []
    for seed in range(300):
        parts = Dirichlet(alpha).deal(len(labels), labels, n, seed)
        shares.append([[np.mean(labels[parts[i]] == c) * len(parts[i]) / 2000 for i in range(n)] for c in range(4)])
    shares = np.array(shares)
    assert shares.sum(2) == pytest.approx(np.ones((300, 4)))
    assert shares.mean((0, 1)) == pytest.approx(np.full(n, 1 / n), abs=0.015)
    assert shares.var() == pytest.approx((1 / n) * (1 - 1 / n) / (n * alpha + 1), rel=0.08)


def test_dirichlet_leaves_nobody_without_samples_or_says_what_to_do():
    labels = np.arange(400) % 4
    assert all(Dirichlet(0.1).deal(400, labels, 4, seed).sizes.min() > 0 for seed in range(50))
    with pytest.raises(
        InputError,
        match=r"alpha: .*left one of 100 workers without samples: take a larger alpha than 0.01, or fewer workers",
    ):
        Dirichlet(0.01).deal(400, labels, 100, 0)


@pytest.mark.parametrize("order", ["replacement", "reshuffled"])
@pytest.mark.parametrize("partition", PARTITIONS.values(), ids=PARTITIONS)
def test_a_worker_sees_its_own_part_alone(partition, order):
    labels = np.random.default_rng(0).integers(5, size=500)
    batches = Batches(1, 500, 16, Sampling(partition, order), 6, labels)
    for worker in range(6):
        seen = stream(batches, worker, 400)
        if order == "reshuffled" and partition.anew:
            parts = [partition.deal(500, labels, 6, 1, epoch) for epoch in range(6)]
            own = [part[worker] for part in parts]
            assert set(seen[: len(own[0])].tolist()) == set(own[0].tolist())
        else:
            assert set(seen.tolist()) <= set(partition.deal(500, labels, 6, 1)[worker].tolist())


@pytest.mark.parametrize("engine", ["scan", "rows"])
@pytest.mark.parametrize(("kind", "method"), [("server", ASGD(0.1)), ("peers", Averaging(0.1))])
def test_the_replay_learns_on_the_parts(kind, method, engine):
    """The batch loss is the mean of the samples' numbers, as both engines report it."""

    def mean_number(params, batch):
        return batch["number"].mean() + 0 * params["w"]

    data = {"number": np.arange(90.0), "y": np.arange(90) // 10}
    problem = CustomProblem(mean_number, {"w": np.zeros(())}, data)
    trace = small_trace(kind, local_steps=False)
    for sampling in (Sampling(Sharded(1)), Sampling(IID(), "reshuffled"), Sampling(order="reshuffled")):
        run = replay(trace, method, problem, sampling=sampling, seed=5, engine=engine)
        rows = trace.gradients
        drawn = Batches(5, 90, 4, sampling, 3, data["y"]).indices(trace.worker[rows], trace.step[rows])
        assert run.updates["loss"] == pytest.approx(drawn.mean(1), rel=1e-6)
        assert run.settings["sampling"] == table(sampling)


def test_a_thousand_workers_are_quick():
    labels = np.random.default_rng(0).integers(10, size=60_000)
    workers, steps = np.tile(np.arange(1000), 20), np.repeat(np.arange(20), 1000)
    for partition in (Shared(), IID(), Sharded(), Dirichlet(10.0)):
        for order in ("replacement", "reshuffled"):
            batches = Batches(0, 60_000, 32, Sampling(partition, order), 1000, labels)
            found = batches.indices(workers, steps)
            assert found.shape == (20_000, 32)
            assert found.dtype == np.int32


def test_what_cannot_be_dealt_out_is_refused():
    trace, method = Trace.from_arrivals([0, 1, 2]), ASGD(0.1)
    for sampling in (Sampling(IID()), Sampling(order="reshuffled")):
        with pytest.raises(InputError, match="sampling: quadratic has no samples to deal out or to put in order"):
            replay(trace, method, Quadratic(), sampling=sampling)
    small = MLP(Blobs(train=2, test=2))
    with pytest.raises(InputError, match=r"sampling.partition: 3 workers cannot share 2 samples: some would have none"):
        replay(trace, method, small, sampling=Sampling(IID()))
    with pytest.raises(
        InputError, match="shards_per_worker: 10 samples cannot be cut into 12 shards, 4 for each worker"
    ):
        replay(trace, method, MLP(Blobs(train=10, test=2)), sampling=Sampling(Sharded(4)))
    unlabelled = CustomProblem(lambda p, b: (p["w"] ** 2).sum(), {"w": np.ones(2)}, {"x": np.ones((9, 2))})
    with pytest.raises(InputError, match=r"sampling.partition: the samples of CustomProblem have no labels"):
        replay(trace, method, unlabelled, sampling=Sampling(Dirichlet()))
    replay(trace, method, unlabelled, sampling=Sampling(IID()))  # needs no labels
    with pytest.raises(InputError, match="expected a Sampling, got 'iid'"):
        replay(trace, method, small, sampling="iid")


def test_from_tables_and_back():
    sampling = build(Sampling, {"partition": "iid", "order": "reshuffled"})
    assert sampling == Sampling(IID(), "reshuffled")
    given = {"partition": {"name": "dirichlet", "alpha": 0.3}, "order": "replacement"}
    assert table(build(Sampling, given)) == given
    with pytest.raises(InputError, match=r"no partition is called 'shard'.*did you mean 'shared'"):
        build(Sampling, {"partition": "shard"})
