"""Runs: tables, saving, loading, showing, drawing."""

import dataclasses
import json

import jax
import numpy as np
import pytest

import asyncsim
from asyncsim import plots
from asyncsim.errors import InputError
from asyncsim.files import check_folder, new_folder
from asyncsim.reports import comparison
from asyncsim.runs import load, pack_tree, unpack_tree
from asyncsim.tables import Table

SCENARIO = {
    "cluster": {"workers": [{"count": 3, "step_time": {"name": "gamma", "mean": 1.0, "cv": 0.3}}], "latency": 0.05},
    "algorithm": {"name": "asgd", "learning_rate": 0.1, "momentum": 0.5},
    "problem": {"name": "mlp", "hidden": [8], "data_set": {"name": "blobs", "train": 500, "test": 100}},
    "stop": {"updates": 100},
    "target": {"value": 0.5},
    "name": "small",
    "seed": 2,
}


@pytest.fixture(scope="module")
def run():
    return asyncsim.run(asyncsim.Scenario(**SCENARIO))


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_the_same_scenario_twice_makes_the_same_bytes(run, tmp_path):
    run.save(tmp_path / "a")
    asyncsim.run(asyncsim.Scenario(**SCENARIO)).save(tmp_path / "b")
    a, b = files(tmp_path / "a"), files(tmp_path / "b")
    assert a == b
    assert set(a) == {
        "asyncsim.json",
        "evals.csv",
        "params.npz",
        "scenario.toml",
        "spans.csv",
        "summary.json",
        "trace.npz",
        "updates.csv",
    }
    other = asyncsim.run(asyncsim.Scenario(**{**SCENARIO, "seed": 3}))
    assert other.updates != run.updates


def test_save_and_load(run, tmp_path):
    run.save(tmp_path / "run")
    back = load(tmp_path / "run")
    assert back.updates == run.updates
    assert back.evals == run.evals
    assert back.spans == run.spans
    assert back.summary == run.summary
    assert back.scenario == run.scenario
    assert back.settings == run.settings
    assert back.settings["algorithm"] == SCENARIO["algorithm"] | {
        "weight_decay": 0.0,
        "decay_at": "server",
        "nesterov": False,
    }
    assert back.label == run.label
    assert jax.tree.structure(back.params) == jax.tree.structure(run.params)
    assert jax.tree.all(jax.tree.map(np.array_equal, back.params, run.params))
    # and the scenario that was saved runs again to the same
    again = asyncsim.run(asyncsim.Scenario(**back.scenario))
    assert again.updates == run.updates
    back.save(tmp_path / "again")
    assert files(tmp_path / "again") == files(tmp_path / "run")


def test_summary_adds_up(run):
    s, updates = run.summary, run.updates
    assert s["updates"] == s["gradients"] == len(updates) == 100
    assert s["staleness_mean"] == updates["staleness"].mean()
    assert s["gap"] == updates["gap"].mean()
    assert s["seconds"] == run.evals["time"][-1] == run.spans["end"].max()
    assert s["throughput"] == pytest.approx(100 * 32 / s["seconds"])
    assert s["accuracy"] == run.evals["accuracy"][-1]
    first = np.flatnonzero(run.evals["accuracy"] >= 0.5)[0]
    assert s["time_to_target"] == run.evals["time"][first]
    # each accepted gradient, and each reply but the first read; some replies have not arrived
    model, sent = asyncsim.Scenario(**SCENARIO).problem.workload(32).model_bytes, run.trace.transfers
    under_way = np.sum(~np.isfinite(sent["end"]) & (sent["kind"] == "down"))
    assert s["bytes_sent"] == (200 - under_way) * model


def test_to_frame(run):
    for name in ("updates", "evals", "spans", "summary"):
        frame = run.to_frame(name)
        assert frame["run"].unique().tolist() == ["small"]
    assert len(run.to_frame("updates")) == 100
    assert run.to_frame()["loss"].iloc[-1] == run.summary["loss"]
    with pytest.raises(InputError, match="no table 'update'"):
        run.to_frame("update")


def test_shown(run):
    assert repr(run).startswith("Run('small': 3 workers, 100 updates in ")
    assert "accuracy" in run._repr_html_()
    assert "<table>" in run.updates._repr_html_()
    assert "90 more rows" in run.updates._repr_html_()
    text = comparison([run, run])
    assert len({len(line) for line in text.splitlines()}) == 1
    assert "staleness, mean" in text


