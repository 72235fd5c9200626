"""Step-time models and injected delays, against closed forms and against the files that they read."""

import builtins
import dataclasses
import hashlib
import math
import pickle
import subprocess
import sys
from itertools import islice, pairwise
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import asyncsim
from asyncsim.cluster import (
    CVB,
    GPU,
    Bursts,
    Cluster,
    Constant,
    DrawnDelays,
    Empirical,
    Exponential,
    FixedDelays,
    Gamma,
    IndependentDelays,
    Lognormal,
    Markov,
    Pareto,
    Place,
    Recorded,
    ShiftedExponential,
    StepTime,
    StragglerTrace,
    Uniform,
    Workers,
    read_straggler_trace,
)
from asyncsim.cluster.gpus import GPUS
from asyncsim.errors import InputError
from asyncsim.naming import run_name
from asyncsim.problems import MLP, CustomProblem, Quadratic
from asyncsim.protocols import Asynchronous, Synchronous
from asyncsim.recording import Stop, record
from asyncsim.records import build, table
from asyncsim.scenario_files import load_scenarios
from asyncsim.streams import Purpose
from asyncsim.workload import Workload

N = 200_000
VALUES = (0.5, 1.0, 1.0, 4.0)

# model, mean, variance, support; the variance None where it is infinite
DISTRIBUTIONS = {
    "constant": (Constant(0.7), 0.7, 0.0, (0.7, 0.7)),
    "uniform": (Uniform(1.0, 4.0), 2.5, 9 / 12, (1.0, 4.0)),
    "uniform-from-0": (Uniform(0.0, 2.0), 1.0, 4 / 12, (0.0, 2.0)),
    "gamma": (Gamma(2.0, 0.3), 2.0, 0.36, (0.0, math.inf)),
    "lognormal": (Lognormal(2.0, 0.5), 2.0, 1.0, (0.0, math.inf)),
    "exponential": (Exponential(3.0), 3.0, 9.0, (0.0, math.inf)),
    "shifted_exponential": (ShiftedExponential(1.0, 0.5), 1.5, 0.25, (1.0, math.inf)),
    "pareto": (Pareto(6.0, 2.0), 2.4, 4 * 6 / (25 * 4), (2.0, math.inf)),
    "empirical": (Empirical(values=VALUES), 1.625, 1.921875, (0.5, 4.0)),
    "one level": (CVB(2.0, 0.1, 0.0), 2.0, 0.04, (0.0, math.inf)),
    "two levels": (CVB(2.0, 0.2, 0.1), 2.0, 4 * (0.04 + 0.01 + 0.0004), (0.0, math.inf)),
    "markov": (Markov(1.0, 3.0, 1.0, 1.0), 2.0, 1.0, (1.0, 3.0)),  # takes turns
}


def times(step_time, size, *, seed=0, worker=0, delays=(), num_workers=None, workload=None):
    """The first step times of one worker, through the cluster, as a simulation takes them."""
    cluster = Cluster((Workers(step_time, num_workers or worker + 1),), delays=delays)
    return np.array(list(islice(cluster.step_times(worker, seed, workload), size)))


def hash_of(file):
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def compute_spans(trace, worker):
    mine = (trace.spans["worker"] == worker) & (trace.spans["kind"] == "compute")
    return (trace.spans["end"] - trace.spans["start"])[mine]


# ---------------------------------------------------------------- distributions


@pytest.mark.parametrize("case", DISTRIBUTIONS)
def test_mean_variance_and_support(case):
    model, mean, variance, (low, high) = DISTRIBUTIONS[case]
    draws = times(model, N, seed=5)
    assert model.mean_seconds == pytest.approx(mean, rel=1e-12)
    assert draws.min() > 0
    assert low <= draws.min() <= draws.max() <= high
    centred = draws - mean
    # five standard errors of the mean and of the variance, the latter from the sample's fourth moment
    assert draws.mean() == pytest.approx(mean, abs=5 * math.sqrt(variance / N) + 1e-12)
    error = math.sqrt(max(np.mean(centred**4) - variance**2, 0) / N)
    assert np.mean(centred**2) == pytest.approx(variance, abs=5 * error + 1e-9)


@pytest.mark.parametrize("case", DISTRIBUTIONS)
def test_streams_are_plain_floats_that_repeat_and_differ_by_worker_and_seed(case):
    model = DISTRIBUTIONS[case][0]
    cluster = Cluster((Workers(model, 2),))
    first = list(islice(cluster.step_times(0, 3), 700))
    assert all(type(x) is float for x in first)
    assert first == list(islice(cluster.step_times(0, 3), 700))
    if case not in ("constant", "markov"):
        assert first != list(islice(cluster.step_times(1, 3), 700))
        assert first != list(islice(cluster.step_times(0, 4), 700))


@pytest.mark.parametrize("case", ["uniform", "gamma", "lognormal", "exponential", "pareto", "empirical"])
def test_draws_do_not_depend_on_how_many_are_made_at_once(case):
    model = DISTRIBUTIONS[case][0]
    together, apart = np.random.default_rng(1), np.random.default_rng(1)
    parts = np.concatenate([model.draw(apart, 256), model.draw(apart, 44)])
    assert model.draw(together, 300).tolist() == parts.tolist()


@pytest.mark.parametrize("case", ["uniform", "gamma", "lognormal", "pareto", "empirical", "two levels"])
def test_successive_draws_are_uncorrelated(case):
    draws = times(DISTRIBUTIONS[case][0], N, seed=2)
    for lag in (1, 255, 256):  # within a block and across its edge
        assert abs(np.corrcoef(draws[:-lag], draws[lag:])[0, 1]) < 5 / math.sqrt(N)


