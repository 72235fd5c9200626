"""Sweeps: what is varied, what a run is called, what is kept, and what survives being killed."""

import dataclasses
import importlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jax
import numpy as np
import optax
import pytest

import asyncsim
from asyncsim import naming
from asyncsim.algorithms import Algorithm, ServerAlgorithm, algorithm
from asyncsim.changes import changed
from asyncsim.cli import main
from asyncsim.errors import InputError
from asyncsim.naming import run_name, trace_name
from asyncsim.scenario import Scenario
from asyncsim.sweeps import load_sweep, sweep
from asyncsim.sweeps.axes import load, rows
from asyncsim.tables import Table

BASE = Scenario(
    cluster={"workers": [{"step_time": {"name": "gamma", "mean": 1.0, "cv": 0.3}, "count": 3}]},
    algorithm={"name": "asgd", "learning_rate": 0.1},
    problem={"name": "quadratic", "eigenvalues": [1.0, 0.5], "noise": 0.1},
    stop={"updates": 40},
    evaluate={"updates": 10},
)
SWEEP = """
[sweep]
seeds = 2
[sweep.grid]
algorithm.learning_rate = [0.05, 0.1]
[[sweep.zip]]
"cluster.workers[0].count" = [2, 4]
"stop.updates" = [30, 60]
[cluster]
[[cluster.workers]]
step_time = { name = "gamma", mean = 1.0, cv = 0.3 }
[problem]
name = "quadratic"
noise = 0.1
[stop]
updates = 1
[variants.async]
algorithm = "asgd"
[variants.sync]
algorithm = "ssgd"
"""
PLUGIN = """
import os
import asyncsim
from asyncsim.algorithms import Algorithm, ServerAlgorithm, algorithm

@asyncsim.register("fragile")
@algorithm
class Fragile(ServerAlgorithm):
    '''Raises, or takes its process with it, at some learning rates.'''
    learning_rate: float = 0.1

    def check(self, trace):
        if os.path.exists("mended"):
            return
        if self.learning_rate == 0.3:
            raise ValueError("three tenths\\nare too many")
        if self.learning_rate == 0.4:
            os._exit(9)

    def apply(self, state, message, context):
        return {"params": {k: v - context.learning_rate * message[k] for k, v in state["params"].items()}}
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ASYNCSIM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(Algorithm, "members", dict(Algorithm.members))  # what plugins register goes with the test
    (tmp_path / "lr.toml").write_text(SWEEP)
    return tmp_path


def tree(folder):
    """Every file below a folder, with its bytes."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize(
    ("settings", "get", "value"),
    [
        ({"algorithm.learning_rate": 0.5}, lambda s: s.algorithm.learning_rate, 0.5),
        ({"cluster.workers[0].count": 9}, lambda s: s.cluster.num_workers, 9),
        ({"cluster.workers[0].step_time": 0.5}, lambda s: s.cluster.step_time(0), asyncsim.Constant(0.5)),
        ({"algorithm": "ssgd"}, lambda s: (s.runs_on.name, s.algorithm.learning_rate), ("sync", 0.1)),
        ({"algorithm.name": "ssgd"}, lambda s: (s.runs_on.name, s.algorithm.learning_rate), ("sync", 0.1)),
        ({"algorithm.name": "asgd"}, lambda s: s, BASE),
        ({"algorithm": asyncsim.SSGD(0.7)}, lambda s: (s.runs_on.name, s.algorithm.learning_rate), ("sync", 0.7)),
        ({"algorithm": "ssgd", "algorithm.momentum": 0.4}, lambda s: s.algorithm, asyncsim.SSGD(0.1, 0.4)),
        ({"algorithm.momentum": 0.4, "algorithm.name": "ssgd"}, lambda s: s.algorithm, asyncsim.SSGD(0.1, 0.4)),
        ({"target.value": 0.3, "target.metric": "loss"}, lambda s: s.target, asyncsim.Target(0.3, "loss")),
        ({"evaluate": None}, lambda s: s.evaluate, None),
        # the old minimum is above the new maximum: only both together are valid
        ({"stop.updates": None, "stop.seconds": 3.0}, lambda s: s.stop, asyncsim.Stop(seconds=3.0)),
    ],
)
def test_any_part_of_a_scenario_can_be_changed(settings, get, value):
    assert get(changed(BASE, settings)) == value
    assert BASE.algorithm.learning_rate == 0.1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm.learning_rat": 1}, "algorithm.learning_rat: unknown key; .*; did you mean 'learning_rate'?"),
        ({"algorithm.learning_rate": -1}, "^algorithm.learning_rate: expected a number > 0, got -1"),
        ({"cluster.workers[3].count": 1}, r"^cluster.workers\[3\]: no such item; the list has 1"),
        ({"cluster.workers.count": 1}, r"^cluster.workers.count: stands in a list of 1: say which item"),
        ({"cluster.workers[0].step_time.cv": 0}, r"^cluster.workers\[0\].step_time.cv: expected a number >="),
        ({"algorithm": "agsd"}, "^algorithm.name: no algorithm is called 'agsd'; .*did you mean 'asgd'"),
        ({"seed.x": 1}, "^seed.x: 0 has no parts to set"),
        ({"a b": 1}, "expected a path such as algorithm.learning_rate, got 'a b'"),
        ({3: 1}, "expected a path such as algorithm.learning_rate, got 3"),
    ],
)
def test_changes_that_do_not_fit_are_named(settings, message):
    with pytest.raises(InputError, match=message):
        changed(BASE, settings)