def test_nan_survives(tmp_path):
    run = asyncsim.replay(
        asyncsim.Trace.from_arrivals([0] * 3000),
        asyncsim.SGD(3.0),
        asyncsim.Quadratic(),
        target=asyncsim.Target(metric="loss", value=1e-3),
    )
    run.save(tmp_path / "run")
    back = load(tmp_path / "run")
    assert back.summary["ended"] == "diverged"
    assert np.isnan(back.summary["time_to_target"])
    assert back.evals == run.evals
    assert "not reached" in comparison([back])


def test_a_folder_of_ours_is_replaced_and_no_other(run, tmp_path):
    ours = tmp_path / "ours"
    run.save(ours)
    run.save(ours)
    assert len(list(tmp_path.iterdir())) == 1  # nothing temporary is left
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="holds no asyncsim results"):
        run.save(foreign)
    (ours / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"holds notes\.txt besides asyncsim's results"):
        run.save(ours)
    (ours / "notes.txt").unlink()
    (ours / "updates.csv").unlink()  # what is missing is no harm
    run.save(ours)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        run.save(tmp_path / "file")
    with pytest.raises(InputError, match="not a writable folder"):
        check_folder(tmp_path / "file" / "below", "run")
    with pytest.raises(InputError, match="cannot be written: No space"), new_folder(tmp_path / "new", "run"):
        raise OSError(28, "No space left on device")
    assert not (tmp_path / "new").exists()

    def while_we_work():
        with new_folder(tmp_path / "late", "run"):
            (tmp_path / "late").mkdir()
            (tmp_path / "late" / "thesis.txt").write_text("years of work")

    with pytest.raises(InputError, match="late: is not empty and holds no asyncsim results"):
        while_we_work()
    assert (tmp_path / "late" / "thesis.txt").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "foreign", "late", "ours"]


def test_an_interrupted_save_leaves_nothing_half_written(run, tmp_path):
    run.save(tmp_path / "run")
    before = files(tmp_path / "run")

    def interrupted():
        with new_folder(tmp_path / "run", "run") as temporary:
            (temporary / "half").write_text("")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert files(tmp_path / "run") == before
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "asyncsim.json").unlink(), "holds no asyncsim run"),
        (lambda f: (f / "asyncsim.json").write_text("{"), "cannot be read"),
        (lambda f: (f / "asyncsim.json").write_text('{"kind": "run", "format": 99}'), "has run format 99"),
        (lambda f: (f / "asyncsim.json").write_text('{"kind": "comparison"}'), "is not a single run"),
        (lambda f: (f / "updates.csv").unlink(), "updates.csv is not there; running its scenario.toml"),
        (lambda f: (f / "updates.csv").write_text(""), "is damaged"),
        (lambda f: (f / "summary.json").write_text("["), "is damaged"),
        (lambda f: (f / "trace.npz").write_bytes(b"PK"), "is not a trace"),
        (lambda f: cut(f / "trace.npz"), "is not a trace"),
        (lambda f: cut(f / "evals.csv"), "is damaged"),
        (lambda f: cut(f / "params.npz"), "is damaged"),
        (lambda f: (f / "summary.json").write_text("[]"), "summary.json: holds no table"),
        (lambda f: (f / "scenario.toml").write_bytes(bytes([255])), "is damaged"),
        (lambda f: (f / "params.npz").write_bytes(b""), "is damaged"),
    ],
)
def test_damaged_runs_are_named(run, tmp_path, damage, message):
    run.save(tmp_path / "run")
    damage(tmp_path / "run")
    with pytest.raises(InputError, match=message):
        load(tmp_path / "run")


def test_trees_of_parameters_survive(tmp_path):
    one, two = np.array([1.0]), np.array([[2.0]])
    for tree, back in (
        ({"a/b": one, "a": {"b": two}}, None),
        ({"file": one, "allow_pickle": two, "": one, "a.npy": two}, None),
        ([one, {"x": [two] * 12}], None),
        ((one, two), [one, two]),
        (one, None),
        ({}, {}),
    ):
        (tmp_path / "tree.npz").write_bytes(pack_tree(tree))
        found, wanted = unpack_tree(tmp_path / "tree.npz"), tree if back is None else back
        assert jax.tree.structure(found) == jax.tree.structure(wanted)
        assert jax.tree.all(jax.tree.map(np.array_equal, found, wanted))