def test_the_pareto_tail():
    draws = times(Pareto(1.5, 2.0), N)  # of infinite variance: the tail, not the moments
    for t in (3.0, 10.0, 50.0):
        share = (2 / t) ** 1.5
        assert np.mean(draws > t) == pytest.approx(share, abs=5 * math.sqrt(share / N))


def test_a_user_adds_a_model_in_a_few_lines():
    @asyncsim.register("slower_and_slower")
    @asyncsim.checked
    class Slower(StepTime):
        seconds: float

        def stream(self, rng, place):
            return (self.seconds * (k + place.position) for k in range(1, 10**9))

        @property
        def mean_seconds(self):
            return self.seconds

    try:
        cluster = Cluster((Workers(Constant(1.0)), Workers({"name": "slower_and_slower", "seconds": 2.0}, 2)))
        assert list(islice(cluster.step_times(2, 0), 3)) == [4.0, 6.0, 8.0]
    finally:
        del StepTime.members["slower_and_slower"]


# ---------------------------------------------------------------- CVB


@pytest.mark.parametrize(("machine_cv", "expected"), [(0.0, 0.0094), (0.1, 0.0480)])
def test_tails_of_homogeneous_clusters(machine_cv, expected):
    draws = times(CVB(128.0, 0.1, machine_cv), 1_000_000)
    assert np.mean(draws > 1.25 * 128) == pytest.approx(expected, abs=5 * math.sqrt(expected / 1e6) + 5e-5)


def test_without_machines_it_is_the_one_level_gamma_bit_for_bit():
    assert times(CVB(2.0, 0.1, 0.0), 600).tolist() == times(Gamma(2.0, 0.1), 600).tolist()


def test_tail_and_variation_of_a_heterogeneous_cluster_over_machines():
    machines, steps = 10_000, 4
    cluster = Cluster((Workers(CVB(1.0, 0.1, 0.6), machines),))
    draws = np.array([list(islice(cluster.step_times(j, 7), steps)) for j in range(machines)])
    late = (draws > 1.25).mean(1)  # steps of one machine belong together
    assert late.mean() == pytest.approx(0.279, abs=4 * late.std() / math.sqrt(machines) + 5e-4)
    squares = ((draws - 1) ** 2).mean(1)
    assert squares.mean() == pytest.approx(0.36 + 0.01 + 0.0036, abs=4 * squares.std() / math.sqrt(machines))
    # a machine keeps its speed: within it the variation is the task's
    assert (draws.std(1, ddof=1) / draws.mean(1)).mean() == pytest.approx(0.1 * 0.921, rel=0.02)  # c4 of 4 draws


def test_machines_and_steps_are_drawn_apart():
    varied = times(CVB(1.0, 0.1, 0.6), 50, worker=3)
    p = times(CVB(1.0, 0.0, 0.6), 1, worker=3)[0]  # without task variation a step is the machine's own mean
    assert varied / p == pytest.approx(times(Gamma(1.0, 0.1), 50, worker=3), rel=1e-12)


def test_the_machine_seed_holds_machines_or_varies_them():
    def machine(run, machine_seed, worker=0):
        return times(CVB(1.0, 0.0, 0.6, machine_seed=machine_seed), 1, seed=run, worker=worker)[0]

    assert machine(1, 5) == machine(2, 5) == machine(5, None)
    assert machine(1, 5) != machine(1, 6)
    assert machine(1, None) != machine(2, None)
    assert machine(1, 5, worker=1) != machine(1, 5)
    # the run's seed still draws the steps
    a, b = (times(CVB(1.0, 0.1, 0.6, machine_seed=5), 20, seed=run) for run in (1, 2))
    assert a.tolist() != b.tolist()


def ratios(n, draws, rounds):
    """Asynchronous over synchronous throughput without communication, for each draw of n machines.

    Per worker and second the asynchronous cluster does mean(1/p_j) steps and the synchronous one 1/E[max]: p_j is the
    model's own draw, the maximum is estimated from ``rounds`` steps.
    """
    p = np.empty((draws, n))
    for d in range(draws):
        cluster = Cluster((Workers(CVB(1.0, 0.0, 0.6, machine_seed=d), n),))
        p[d] = [next(cluster.step_times(j, 0)) for j in range(n)]
    steps = np.random.default_rng(0).gamma(100, 0.01, (rounds, draws, n))
    return np.mean(1 / p, 1) * (p * steps).max(2).mean(0)


@pytest.mark.parametrize(("n", "draws", "expected", "published"), [(8, 4000, 3.077, 3.13), (32, 1000, 4.162, 4.17)])
def test_heterogeneous_throughput_ratio_over_machine_draws(n, draws, expected, published):
    found = ratios(n, draws, rounds=50)
    error = found.std() / math.sqrt(draws)  # .02 and .04
    # ``expected`` from 10^5 and 3 10^4 draws in plain NumPy (errors .005 and .007); the published means are of fewer
    assert found.mean() == pytest.approx(expected, abs=4 * error)
    assert found.mean() == pytest.approx(published, abs=4 * error)
    if n == 8:  # how much hangs on the machines: nine of ten draws
        assert np.quantile(found, [0.05, 0.95]) == pytest.approx([1.72, 5.49], rel=0.04)