def test_axes_are_combined():
    over = {
        "method": {"plain": {"algorithm": asyncsim.ASGD(0.1)}, "together": {"algorithm": asyncsim.SSGD(0.2)}},
        ("batch_size", "stop.updates"): [(8, 10), (16, 20)],
        "seed": range(3),
    }
    found = rows({"": BASE}, over)
    assert len(found) == 2 * 2 * 3
    assert [(r.scenario.batch_size, r.scenario.stop.updates) for r in found[:6]] == [(8, 10)] * 3 + [(16, 20)] * 3
    assert [r.scenario.seed for r in found[:6]] == [0, 1, 2] * 2
    assert [r.labels["method"] for r in found] == ["plain"] * 6 + ["together"] * 6
    assert found[-1].scenario.runs_on.name == "sync"
    assert [r.labels for r in rows({"a": BASE, "b": BASE}, {})] == [{"variant": "a"}, {"variant": "b"}]


def test_a_sweep_file_is_a_scenario_file_with_axes(here):
    scenarios, over = load(here / "lr.toml")
    found = rows(scenarios, over)
    assert len(found) == 2 * 2 * 2 * 2
    assert {(r.scenario.cluster.num_workers, r.scenario.stop.updates) for r in found} == {(2, 30), (4, 60)}
    assert {(r.labels["variant"], r.scenario.runs_on.name) for r in found} == {("async", "async"), ("sync", "sync")}
    (here / "more.toml").write_text('stop.seconds = 5.0\n[sweep]\nbase = "lr.toml"\nseeds = [7]')
    scenarios, over = load(here / "more.toml", ["seed=3"])
    assert [r.scenario.seed for r in rows(scenarios, over)] == [7, 7]
    assert scenarios["sync"].stop == asyncsim.Stop(updates=1, seconds=5.0)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seeds = 2", "seeds = 0", "sweep.seeds: expected a number of seeds from 1"),
        ("seeds = 2", "seeds = 'a'", "sweep.seeds: expected a list of values, got 'a'"),
        ("seeds = 2", "seed = 2", "sweep.seed: unknown key; allowed: base, grid, zip, seeds; did you mean 'seeds'"),
        ("seeds = 2", "base = 'lr'", "sweep.base: .*lr: no such file; in that folder: .*lr.toml"),
        ("[0.05, 0.1]", "0.05", "sweep.grid.algorithm.learning_rate: expected a list of values, got 0.05"),
        ("[0.05, 0.1]", "[]", "algorithm.learning_rate: has no values"),
        (
            "[0.05, 0.1]",
            "[0.05, -1]",
            "learning_rate: expected a number > 0, got -1 .in the run with async, algo.* = -1",
        ),
        ("[30, 60]", "[30]", r"sweep.zip\[0\]: its lists have different lengths: .*count': 2, 'stop.updates': 1"),
        ("stop.updates", "seed", "sweep.seeds: seed is varied twice"),
        ("algorithm.learning_rate", "seed", "sweep.seeds: seed is varied twice"),
        ("[sweep.grid]", '[sweep.grid]\n"algorithm.learning_rate" = [1]', "algorithm.learning_rate is varied twice"),
        ("seeds = 2", "seeds = []", "seed: has no values"),
        ("seeds = 2", "seeds = 2000000000", "sweep.seeds: expected a number of seeds from 1 to 100000"),
        ("[[sweep.zip]]", "[sweep.zap]", "sweep.zap: unknown key"),
        ("updates = 1\n", "updaets = 1\n", "stop.updaets: unknown key; .*'updates'"),
        ("[sweep.grid]", "[sweep.gird]", "sweep.gird: unknown key; .*'grid'"),
    ],
)
def test_mistakes_in_a_sweep_file_are_one_line(here, capsys, old, new, message):
    (here / "bad.toml").write_text(SWEEP.replace(old, new))
    with pytest.raises(SystemExit) as end:
        main(["sweep", "bad.toml", "--dry-run"])
    out = capsys.readouterr()
    assert end.value.code == 2
    assert len(out.err.strip().splitlines()) == 1
    assert re.search(message, out.err), out.err
    assert not (here / "runs").exists()


def test_run_refuses_a_sweep_file(here, capsys):
    with pytest.raises(SystemExit):
        main(["run", "lr.toml"])
    assert "lr.toml: sweep: makes this a sweep; run it with: asyncsim sweep" in capsys.readouterr().err