def test_a_link_is_followed_and_a_comparison_is_not_replaced_by_a_run(run, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    run.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "disk" / "evals.csv").exists()
    with pytest.raises(InputError, match="holds a run, which a comparison would replace"):
        check_folder(tmp_path / "disk", "comparison")


def test_tables():
    table = Table({"a": [1, 2], "b": [0.1, float("nan")], "c": [True, False], "d": ["x", "y,z"]})
    assert Table.from_csv(table.to_csv()) == table
    assert table.to_csv() == 'a,b,c,d\n1,0.1,True,x\n2,nan,False,"y,z"\n'
    assert list(table.head(1).rows()) == [{"a": 1, "b": 0.1, "c": True, "d": "x"}]
    with pytest.raises(KeyError, match="did you mean 'a'"):
        Table({"a": [1]})["aa"]
    with pytest.raises(InputError, match="different lengths"):
        Table({"a": [1], "b": []})


def test_figures_show_what_the_tables_say(run):
    from matplotlib.figure import Figure

    axes = Figure().subplots(2)
    assert plots.loss_over_time(run, axes[0]) is axes[0]
    line = axes[0].lines[0]
    assert line.get_xdata().tolist() == run.evals["time"].tolist()
    assert line.get_ydata().tolist() == run.evals["loss"].tolist()
    plots.staleness_histogram([run, run], axes[1])
    shares = axes[1].patches[0].get_data().values
    counts = np.bincount(run.updates["staleness"])
    assert shares.tolist() == (counts / counts.sum()).tolist()
    assert f"mean {run.summary['staleness_mean']:.2f}" in axes[1].get_legend_handles_labels()[1][0]
    assert len(plots.overview([run]).axes) == 2


def test_figures_of_a_diverged_run():
    run = asyncsim.replay(asyncsim.Trace.from_arrivals([0] * 3000), asyncsim.SGD(3.0), asyncsim.Quadratic())
    plots.overview(run).canvas.draw()


def test_the_users_own_problem_can_be_saved(tmp_path):
    def loss(params, batch):
        return ((params["w"] - batch) ** 2).mean()

    problem = asyncsim.CustomProblem(loss, {"w": np.zeros(())}, np.arange(10.0))
    fields = {k: v for k, v in SCENARIO.items() if k not in ("problem", "target")}
    run = asyncsim.run(asyncsim.Scenario(problem=problem, **fields))
    assert run.scenario is None
    assert run.settings["problem"] == "CustomProblem(loss, 10 samples)"
    run.save(tmp_path / "run")
    assert load(tmp_path / "run").updates == run.updates
    assert json.loads((tmp_path / "run" / "asyncsim.json").read_text())["versions"]["asyncsim"]


def test_a_small_model_learns_at_the_pace_of_a_large_one():
    """Other sizes than the problem's own change when things happen, and nothing of what is learned."""
    worker = {"step_time": 1.0, "host": {"name": "host", "bandwidth": 1000.0}}
    small = asyncsim.Scenario(**{**SCENARIO, "cluster": {"workers": [worker]}, "stop": {"updates": 5}})
    large = dataclasses.replace(small, tensor_bytes=(3000, 1000))
    assert large.record().workload == dataclasses.replace(small.record().workload, tensor_bytes=(3000, 1000))
    runs = asyncsim.run(small), asyncsim.run(large)
    for done, size in zip(runs, (small.workload.model_bytes, 4000), strict=True):
        assert done.summary["seconds"] == pytest.approx(5 + 9 * size / 1000)  # sent five times, received four times
    assert all(map(np.array_equal, *(jax.tree.leaves(run.params) for run in runs)))
    assert asyncsim.Scenario(**runs[1].scenario) == large.resolved()


def test_a_steered_protocol_sends_what_it_is_told_to():
    scenario = {
        **SCENARIO,
        "algorithm": {"name": "gaia", "learning_rate": 0.1, "threshold": 1e-9},
        "stop": {"updates": 5},
    }
    del scenario["target"]
    sizes = [asyncsim.Scenario(**scenario, tensor_bytes=size).record().transfers["bytes"] for size in (None, [70, 30])]
    assert len(set(sizes[0])) == 1
    assert set(sizes[1]) == {200.0}  # a value and where it belongs