def test_heterogeneous_throughput_ratio_recorded():
    n, seeds, workload = 8, 40, Workload(batch_size=1)
    exact = ratios(n, seeds, rounds=2000)
    found = []
    for machines in range(seeds):
        cluster = Cluster((Workers(CVB(1.0, 0.1, 0.6, machine_seed=machines), n),))
        synchronous = record(cluster, Synchronous(), workload, stop=Stop(updates=150))
        asynchronous = record(cluster, Asynchronous(), workload, stop=Stop(seconds=150.0))
        found.append(asynchronous.summary()["throughput"] / synchronous.summary()["throughput"])
    # 150 rounds: about 1 % from the maxima, as much from the gradients under way at the end
    assert np.array(found) == pytest.approx(exact, rel=0.06)
    assert np.mean(found) == pytest.approx(exact.mean(), rel=0.01)
    assert np.mean(found) == pytest.approx(3.13, abs=4 * np.std(found) / math.sqrt(seeds))


def test_homogeneous_throughput_ratio_of_cvb(make_cluster):
    cluster, workload, stop = make_cluster(CVB(1.0, 0.1, 0.0), 8), Workload(batch_size=1), Stop(samples=16_000)
    both = [record(cluster, p, workload, stop=stop, seed=3).summary() for p in (Asynchronous(), Synchronous())]
    assert both[0]["throughput"] / both[1]["throughput"] == pytest.approx(1.147, abs=0.005)


# ---------------------------------------------------------------- spells


def test_markov_spells():
    model, steps = Markov(Constant(1.0), Constant(3.0), fast_steps=8.0, slow_steps=2.0), 100_000
    assert model.mean_seconds == pytest.approx(1.4)
    draws = times(model, steps)
    slow = draws == 3.0
    assert set(draws.tolist()) == {1.0, 3.0}
    memory = 1 - 1 / 8 - 1 / 2  # the chain's second eigenvalue
    error = math.sqrt(0.2 * 0.8 / steps * (1 + memory) / (1 - memory))
    assert slow.mean() == pytest.approx(0.2, abs=4 * error)
    assert np.corrcoef(slow[:-1], slow[1:])[0, 1] == pytest.approx(memory, abs=0.02)
    edges = np.flatnonzero(slow[1:] != slow[:-1]) + 1
    lengths = np.diff(edges)
    in_slow = slow[edges[:-1]]
    for spells, mean in ((lengths[in_slow], 2.0), (lengths[~in_slow], 8.0)):
        deviation = math.sqrt(mean * (mean - 1))  # of a geometric length
        assert spells.mean() == pytest.approx(mean, abs=4 * deviation / math.sqrt(len(spells)))
        assert spells.std() == pytest.approx(deviation, rel=0.05)


def test_markov_starts_in_the_stationary_state():
    cluster = Cluster((Workers(Markov(1.0, 3.0, 8.0, 2.0), 4000),))
    first = np.array([list(islice(cluster.step_times(j, 0), 3)) for j in range(4000)])
    assert (first == 3.0).mean(0) == pytest.approx(0.2, abs=4 * math.sqrt(0.16 / 4000))


def test_markov_draws_spells_and_times_apart():
    few, many = (times(Markov(Gamma(1.0, 0.1), 5.0, 4.0, k), 300) for k in (1.0, 3.0))
    few, many = few[few != 5.0], many[many != 5.0]
    assert few[:100].tolist() == many[:100].tolist()


# ---------------------------------------------------------------- measured times


@pytest.fixture
def steps_csv(tmp_path):
    """Two workers' rows, mixed up; worker 10 comes after worker 2."""
    path = tmp_path / "steps.csv"
    path.write_text("# seconds a step\nworker,seconds,host\n10,0.5,b\n2,1.0,a\n\n2,2.0,a\n10,0.25,b\n2,3.0,a\n")
    return str(path)


@pytest.fixture
def bare_csv(tmp_path):
    path = tmp_path / "bare.csv"
    path.write_text("# digitised\n1.5\n2.5\n5\n")
    return str(path)


def test_empirical_times_are_those_of_the_file(steps_csv, bare_csv):
    draws = times(Empirical(bare_csv), 30_000)
    assert set(draws.tolist()) == {1.5, 2.5, 5.0}
    assert Empirical(bare_csv).mean_seconds == 3.0
    assert draws.mean() == pytest.approx(3.0, abs=4 * draws.std() / math.sqrt(30_000))
    assert set(times(Empirical(steps_csv, "seconds"), 300).tolist()) == {0.25, 0.5, 1.0, 2.0, 3.0}


def test_recorded_times_come_in_order_and_again(steps_csv, bare_csv):
    assert times(Recorded(bare_csv), 7).tolist() == [1.5, 2.5, 5.0, 1.5, 2.5, 5.0, 1.5]
    assert times(Recorded(values=[3, 1.0]), 3, worker=4).tolist() == [3.0, 1.0, 3.0]
    assert times(Recorded(steps_csv, "seconds"), 5).tolist() == [0.5, 1.0, 2.0, 0.25, 3.0]
    by = Recorded(steps_csv, "seconds", by="worker")
    assert times(by, 4, worker=0, num_workers=2).tolist() == [1.0, 2.0, 3.0, 1.0]
    assert times(by, 4, worker=1).tolist() == [0.5, 0.25, 0.5, 0.25]
    assert times(Recorded(steps_csv, "seconds", by="host"), 2, worker=1).tolist() == [0.5, 0.25]
    assert by.mean_seconds == pytest.approx(1.35)


def test_a_group_counts_its_own_workers(steps_csv):
    by = Recorded(steps_csv, "seconds", by="worker")
    cluster = Cluster((Workers(0.1, 3), Workers(by, 2)))
    assert list(islice(cluster.step_times(4, 0), 2)) == [0.5, 0.25]
    trace = record(cluster, Synchronous(), stop=Stop(updates=3))
    assert compute_spans(trace, 3) == pytest.approx([1.0, 2.0, 3.0])