def test_names_stand_for_settings_and_sources(monkeypatch):
    assert run_name(BASE) == run_name(dataclasses.replace(BASE, name="other"))
    others = [{"seed": 1}, {"algorithm.learning_rate": 0.2}, {"algorithm": "ssgd"}, {"cluster.latency": 0.1}]
    assert len({run_name(changed(BASE, {}))} | {run_name(changed(BASE, o)) for o in others}) == 5
    # the protocol that it would run on anyway
    assert run_name(dataclasses.replace(BASE, protocol=BASE.runs_on)) == run_name(BASE)
    before = run_name(BASE), trace_name(BASE)
    monkeypatch.setattr(naming, "_package", lambda: "edited")
    assert run_name(BASE) != before[0]
    assert trace_name(BASE) != before[1]


def test_traces_are_shared_by_equal_timing_inputs():
    same = [{"algorithm.learning_rate": 0.2}, {"evaluate": None}, {"precision": "float64"}, {"statistics": "first"}]
    assert {trace_name(changed(BASE, s)) for s in same} == {trace_name(BASE)}
    other = [{"seed": 1}, {"batch_size": 8}, {"algorithm": "ssgd"}, {"stop.updates": 41}, {"problem.samples": 7}]
    other.append({"tensor_bytes": [1000]})
    assert len({trace_name(changed(BASE, o)) for o in other} | {trace_name(BASE)}) == 7
    # the arithmetic of a sample matters where the step times have it in them
    logistic = [changed(BASE, {"problem": {"name": "logistic", "l2": l2}}) for l2 in (0.0, 0.1)]
    assert logistic[0].workload.sample_flops != logistic[1].workload.sample_flops
    assert trace_name(logistic[0]) == trace_name(logistic[1])
    assert logistic[0].record().workload == logistic[1].record().workload
    gpu = {"name": "gpu", "model": "T4", "precision": "fp32", "efficiency": 0.1}
    there = [changed(one, {"cluster.workers[0].step_time": gpu}) for one in logistic]
    assert trace_name(there[0]) != trace_name(there[1])


def test_a_result_is_a_row_with_every_field_and_figure(tmp_path):
    found = sweep(BASE, {"algorithm.learning_rate": [0.05, 0.1], "seed": [0, 1]}, folder=tmp_path / "s", processes=0)
    assert found.table["algorithm.learning_rate"].tolist() == [0.05, 0.05, 0.1, 0.1]
    assert found.table["cluster.workers[0].step_time.cv"].tolist() == [0.3] * 4
    assert found.table["problem.eigenvalues"][0] == "[1.0, 0.5]"
    assert found.varied == ["seed", "algorithm.learning_rate"] or found.varied == ["algorithm.learning_rate", "seed"]
    for row in found.table.rows():
        alone = asyncsim.run(changed(BASE, {k: row[k] for k in ("algorithm.learning_rate", "seed")}))
        assert {k: row[k] for k in alone.summary} == alone.summary
    assert len(list((tmp_path / "s" / "traces").iterdir())) == 2
    assert len(found.evals()) == 4 * 5
    assert found.evals().columns[:3] == ["run", *found.varied]
    again = load_sweep(tmp_path / "s")
    assert again.table == found.table
    assert Table.from_csv((tmp_path / "s" / "table.csv").read_text()).columns == found.table.columns
    assert found.to_frame().shape == (4, len(found.table.columns))
    with pytest.raises(InputError, match='figures of a run only; a sweep with keep="all"'):
        found.run(found.table["run"][0])


def test_finished_runs_are_not_run_again(tmp_path, monkeypatch):
    from asyncsim.sweeps import working

    done = []
    monkeypatch.setattr(working, "run", lambda s, trace: done.append(s) or asyncsim.run(s, trace=trace))
    over = {"algorithm.learning_rate": [0.05, 0.1]}
    for values, new in (([0.05, 0.1], 2), ([0.05, 0.1], 0), ([0.1, 0.2], 1), ([0.2, 0.2], 0)):
        done.clear()
        over["algorithm.learning_rate"] = values
        found = sweep(BASE, over, folder=tmp_path / "s", processes=0)
        assert (len(done), found.table["status"].tolist()) == (new, ["done", "done"])
    done.clear()
    whole = sweep(BASE, over, folder=tmp_path / "s", processes=0, keep="all")
    assert len(done) == 1
    run = whole.run(whole.table["run"][0])
    assert run.summary == asyncsim.run(changed(BASE, {"algorithm.learning_rate": 0.2})).summary
    assert len(run.updates) == 40
    assert len(whole.trace(whole.table["run"][0]).gradients) == 40
    assert sweep(BASE, over, folder=tmp_path / "s", processes=0).table == whole.table
    with pytest.raises(InputError, match="no run is called 'x'"):
        whole.run("x")