def test_recorded_times_from_random_places(bare_csv):
    model = Recorded(values=list(range(1, 101)), start="random")
    begins = []
    for worker in range(200):
        mine = times(model, 250, worker=worker)
        begins.append(mine[0])
        assert {b - a for a, b in pairwise(mine)} == {1.0, -99.0}
    assert len(set(begins)) > 70  # 87 of 100 places are expected


def test_the_script_measures_what_it_simulates(tmp_path, scenarios_folder):
    path = tmp_path / "trace.parquet"
    pyarrow.parquet.write_table(straggler_table(), path)
    script = [sys.executable, "-W", "error", str(scenarios_folder / "straggler_trace.py")]
    done = subprocess.run([*script, str(path), "--passes", "5"], capture_output=True, text=True, check=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    for stage in (0, 1):
        seconds = read_straggler_trace(path, stage)
        (first,) = (k for k, line in enumerate(lines) if line[:2] == ["stage", f"{stage}:"])
        rows = {line[0]: list(map(float, line[1:])) for line in lines[first + 2 : first + 7]}
        assert list(rows) == ["trace", "replayed", "empirical", "lognormal", "gamma"]
        mean, highest = seconds.mean(), seconds.max(1).mean()
        assert rows["trace"][:3] == pytest.approx([mean, seconds.std() / mean, highest / mean], abs=6e-4)
        assert rows["replayed"][:5] == rows["trace"]
        assert rows["replayed"][6] == pytest.approx(3 / highest, abs=6e-4)
    wrong = subprocess.run([*script, str(tmp_path / "no.xyz")], capture_output=True, text=True, check=False)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == f"straggler_trace: {tmp_path}/no.xyz: no such file\n"


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_csv_and_parquet_are_the_same(tmp_path, steps_csv, kind):
    path = tmp_path / "steps.parquet"
    columns = {"worker": [10, 2, 2, 10, 2], "seconds": [0.5, 1.0, 2.0, 0.25, 3.0]}
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    file = steps_csv if kind == "csv" else str(path)
    assert Recorded(file, "seconds", by="worker") != Recorded(file, "seconds")
    assert times(Recorded(file, "seconds", by="worker"), 3, worker=1).tolist() == [0.5, 0.25, 0.5]
    assert table(Empirical(file, "seconds"))["sha256"] == hash_of(file)


def test_parquet_needs_pyarrow(tmp_path, monkeypatch):
    path = tmp_path / "steps.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"seconds": [1.0]}), path)
    ordinary = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return ordinary(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=r"file: .*steps.parquet: a Parquet file needs pyarrow: pip install 'asyncsim"):
        Empirical(str(path))


def test_the_hash_of_a_file_is_written_and_checked(bare_csv):
    model = Recorded(bare_csv)
    sha256 = hash_of(bare_csv)
    assert model.sha256 is None
    written = table(Workers(model))["step_time"]
    assert written["sha256"] == model.resolved().sha256 == sha256
    assert build(StepTime, written) == model.resolved()
    with open(bare_csv, "a") as file:
        file.write("7\n")
    # what was made keeps what it read; what is made now reads what there is now
    assert times(model, 4).tolist() == [1.5, 2.5, 5.0, 1.5]
    assert table(model) == written
    assert times(pickle.loads(pickle.dumps(model)), 4).tolist() == [1.5, 2.5, 5.0, 1.5]
    assert times(Recorded(bare_csv), 4).tolist() == [1.5, 2.5, 5.0, 7.0]
    with pytest.raises(InputError, match=rf"sha256: .*bare.csv has \w{{64}}, not {sha256}: it is not the file"):
        Recorded(bare_csv, sha256=sha256)
    assert Recorded(values=[1.0]).resolved() == Recorded(values=[1.0])


def test_a_runs_name_changes_with_the_file(tmp_path, bare_csv):
    scenario = tmp_path / "s.toml"
    scenario.write_text(f"""
        algorithm = "asgd"
        problem = "quadratic"
        stop = {{ updates = 3 }}
        [cluster]
        [[cluster.delays]]
        name = "independent"
        probability = 0.5
        seconds = {{ name = "empirical", file = "{bare_csv}" }}
        [[cluster.workers]]
        [cluster.workers.step_time]
        name = "markov"
        fast = 0.1
        slow = {{ name = "recorded", file = "{bare_csv}" }}
        fast_steps = 2
        slow_steps = 2
    """)
    first = load_scenarios(scenario)
    cluster = first["s"].to_table()["cluster"]
    assert len(cluster["workers"][0]["step_time"]["slow"]["sha256"]) == 64
    assert len(cluster["delays"][0]["seconds"]["sha256"]) == 64
    assert run_name(load_scenarios(scenario)["s"]) == run_name(first["s"])
    with open(bare_csv, "a") as file:
        file.write("7\n")
    assert run_name(load_scenarios(scenario)["s"]) != run_name(first["s"])


def straggler_table(**changes):
    rows = [
        (rank, stage, step, optype, seconds)
        for rank in (0, 1, 2)
        for stage in (0, 1)
        for step in (16, 20)
        for optype, seconds in (
            ("forward-compute", 0.25 * (rank + 1)),
            ("backward-compute", 0.5 * (step - 15)),
            ("forward-compute", 0.25 + stage),
            ("forward-recv", 99.0),
        )
    ]
    names = ("dp_rank", "stage", "step", "optype", "duration")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)) | changes
    kept = {name: values for name, values in columns.items() if values is not None}
    made = pyarrow.table(kept)
    if "optype" in kept:  # as the published files have it
        made = made.set_column(made.column_names.index("optype"), "optype", made["optype"].dictionary_encode())
    return made


def test_a_straggler_trace_is_summed_over_micro_batches(tmp_path):
    path = str(tmp_path / "trace.parquet")
    pyarrow.parquet.write_table(straggler_table(), path)
    expected = [[0.5 * k + 0.25 * (rank + 1) + 0.25 for rank in range(3)] for k in (1, 5)]
    assert read_straggler_trace(path).tolist() == expected
    assert read_straggler_trace(path, stage=1).tolist() == (np.array(expected) + 1).tolist()
    model = StragglerTrace(path, stage=1)
    assert times(model, 3, worker=2).tolist() == [expected[0][2] + 1, expected[1][2] + 1, expected[0][2] + 1]
    assert model.mean_seconds == pytest.approx(np.mean(expected) + 1)
    assert len(table(model)["sha256"]) == 64


def test_the_published_straggler_trace(request):
    # beside the repository or its folder, where the reference data are kept
    name = "shared/data/straggler-traces/trace-SE.parquet"
    root = request.config.rootpath
    path = next((p for p in (root / name, root.parent / name) if p.is_file()), None)
    if path is None:
        pytest.skip("the trace is not part of the repository")
    for stage, cv, highest in ((0, 0.14, 1.38), (1, 0.10, 1.26)):
        seconds = read_straggler_trace(path, stage)
        assert seconds.shape == (43, 32)
        assert seconds.std() / seconds.mean() == pytest.approx(cv, abs=0.005)
        assert seconds.max(1).mean() / seconds.mean() == pytest.approx(highest, abs=0.005)


# ---------------------------------------------------------------- GPUs


def test_seconds_of_a_gpu_by_hand():
    # 2 GFLOP a sample, 32 samples, half of 15.7 TFLOP/s
    model = GPU("V100 SXM2", "fp32", 0.5, sample_flops=2e9)
    assert times(model, 2, workload=Workload(batch_size=32)) == pytest.approx([64e9 / 7.85e12] * 2, rel=1e-12)
    fast = GPU("A100", "bf16", 0.4)
    workload = Workload(batch_size=64, sample_flops=3e9)
    assert times(fast, 1, workload=workload)[0] == pytest.approx(192e9 / (312e12 * 0.4), rel=1e-12)
    # what is given comes before what the workload says
    assert times(dataclasses.replace(fast, sample_flops=6e9), 1, workload=workload)[0] == pytest.approx(
        384e9 / (312e12 * 0.4), rel=1e-12
    )
    varied = times(dataclasses.replace(fast, cv=0.2), 20_000, workload=workload)
    assert varied.tolist() == times(Gamma(192e9 / (312e12 * 0.4), 0.2), 20_000).tolist()


def test_record_hands_the_workload_to_the_gpu(make_cluster):
    cluster = Cluster((Workers(GPU("T4", "fp32", 0.5)), Workers(Markov(GPU("L4", "fp16", 0.5), 1.0, 1e6, 1.0))))
    workload = Workload(batch_size=10, sample_flops=8.1e9)
    trace = record(cluster, Asynchronous(), workload, stop=Stop(updates=20))
    assert compute_spans(trace, 0)[0] == pytest.approx(0.02)
    assert compute_spans(trace, 1)[0] == pytest.approx(81e9 / 60.5e12)
    problem = MLP(hidden=(16,))
    trace = record(make_cluster(GPU("T4", "fp32", 1e-6), 1), Asynchronous(), problem.workload(8), stop=Stop(updates=3))
    flops = problem.workload(8).sample_flops
    assert trace.end == pytest.approx(3 * 8 * flops / 8.1e6)


def test_every_gpu_of_the_table_is_described_and_plausible():
    for name, peak in GPUS.items():
        assert name in GPU.__doc__
        assert len(peak.source) > 10
        for precision, flops in peak.flops.items():
            assert 1e12 < flops < 2e15
            GPU(name, precision, 0.5)
        order = [peak.flops[p] for p in ("fp32", "tf32", "fp16") if p in peak.flops]
        assert order == sorted(order)


def test_flops_of_problems():
    # weights: forward and their gradients 2mn each a sample; the gradient of the hidden layer as well
    matrices = 4 * (64 * 16 + 16 * 10) + 2 * 16 * 10
    found = MLP(hidden=(16,)).workload(64).sample_flops
    assert matrices < found < 1.1 * matrices
    assert Quadratic((1.0, 2.0)).workload(4).sample_flops > 0


@pytest.mark.parametrize(
    "loss", [lambda params, batch: params["w"], lambda params, batch: params["v"] + 1], ids=["no arithmetic", "broken"]
)
def test_flops_that_are_not_known_are_left_out(loss):
    problem = CustomProblem(loss, {"w": jnp.ones(())}, np.ones((4, 1)))
    assert problem.workload(2).sample_flops is None


# ---------------------------------------------------------------- delays


def test_fixed_delays_are_always_the_same_workers():
    delays = (FixedDelays([0, 2], 0.5),)
    cluster = Cluster((Workers(Constant(1.0), 4),), delays=delays)
    trace = record(cluster, Synchronous(), stop=Stop(updates=10))
    for worker in range(4):
        assert compute_spans(trace, worker) == pytest.approx([1.5 if worker in (0, 2) else 1.0] * 10)
    assert cluster.mean_delay == pytest.approx(0.25)