def test_failures_are_rows(here, monkeypatch):
    (here / "fragile_method.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(here))
    importlib.import_module("fragile_method")
    base = changed(BASE, {"algorithm": "fragile"})
    over = {"algorithm.learning_rate": [0.1, 0.2, 0.3, 0.4, 0.5]}
    found = sweep(base, over, folder="s", plugins=("fragile_method",), processes=2)
    assert found.table["status"].tolist() == ["done", "done", "failed", "failed", "done"]
    errors = found.table["failure"].tolist()
    assert errors[2] == "ValueError: three tenths"
    assert errors[3].startswith("its process died, and died again when it was tried alone")
    assert list(found.failures().values()) == errors[2:4]
    assert np.isnan(found.table["loss"][2])
    kept = json.loads((here / "s" / "failed" / f"{found.table['run'][2]}.json").read_text())
    assert "fragile_method.py" in kept["traceback"]
    assert found.best("loss")["algorithm.learning_rate"].tolist() in ([0.1], [0.2], [0.5])
    (here / "mended").touch()
    again = sweep(base, over, folder="s", processes=0)
    assert again.table["status"].tolist() == ["done"] * 5
    assert not (here / "s" / "failed").exists()


def test_an_edited_plugin_meets_no_old_result(here, monkeypatch):
    (here / "edited_method.py").write_text(PLUGIN.replace("fragile", "edited").replace("Fragile", "Edited"))
    monkeypatch.syspath_prepend(str(here))
    import edited_method

    scenario = changed(BASE, {"algorithm": "edited"})
    names = run_name(scenario), trace_name(scenario), run_name(BASE)
    # edited, but what runs is what was imported before: neither the old name nor that of the new source
    (here / "edited_method.py").write_text(
        PLUGIN.replace("fragile", "edited").replace("Fragile", "Edited").replace("0.4:", "0.45:")
    )
    edited = run_name(scenario)
    importlib.reload(edited_method)
    scenario = changed(BASE, {"algorithm": "edited"})
    monkeypatch.setattr(edited_method.Edited, "check", lambda self, trace: 5)
    patched = run_name(scenario)
    monkeypatch.undo()
    assert len({names[0], edited, run_name(scenario), patched}) == 4
    assert (trace_name(scenario), run_name(BASE)) == names[1:]


def test_damaged_results_are_made_again(tmp_path):
    first = sweep(BASE, {"seed": [0, 1]}, folder=tmp_path / "s", processes=0)
    whole = tree(tmp_path / "s")
    for damaged in sorted(name for name in whole if name.endswith(("summary.json", ".npz"))):
        (tmp_path / "s" / damaged).write_bytes(whole[damaged][:20])
    (tmp_path / "s" / "runs" / first.table["run"][1] / "evals.csv").unlink()
    assert load_sweep(tmp_path / "s").table["status"].tolist() == ["pending"] * 2
    again = sweep(BASE, {"seed": [0, 1]}, folder=tmp_path / "s", processes=0)
    assert again.table == first.table
    assert tree(tmp_path / "s") == whole
    (tmp_path / "s" / "asyncsim.json").write_text('{"kind": "sweep", "format": 1}')
    with pytest.raises(InputError, match=r"asyncsim.json: is damaged"):
        load_sweep(tmp_path / "s")


def test_figures_and_columns_are_not_mistaken_for_each_other(tmp_path):
    def loss(params, batch):
        return ((batch["x"] - params["w"]) ** 2).mean()

    def problem(name):
        metrics = {name: lambda params, batch: {name: params["w"].sum()}}
        return asyncsim.CustomProblem(loss, {"w": np.zeros(())}, {"x": np.ones(8)}, metrics=metrics[name])

    base = dataclasses.replace(BASE, problem=problem("error"))
    found = sweep(base, folder=tmp_path / "a")
    assert found.table["status"].tolist() == ["done"]
    assert found.table["error"][0] > 0
    found = sweep(dataclasses.replace(BASE, problem=problem("seed")), folder=tmp_path / "b")
    assert found.failures() == {found.table["run"][0]: "problem: its figures may not be called seed"}
    for name in ("status", "seed", "loss", "run"):
        with pytest.raises(InputError, match=f"{name}: names an axis, but is the name of another column"):
            sweep(BASE, {name: {"a": {"batch_size": 3}}}, folder=tmp_path / "c")


class Probe:
    """A job that looks at the process it is in."""

    def work(self):
        import jax
        import threadpoolctl

        pools = [pool["num_threads"] for pool in threadpoolctl.threadpool_info()]
        return pools, os.environ["NPROC"], jax.config.jax_compilation_cache_dir, list(vars(sys.modules["__main__"]))


def test_processes_are_spawned_with_one_thread_and_one_cache(here):
    from asyncsim.sweeps.executing import Processes

    before = dict(os.environ)
    processes = Processes(1, ())
    try:
        pools, nproc, cache, main = processes.submit(Probe().work).result()
    finally:
        processes.shutdown()
    assert (set(pools) <= {1}, nproc) == (True, "1")
    assert cache == str(here / "cache" / "compiled" / "1-threads")
    assert "pytest" not in main
    assert dict(os.environ) == before


def test_a_second_sweep_compiles_nothing(here):
    sweep(BASE, {"seed": [0, 1]}, folder="a", processes=1)
    programs = tree(here / "cache")
    assert programs
    sweep(BASE, {"seed": [2, 3]}, folder="b", processes=2)
    assert {name for name in tree(here / "cache") if name.endswith("-cache")} <= set(programs)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"plugins": ("no_such_module",)}, "--plugin no_such_module: cannot be imported: ModuleNotFoundError"),
        ({"executor": ThreadPoolExecutor(1), "processes": 2}, "processes: goes with processes of the sweep's own"),
        ({"executor": ThreadPoolExecutor(1), "plugins": ("a",)}, "plugins: goes with processes of the sweep's own"),
        ({"processes": -1}, "processes: expected a whole number from 0 to 1000, got -1"),
        ({"scenario": {}}, "scenario: expected at least one"),
        ({"scenario": 3}, "scenario: expected a Scenario, got 3"),
        ({"over": {"seed": []}}, "seed: has no values"),
        ({"over": [1]}, "over: expected a dict of paths and their values"),
        ({"over": {("seed", 5): [(1, 2)]}}, "over: expected different paths"),
        ({"executor": 5}, "executor: expected an Executor, got 5"),
    ],
)
def test_wrong_arguments_are_named(tmp_path, arguments, message):
    with pytest.raises(InputError, match=message):
        sweep(**{"scenario": BASE, "folder": tmp_path / "s", **arguments})
    assert not (tmp_path / "s").exists()