@pytest.mark.parametrize(("n", "count"), [(6, 2), (6, 6), (5, 1)])
def test_so_many_drawn_workers_are_late_at_every_step(n, count):
    cluster = Cluster((Workers(Constant(1.0), n),), delays=(DrawnDelays(count, 0.5),))
    rounds = 600  # more than two blocks
    trace = record(cluster, Synchronous(), stop=Stop(updates=rounds))
    spans = np.array([compute_spans(trace, worker) for worker in range(n)])
    late = spans > 1.25
    assert spans[late] == pytest.approx(1.5)
    assert spans[~late] == pytest.approx(1.0)
    assert late.sum(0).tolist() == [count] * rounds
    share = count / n
    assert late.mean(1) == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / rounds))
    assert cluster.mean_delay == pytest.approx(share * 0.5)
    # asynchronous workers meet the same draws, step by step
    asynchronous = record(cluster, Asynchronous(), stop=Stop(updates=100 * n))
    for worker in range(n):
        mine = compute_spans(asynchronous, worker)[:50]
        assert (mine > 1.25).tolist() == late[worker, :50].tolist()


def test_delays_of_many_workers_come_in_small_blocks():
    n, count, steps = 3000, 2000, 300  # more draws than one block holds
    cluster = Cluster((Workers(Constant(1.0), n),), delays=(DrawnDelays(count, 1.0),))
    late = np.array([list(islice(cluster.step_times(j, 0), steps)) for j in range(n)]) == 2.0
    assert late.sum(0).tolist() == [count] * steps


def test_independent_delays():
    n, steps, probability = 20, 5000, 0.1
    cluster = Cluster((Workers(Constant(1.0), n),), delays=(IndependentDelays(probability, 0.5),))
    late = np.array([list(islice(cluster.step_times(j, 1), steps)) for j in range(n)]) == 1.5
    assert late.mean() == pytest.approx(probability, abs=4 * math.sqrt(0.09 / (n * steps)))
    # binomial counts a step: independent of each other
    assert late.sum(0).var() == pytest.approx(n * 0.09, rel=0.1)
    assert abs(np.corrcoef(late[0], late[1])[0, 1]) < 4 / math.sqrt(steps)
    assert times(Constant(1.0), 300, delays=(IndependentDelays(1.0, 0.5),)).tolist() == [1.5] * 300
    assert times(Constant(1.0), 300, delays=(IndependentDelays(0.0, 0.5),)).tolist() == [1.0] * 300


@pytest.mark.parametrize("concentration", [0.2, 2.0])
def test_delays_in_bursts(concentration):
    """The number late at a step is beta-binomial: mean n m, variance n m (1 - m) (n + s) / (1 + s), s the sum of the
    beta distribution's parameters."""
    n, steps, mean = 20, 20_000, 0.1
    cluster = Cluster((Workers(Constant(1.0), n),), delays=(Bursts(mean, concentration, 0.5),))
    count = (np.array([list(islice(cluster.step_times(j, 1), steps)) for j in range(n)]) == 1.5).sum(0)
    total = concentration / mean
    variance = n * mean * (1 - mean) * (n + total) / (1 + total)
    assert count.mean() == pytest.approx(n * mean, abs=4 * math.sqrt(variance / steps))
    assert count.var() == pytest.approx(variance, rel=0.05)
    assert cluster.mean_delay == pytest.approx(0.05)


DELAYS = [FixedDelays([1], 0.5), DrawnDelays(1, 0.5), IndependentDelays(0.3, 0.5), Bursts(0.3, 1.0, 0.5)]


@pytest.mark.parametrize("delay", DELAYS, ids=lambda delay: delay.name)
def test_a_delay_leaves_the_step_draws_as_they_were(delay):
    for worker in range(3):
        bare = times(Gamma(1.0, 0.5), 600, worker=worker, num_workers=3)
        with_it = times(Gamma(1.0, 0.5), 600, worker=worker, num_workers=3, delays=(delay,))
        assert all(b in (a, a + 0.5) for a, b in zip(bare, with_it, strict=True))


@pytest.mark.parametrize("delay", [DELAYS[0], *DELAYS[2:]], ids=lambda delay: delay.name)
def test_adding_a_worker_leaves_the_others_delays(delay):
    for worker in range(3):
        few, many = (times(Gamma(1.0, 0.5), 600, worker=worker, num_workers=n, delays=(delay,)) for n in (3, 4))
        assert few.tolist() == many.tolist()


def test_lengths_of_delays_may_be_random_and_are_drawn_apart():
    bare = times(Constant(1.0), 4000, delays=(IndependentDelays(0.5, 1.0),))
    varied = times(Constant(1.0), 4000, delays=(IndependentDelays(0.5, Exponential(2.0)),))
    late = bare > 1
    assert (varied > 1).tolist() == late.tolist()
    assert varied[late].mean() == pytest.approx(3.0, abs=4 * 2 / math.sqrt(late.sum()))
    cluster = Cluster((Workers(1.0, 2),), delays=(IndependentDelays(0.5, Exponential(2.0)), FixedDelays([0], 3.0)))
    assert cluster.mean_delay == pytest.approx(0.5 * 2 + 0.5 * 3)


def test_delays_add_up_and_two_alike_draw_apart():
    one = IndependentDelays(0.5, 0.5)
    both = times(Constant(1.0), 4000, delays=(one, one))
    assert set(both.tolist()) == {1.0, 1.5, 2.0}
    assert np.mean(both == 2.0) == pytest.approx(0.25, abs=4 * math.sqrt(0.1875 / 4000))
    drawn = times(Constant(1.0), 4000, num_workers=4, delays=(DrawnDelays(2, 0.5), DrawnDelays(2, 0.5)))
    assert set(drawn.tolist()) == {1.0, 1.5, 2.0}


def test_two_of_p_as_in_the_released_code():
    p = 64
    probability = 1 - (1 - 1 / p) ** 2
    assert p * probability == pytest.approx(1.98, abs=0.005)
    assert (1 - probability) ** p == pytest.approx(0.13, abs=0.005)
    assert "1.98" in IndependentDelays.__doc__
    assert "13 %" in IndependentDelays.__doc__


@pytest.mark.parametrize(("p", "synchronous", "asynchronous"), [(4, 915, 756), (16, 910, 656), (64, 906, 627)])
def test_milliseconds_a_step_of_the_wagma_paper(p, synchronous, asynchronous):
    """617 ms on a P100 with the paper's delays and no network: an independent Monte Carlo of the same model.

    Its asynchronous figures are within 1 % of those published for AD-PSGD (753, 657, 628), its synchronous ones within
    3 % of those for allreduce (892, 888, 903).
    """
    delay = IndependentDelays(1 - (1 - 1 / p) ** 2, 0.32)
    cluster = Cluster((Workers(Gamma(0.617, 17 / 617), p),), delays=(delay,))
    assert cluster.workers[0].step_time.mean_seconds + cluster.mean_delay == pytest.approx(
        asynchronous / 1e3, abs=1.5e-3
    )
    rounds, workload = 1600, Workload(batch_size=1)
    waited = record(cluster, Synchronous(), workload, stop=Stop(updates=rounds))
    deviation = np.diff([0, *waited.time[waited.closes]]).std()
    assert waited.end / rounds == pytest.approx(synchronous / 1e3, abs=4 * deviation / math.sqrt(rounds) + 1e-3)
    free = record(cluster, Asynchronous(), workload, stop=Stop(samples=20_000))
    assert p / free.summary()["throughput"] == pytest.approx(asynchronous / 1e3, rel=0.01)


def test_the_estimate_of_a_runs_length_counts_delays(make_cluster):
    cluster = Cluster((Workers(Constant(1e-6), 1),), delays=(FixedDelays([0], 1.0),))
    trace = record(cluster, Asynchronous(), stop=Stop(seconds=300.0))  # 3e8 gradients without the delay: refused
    assert trace.updates[-1] == 299
    with pytest.raises(InputError, match=r"stop: about 3e\+08 gradients or more"):
        record(make_cluster(Constant(1e-6), 1), Asynchronous(), stop=Stop(seconds=300.0))


def test_purposes_have_numbers_of_their_own():
    assert [p.value for p in Purpose][:7] == list(range(7))
    assert len({p.value for p in Purpose}) == len(Purpose)


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Uniform(2.0, 1.0), r"high: expected at least low = 2, got 1"),
        (lambda: Pareto(1.0, 1.0), "shape: expected a number > 1"),
        (lambda: Lognormal(1.0, 0.0), "cv: expected a number >= 1e-09"),
        (lambda: CVB(1.0, 0.1, 1.5), "machine_cv: expected a number >= 0 and <= 1, got 1.5"),
        (lambda: CVB(1.0, 0.1, 0.6, machine_seed=-1), "machine_seed: expected a whole number >= 0"),
        (lambda: Markov(1.0, 2.0, 0.5, 2.0), "fast_steps: expected a number >= 1"),
        (lambda: Markov(1.0, -2.0, 5, 2.0), r"slow\.seconds: expected a number > 0"),
        (lambda: Empirical(), "file: expected either a file or a list of values"),
        (lambda: Empirical("a.csv", values=[1.0]), "file: expected either a file or a list of values"),
        (lambda: Empirical(values=[1.0, 0.0]), r"values\[1\]: expected a number > 0"),
        (lambda: Empirical(values=[1.0], column="x"), "column: goes with a file, not with values"),
        (lambda: Empirical(values=[1.0], sha256="x"), "sha256: goes with a file, not with values"),
        (lambda: Recorded(values=[1.0], by="x"), "by: goes with a file, not with values"),
        (lambda: Recorded(values=[1.0], start="last"), "start: expected one of: 'first', 'random'"),
        (lambda: GPU("V100 SXM3", "fp32", 0.5), "model: no GPU is called 'V100 SXM3'; .*did you mean 'V100 SXM2'"),
        (lambda: GPU("V100 SXM2", "bf16", 0.5), "precision: there is no figure in bf16 for V100 SXM2; .*: fp32, fp16"),
        (lambda: GPU("T4", "fp64", 0.5), "precision: expected one of: 'fp32'"),
        (lambda: GPU("T4", "fp32", 1.5), "efficiency: expected a number > 0 and <= 1"),
        (lambda: FixedDelays([-1], 1.0), r"workers\[0\]: expected a whole number >= 0"),
        (lambda: DrawnDelays(0, 1.0), "count: expected a whole number >= 1"),
        (lambda: IndependentDelays(1.5, 1.0), "probability: expected a number >= 0 and <= 1"),
        (lambda: IndependentDelays(0.5, 0.0), r"seconds\.seconds: expected a number > 0"),
        (
            lambda: Cluster((Workers(1.0, 2),), delays=[FixedDelays([0, 2], 1.0)]),
            r"delays\[0\]\.workers\[1\]: the workers are 0 to 1, not 2",
        ),
        (lambda: Cluster((Workers(1.0, 2),), delays=[FixedDelays([1, 1], 1.0)]), r"delays\[0\]\.workers: names a wor"),
        (
            lambda: Cluster((Workers(1.0, 2),), delays=[DrawnDelays(3, 1.0)]),
            r"delays\[0\]\.count: expected at most the number of workers, 2, got 3",
        ),
        (
            lambda: Cluster((Workers(1.0),), delays=[{"name": "drwan", "count": 1, "seconds": 1}]),
            r"delays\[0\]\.name: no delay model is called 'drwan'; .*did you mean 'drawn'",
        ),
    ],
)
def test_mistakes_are_one_line(make, message):
    with pytest.raises(InputError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "field", "message"),
    [
        (
            "a,seconds\n1,2\n",
            "secnds",
            r"column: FILE has no column 'secnds'; there are: a, seconds; did you mean 'sec",
        ),
        ("a,seconds\n1,2\n", None, "column: is missing: FILE has the columns a, seconds"),
        ("seconds\n1\nx\n", "seconds", "column: FILE: the column 'seconds' holds x in row 2"),
        (
            "seconds\n1\n-1.5\n",
            "seconds",
            r"column: FILE: the column 'seconds' holds -1\.5 in row 2; all are to be numbers",
        ),
        ("seconds\n1\nnan\n", "seconds", "column: FILE: the column 'seconds' holds nan in row 2"),
        ("seconds\n1\ninf\n", "seconds", "column: FILE: the column 'seconds' holds inf in row 2"),
        ("1\n0\n", None, "file: FILE: its only column holds 0 in row 2"),
        ("seconds\n", None, "file: FILE: its only column is empty"),
        ("# nothing\n\n", None, "file: FILE: holds no numbers"),
        ("1,2\n3,4\n", None, "file: FILE: its first line names no columns, but begins 1, 2"),
        ("a,b\n1,2\n3\n", "a", "file: FILE: row 2 has 1 columns, the first line 2"),
    ],
)
def test_mistakes_in_files_name_file_and_column(tmp_path, text, field, message):
    path = tmp_path / "times.csv"
    path.write_text(text)
    for model in (Empirical, Recorded):
        with pytest.raises(InputError, match=message.replace("FILE", str(path))) as error:
            model(str(path), field)
        assert "\n" not in str(error.value)


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "times.csv").write_text("1\n")
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe1\n")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and no more")
    for name, message in (
        ("tmies.csv", r"file: .*tmies\.csv: no such file; did you mean 'times\.csv'"),
        ("", "file: .*: cannot be read: Is a directory"),
        ("nowhere/times.csv", "file: .*: no such file$"),
        ("bytes.csv", "file: .*bytes.csv: cannot be read: .*utf-8"),
        ("broken.parquet", "file: .*broken.parquet: is no Parquet file"),
        ("no\0name", "file: .*: cannot be read: .*null"),
    ):
        with pytest.raises(InputError, match=message) as error:
            Empirical(f"{tmp_path}/{name}")
        assert "\n" not in str(error.value)