def test_paired_differences_by_hand(monkeypatch):
    """Two methods at two sizes, three seeds; one run failed, one diverged, the baseline has no second size."""

    def made(method, size, seed, accuracy, ended="budget"):
        scenario = {"algorithm.name": method, "size": size, "seed": seed, "name": "m"}
        row = {"run": f"{method}{size}{seed}", "labels": {}, "scenario": scenario}
        failed = ({"status": "failed", "failure": "broke"}, {})
        return row, failed if ended == "failed" else ({"status": "done", "failure": ""}, figures(accuracy, ended))

    def figures(accuracy, ended):
        return {"accuracy": accuracy, "ended": ended}

    cases = [
        *(made("a", 1, 0, 0.5), made("a", 1, 1, 0.7), made("a", 1, 2, 0.6)),
        *(made("b", 1, 0, 0.6), made("b", 1, 1, 0.9), made("b", 1, 2, 0.1, "failed")),
        *(made("b", 8, 0, 0.1, "diverged"), made("b", 8, 1, 0.5), made("b", 8, 2, float("nan"))),
    ]
    from asyncsim.sweeps import results

    outcomes = {row["run"]: outcome for row, outcome in cases}
    monkeypatch.setattr(results, "_outcome", lambda folder, name: outcomes[name])
    found = results.Sweep("nowhere", [row for row, _ in cases])
    table = found.paired("accuracy", ("algorithm.name", "size"), {"algorithm.name": "a"})
    assert table.columns == [
        *("algorithm.name", "size", "accuracy", "accuracy_error", "difference", "difference_error", "pairs", "diverged")
    ]
    a, b, large = table.rows()
    assert (a["difference"], a["difference_error"], a["pairs"]) == (0, 0, 3)
    assert (a["accuracy"], a["accuracy_error"]) == pytest.approx((0.6, 0.1 / 3**0.5))
    # pairs of seeds 0 and 1: .1 and .2; mean of the two that ended: .75
    assert (b["accuracy"], b["accuracy_error"]) == pytest.approx((0.75, 0.15))
    assert (b["difference"], b["difference_error"], b["pairs"]) == pytest.approx((0.15, 0.05, 2))
    assert (large["accuracy"], large["pairs"], large["diverged"]) == (pytest.approx(0.3), 0, 1)
    assert np.isnan(large["difference"])
    to_small = list(found.paired("accuracy", ["algorithm.name", "size"], {"size": 1}).rows())
    assert to_small[2]["difference"] == pytest.approx((-0.5 - 0.4) / 2)
    assert list(found.paired("accuracy", ["algorithm.name", "size"], {"size": np.int64(1)}).rows())[2] == to_small[2]
    both = ("algorithm.name", "size")
    for arguments, message in [
        (("accurate", "size", {"size": 1}), "no column 'accurate'; did you mean 'accuracy'.*figures: accuracy"),
        (("accuracy", both, {"algorithm.name": "c"}), "to: no run has algorithm.name = 'c'; there are: a, b"),
        (("accuracy", both, {"size": 2}), "to: no run has size = 2; there are: 1, 8"),
        (("accuracy", both, {"size": [1]}), r"to: no run has size = \[1\]"),
        (("accuracy", both, {}), "to: names nothing to compare with"),
        (("accuracy", both, "a"), "to: expected a Mapping, got 'a'"),
        (("accuracy", "algorithm.name", {"size": 1}), "to: size is not among the columns that make the groups"),
        (("accuracy", ("seed", "size"), {"size": 1}), "per: has seed among the columns"),
        (("accuracy", "algorithm.name", {"algorithm.name": "a"}), "two runs of seed 0 .* they differ in size"),
        (("status", "size", {"size": 1}), "holds no numbers: status"),
    ]:
        with pytest.raises(InputError, match=message):
            found.paired(*arguments)


def test_pairs_of_runs_some_of_which_lack_a_setting(tmp_path):
    """A momentum that one method has and the other has not is one value, not one for each run."""
    methods = {"plain": {"algorithm": asyncsim.ASGD(0.1)}, "heavy": {"algorithm": asyncsim.NAGASGD(0.02)}}
    found = sweep(BASE, {"m": methods, "seed": range(3)}, folder=tmp_path / "s", processes=0)
    for to in ({"algorithm.name": "asgd"}, {"algorithm.momentum": float("nan")}):
        rows = list(found.paired("loss", ("algorithm.name", "algorithm.momentum"), to).rows())
        assert [(r["algorithm.name"], r["pairs"]) for r in rows] == [("asgd", 3), ("nag_asgd", 0)]
    plain, heavy = found.paired("loss", "m", {"m": "plain"}).rows()
    loss = {(r["m"], r["seed"]): r["loss"] for r in found.table.rows()}
    apart = [loss["heavy", k] - loss["plain", k] for k in range(3)]
    assert heavy["difference"] == pytest.approx(np.mean(apart))
    assert heavy["difference_error"] == pytest.approx(np.std(apart, ddof=1) / 3**0.5)
    assert plain["difference"] == 0


def test_best(monkeypatch):
    def made(rate, seed, loss, status="done"):
        scenario = {"algorithm.learning_rate": rate, "seed": seed, "name": "m"}
        row = {"run": f"{rate}{seed}", "labels": {"variant": "b" if rate >= 1 else "a"}, "scenario": scenario}
        figures = {"loss": loss, "accuracy": 1 - loss} if status == "done" else {}
        return row, ({"status": status, "failure": ""}, figures)

    cases = [
        *(made(0.1, 0, 0.5), made(0.1, 1, 0.3)),
        *(made(0.2, 0, 0.2), made(0.2, 1, 0.4)),  # the best of a by its mean
        *(made(0.3, 0, 0.1), made(0.3, 1, 0.1, "failed")),  # ruled out
        *(made(0.4, 0, float("nan")), made(0.4, 1, 0.0)),
        *(made(1.0, 0, 0.9), made(1.0, 1, 0.8)),
        *(made(float("nan"), 0, 0.01), made(float("nan"), 1, 0.0, "failed")),  # where that setting is missing
    ]
    from asyncsim.sweeps import results

    outcomes = {row["run"]: outcome for row, outcome in cases}
    monkeypatch.setattr(results, "_outcome", lambda folder, name: outcomes[name])
    found = results.Sweep("nowhere", [row for row, _ in cases])
    best = found.best("loss", per="variant")
    assert best.columns == ["variant", "algorithm.learning_rate", "loss", "loss_std", "runs"]
    assert best["algorithm.learning_rate"].tolist() == [0.2, 1.0]
    assert best["loss"] == pytest.approx([0.3, 0.85])
    assert best["loss_std"] == pytest.approx([0.2 / 2**0.5, 0.1 / 2**0.5])
    assert best["runs"].tolist() == [2, 2]
    assert found.best("accuracy")["algorithm.learning_rate"].tolist() == [0.2]
    assert found.best("loss", highest=True)["algorithm.learning_rate"].tolist() == [1.0]
    with pytest.raises(InputError, match=r"no column 'los'; .*did you mean 'loss'"):
        found.best("los")
    with pytest.raises(InputError, match="say whether more of seed is better"):
        found.best("seed")


def test_any_executor_will_do(tmp_path):
    with ThreadPoolExecutor(2) as threads:
        found = sweep(BASE, {"seed": range(3)}, folder=tmp_path / "a", executor=threads)
    assert found.table == sweep(BASE, {"seed": range(3)}, folder=tmp_path / "b", processes=0).table


def test_a_sweep_of_ones_own_problem_needs_no_scenario_file(tmp_path):
    import jax.numpy as jnp

    def loss(params, batch):  # defined here: no other process can import it
        return jnp.mean((batch["x"] * params["w"] - 1) ** 2)

    problem = asyncsim.CustomProblem(loss, {"w": np.zeros(())}, {"x": np.ones(8)})
    base = dataclasses.replace(BASE, problem=problem)
    found = sweep(base, {"seed": [0, 1]}, folder=tmp_path / "s")
    assert found.table["status"].tolist() == ["done"] * 2
    assert found.table["problem"][0] == "CustomProblem(loss, 8 samples)"


class Callable:
    """A loss that is an object."""

    def __init__(self, scale):
        self.scale = scale

    def __call__(self, params, batch):
        return self.scale * (batch["x"] * params["w"]).sum()


class GLOBAL:
    value = 0


def with_global(params, batch):
    return GLOBAL.value * (batch["x"] * params["w"]).sum()


def made_by_a_factory(scale):
    @algorithm
    class Scaled(ServerAlgorithm):
        """theta = theta - scale g."""

        learning_rate: float = 0.1

        def apply(self, state, message, context):
            return {"params": jax.tree.map(lambda x, g: x - scale * g, state["params"], message)}

    return Scaled


def test_classes_of_a_factory_are_told_apart():
    kinds = [made_by_a_factory(scale) for scale in (0.1, 0.2, 0.1)]
    names = [run_name(changed(BASE, {"algorithm": kind()})) for kind in kinds]
    assert names[0] != names[1]
    assert names[0] == names[2]
    kinds[2].factor = 0.5
    assert run_name(changed(BASE, {"algorithm": kinds[2]()})) != names[0]