def test_more_workers_than_were_recorded(tmp_path, steps_csv):
    by = Recorded(steps_csv, "seconds", by="worker")
    with pytest.raises(InputError, match=r"step_time\.by: 3 workers, but .*steps.csv has rows of 2 only \(column 'wor"):
        Workers(by, 3)
    with pytest.raises(InputError, match=r"step_time\.slow\.by: 3 workers"):
        Workers(Markov(1.0, by, 2.0, 2.0), 3)
    with pytest.raises(InputError, match=r"delays\[0\]\.seconds\.by: 3 workers"):
        Cluster((Workers(1.0, 3),), delays=(IndependentDelays(0.5, by),))
    with pytest.raises(InputError, match=r"by: .*has no column 'wroker'; .*did you mean 'worker'"):
        Recorded(steps_csv, "seconds", by="wroker")


def test_files_that_are_no_straggler_trace(tmp_path, steps_csv):
    path = str(tmp_path / "trace.parquet")
    pyarrow.parquet.write_table(straggler_table(), path)
    with pytest.raises(InputError, match=r"step_time\.file: 4 workers, but .*trace.parquet has 3 ranks in stage 0"):
        Workers(StragglerTrace(path), 4)
    with pytest.raises(InputError, match=r"stage: .*trace.parquet has no stage 2; there are: 0, 1"):
        StragglerTrace(path, stage=2)
    with pytest.raises(
        InputError, match=r"file: .*steps.csv is no straggler trace: it has no column dp_rank, but worker"
    ):
        StragglerTrace(steps_csv)
    with pytest.raises(InputError, match="no such file"):
        read_straggler_trace(str(tmp_path / "nothing.parquet"))
    pyarrow.parquet.write_table(straggler_table().slice(4), path)
    with pytest.raises(InputError, match=r"file: .*in stage 0 some rank computes nothing in some step"):
        StragglerTrace(path)
    rows = straggler_table().num_rows
    pyarrow.parquet.write_table(straggler_table(rank=list(range(rows))), path)
    with pytest.raises(InputError, match=r"file: .*in stage 0 some data-parallel rank has several devices"):
        StragglerTrace(path)


def test_a_gpu_without_flops_says_what_to_give(make_cluster):
    for cluster, where in (
        (make_cluster(GPU("T4", "fp32", 0.5), 1), r"cluster\.workers\[0\]\.step_time\.sample_flops"),
        (make_cluster(Markov(1.0, GPU("T4", "fp32", 0.5), 2, 2), 1), r"cluster\.workers\[0\]\.step_time\.slow\.sample"),
        (
            Cluster((Workers(1.0),), delays=(FixedDelays([0], GPU("T4", "fp32", 0.5)),)),
            r"cluster\.delays\[0\]\.seconds\.sample_flops",
        ),
    ):
        with pytest.raises(InputError, match=rf"{where}.*: is missing, .*problem\.workload\(batch_size\)"):
            record(cluster, Asynchronous(), stop=Stop(updates=1))


def test_a_place_says_whose_times_they_are():
    cluster = Cluster((Workers(1.0, 2), Workers(CVB(1.0, 0.1, 0.6), 2)))
    model, rng = cluster.step_time(3), asyncsim.streams.generator(4, Purpose.STEP_TIME, 3)
    alone = list(islice(model.stream(rng, Place(seed=4, worker=3, position=1)), 5))
    assert alone == list(islice(cluster.step_times(3, 4), 5))
    with pytest.raises(IndexError, match="4 workers"):
        cluster.step_times(4, 0)