def test_a_helper_of_a_plugin_takes_part(here, monkeypatch):
    monkeypatch.syspath_prepend(str(here))
    (here / "helper_module.py").write_text("FACTOR = 1.0\n\ndef twice(x):\n    return 2 * x\n")
    text = PLUGIN.replace("fragile", "helped").replace("Fragile", "Helped")
    text = text.replace("import asyncsim\n", "import asyncsim\nimport helper_module\nfrom helper_module import twice\n")
    (here / "helped_method.py").write_text(text.replace("return {", "helper_module.FACTOR, twice\n        return {"))
    importlib.import_module("helped_method")
    scenario, names = changed(BASE, {"algorithm": "helped"}), []
    for source in ("FACTOR = 1.0", "FACTOR = 0.5"):
        (here / "helper_module.py").write_text(f"{source}\n\ndef twice(x):\n    return 2 * x\n")
        names.append(run_name(scenario))
    assert len(set(names)) == 2


def test_ones_own_problems_are_told_apart():
    x, names_of_globals = {"x": np.ones(8)}, []

    def scaled(scale, start=0.0, data=x):
        def loss(params, batch):
            return scale * (batch["x"] * params["w"]).sum()

        return asyncsim.CustomProblem(loss, {"w": np.full((), start)}, data)

    def name(problem):
        return run_name(dataclasses.replace(BASE, problem=problem))

    def total(params, batch):
        return (batch["x"] * params["w"]).sum()

    def difference(params, batch):
        return (batch["x"] - params["w"]).sum()

    array, jitted = np.arange(3.0), [jax.jit(total), jax.jit(difference)]
    assert name(scaled(1)) == name(scaled(1))
    assert name(scaled(array)) == name(scaled(array.copy()))
    others = [scaled(1), scaled(2), scaled(1, 1.0), scaled(1, 0.0, {"x": np.zeros(8)}), scaled(array), scaled(-array)]
    others += [asyncsim.CustomProblem(f, {"w": np.zeros(())}, x) for f in (total, difference, *jitted)]
    others.append(asyncsim.CustomProblem(partial(lambda s, p, b: s * total(p, b), 3), {"w": np.zeros(())}, x))
    others.append(asyncsim.CustomProblem(partial(lambda s, p, b: s * total(p, b), 4), {"w": np.zeros(())}, x))
    others += [asyncsim.CustomProblem(f, {"w": np.zeros(())}, x) for f in (lambda p, b: 5.0, lambda p, b: 6.0)]
    others += [asyncsim.CustomProblem(Callable(k), {"w": np.zeros(())}, x) for k in (1, 2)]
    optimisers = [optax.sgd(rate) for rate in (0.1, 0.2)]
    others += [scaled(value) for value in (*optimisers, jax.random.key(0), jax.random.key(1), float, jax.numpy.add)]
    others += [scaled(value) for value in (np.ones(()), np.ones(1), np.ma.masked_equal(np.ones(1), 1))]
    for GLOBAL.value in (1, 2):
        names_of_globals.append(name(asyncsim.CustomProblem(with_global, {"w": np.zeros(())}, x)))
    assert len(set(names_of_globals)) == 2
    names = [name(problem) for problem in others]
    # a function and itself compiled are one
    assert len(set(names)) == len(names) - 2
    with pytest.raises(InputError, match="has no name that is its own"):
        name(scaled(k for k in range(3)))


def test_folders_of_others_are_left_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    with pytest.raises(InputError, match="is not empty and holds no asyncsim results"):
        sweep(BASE, folder=tmp_path / "mine", processes=0)
    asyncsim.run(BASE).save(tmp_path / "run")
    with pytest.raises(InputError, match="holds no sweep"):
        sweep(BASE, folder=tmp_path / "run", processes=0)
    with pytest.raises(InputError, match=r"holds no sweep: there is no asyncsim\.json"):
        load_sweep(tmp_path / "mine")
    sweep(BASE, folder=tmp_path / "s", processes=0)
    with pytest.raises(InputError, match="is not a single run"):
        asyncsim.load(tmp_path / "s")
    with pytest.raises(InputError, match="holds a sweep, which a run would replace"):
        asyncsim.run(BASE).save(tmp_path / "s")
    with pytest.raises(InputError, match="keep: expected 'figures' or 'all'"):
        sweep(BASE, keep="none")


def test_two_sweeps_do_not_meet_in_one_folder(tmp_path):
    fcntl = pytest.importorskip("fcntl")
    sweep(BASE, folder=tmp_path / "s", processes=0)
    handle = os.open(tmp_path / "s", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with pytest.raises(InputError, match="another sweep is at work in this folder"):
        sweep(BASE, folder=tmp_path / "s", processes=0)
    os.close(handle)
    sweep(BASE, folder=tmp_path / "s", processes=0)


# a shell in the background has its children ignore SIGINT: these shall not
COMMAND = """
import signal
from asyncsim.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""


def command(*args):
    return [sys.executable, "-c", COMMAND, "sweep", *args]


def test_a_sweep_killed_at_random_moments_ends_as_if_undisturbed(here):
    """SIGKILL loses what is under way and nothing else; in the end every byte is the same."""
    (here / "lr.toml").write_text(SWEEP.replace("seeds = 2", "seeds = 8"))
    subprocess.run(command("lr.toml", "--out", "calm"), check=True, capture_output=True)
    calm = tree(here / "calm")
    assert len([name for name in calm if name.endswith("summary.json")]) == 64
    rng, kills, between, lost, former = random.Random(0), 0, 0, 0, set()
    # killed at its very beginning
    (here / "killed").mkdir()
    (here / "killed" / ".asyncsim.json.a1b2c3").write_text("{")
    for attempt in range(60):
        process = subprocess.Popen(
            command("lr.toml", "--out", "killed", "--processes", "1"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            # at first soon, then later, so that it comes to an end on any machine
            process.wait(timeout=rng.uniform(0.5, 2.5) + 0.2 * attempt)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
        there = {p.parent.name for p in (here / "killed").glob("runs/*/asyncsim.json")}
        lost += len(former - there)
        between += 0 < len(there) < 64  # some finished, some not
        former = there
        if process.returncode == 0:
            break
    assert process.returncode == 0
    assert kills >= 2
    assert between >= 1
    assert lost == 0
    assert tree(here / "killed") == calm


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="needs Linux, to look at processes")
def test_processes_end_with_their_sweep(here):
    """Those of a sweep that was killed do not wait for work for ever."""
    (here / "long.toml").write_text(SWEEP.replace("[30, 60]", "[3000000, 6000000]"))
    process = subprocess.Popen(command("long.toml", "--processes", "2"), stderr=subprocess.DEVNULL)
    try:
        children = _wait_for(lambda: _children(process.pid) if len(_children(process.pid)) >= 2 else None)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert _wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in children) or None)


def _children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(word) for word in file.read().split()]
    except FileNotFoundError:
        return []


def _wait_for(what, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = what()
        if found is not None:
            return found
        time.sleep(0.1)
    raise AssertionError("it did not happen")


def test_half_a_compiled_program_does_no_harm(here):
    first = subprocess.run(command("lr.toml", "--out", "a"), check=True, capture_output=True, text=True)
    programs = list((here / "cache" / "compiled" / "1-threads").glob("*-cache"))
    assert programs
    for program in programs:
        program.write_bytes(program.read_bytes()[:100])
    again = subprocess.run(command("lr.toml", "--out", "b"), check=True, capture_output=True, text=True)
    assert "Warning" not in first.stderr + again.stderr
    assert tree(here / "a") == tree(here / "b")
    (here / "no").write_text("a file")
    none = {**os.environ, "ASYNCSIM_CACHE": str(here / "no")}
    quiet = subprocess.run(command("lr.toml", "--out", "c"), check=True, capture_output=True, text=True, env=none)
    assert "Warning" not in quiet.stderr
    assert tree(here / "a") == tree(here / "c")


INTERRUPTED = "asyncsim: interrupted; what is finished stays, and the same command goes on from there"


def test_ctrl_c_keeps_what_is_finished(here):
    (here / "long.toml").write_text(SWEEP.replace("[30, 60]", "[30, 6000000]"))
    process = subprocess.Popen(command("long.toml"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        # not one that is still being written, under a name with a dot
        _wait_for(lambda: list((here / "runs").glob("long-sweep/runs/[!.]*/asyncsim.json")) or None)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert [line for line in error.splitlines() if line and "run/s" not in line and "s/run" not in line] == [
        INTERRUPTED
    ]
    found = load_sweep(here / "runs" / "long-sweep")
    assert {"done", "pending"} == set(found.table["status"].tolist())


def test_ctrl_c_finds_no_lock_taken(here):
    """While the futures' locks are held, at the worst of moments: the pool would wait for them for ever."""
    (here / "long.toml").write_text(SWEEP.replace("[30, 60]", "[3000000, 6000000]"))
    patch = """
from concurrent.futures import _base
leave = _base._AcquireFutures.__exit__
def interrupted(self, *args):
    signal.raise_signal(signal.SIGINT)
    leave(self, *args)
_base._AcquireFutures.__exit__ = interrupted
main()
"""
    code = COMMAND.replace("main()\n", patch)
    process = subprocess.Popen(
        [sys.executable, "-c", code, "sweep", "long.toml", "--processes", "2"], stderr=subprocess.PIPE, text=True
    )
    try:
        _, error = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert error.splitlines()[-1] == INTERRUPTED


def test_the_command_says_what_there_is_to_do(here, capsys):
    main(["sweep", "lr.toml", "--dry-run"])
    out = capsys.readouterr().out
    assert "16 runs: 16 pending (nothing was run); results would go to runs/lr-sweep/" in out
    assert not (here / "runs").exists()
    main(["sweep", "lr.toml", "--processes", "0", "--set", "stop.seconds=20", "--set", "variants.sync.seed=4"])
    out = capsys.readouterr().out
    assert "16 runs: 16 done; results: runs/lr-sweep/table.csv" in out
    assert out.splitlines()[0].split()[:4] == ["run", "variant", "cluster.workers[0].count", "algorithm.learning_rate"]
    main(["sweep", "lr.toml", "--dry-run", "--set", "stop.seconds=20"])
    assert "16 runs: 16 done" in capsys.readouterr().out
