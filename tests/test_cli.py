"""The command line and what it says to mistakes: one line, exit status 2, nothing half-written."""

import dataclasses
import os
import re
import signal
import subprocess
import sys
import tomllib
import typing

import numpy as np
import pytest

import asyncsim
from asyncsim.cli import main
from asyncsim.listing import FAMILIES
from asyncsim.records import table
from asyncsim.runs import load as load_run
from asyncsim.scenario_files import load_scenarios
from asyncsim.sweeps.axes import load, rows
from asyncsim.trace import Trace

SMALL = """
seed = 1
[cluster]
latency = 0.01
[[cluster.workers]]
count = 2
step_time = { name = "constant", seconds = 1.0 }
[[cluster.workers]]
count = 1
step_time = { name = "exponential", mean = 2.0 }
[problem]
name = "quadratic"
eigenvalues = [1.0, 0.5]
[stop]
updates = 30
[algorithm]
name = "asgd"
learning_rate = 0.05
[variants.async]
[variants.sync]
algorithm = { name = "ssgd", learning_rate = 0.2 }
"""


@pytest.fixture
def small(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(SMALL)
    return tmp_path


def fails(capsys, *args):
    with pytest.raises(SystemExit) as end:
        main(list(args))
    out = capsys.readouterr()
    assert end.value.code == 2
    assert len(out.err.strip().splitlines()) == 1, out.err
    return out.err.strip()


def test_run_writes_a_folder(small, capsys):
    main(["run", "small.toml"])
    out = capsys.readouterr().out
    assert "async" in out
    assert "sync" in out
    (folder,) = (small / "runs").iterdir()
    assert re.fullmatch(r"small-[0-9a-f]{8}", folder.name)
    names = {p.name for p in folder.iterdir()}
    assert names == {"async", "sync", "figure.png", "table.txt", "asyncsim.json"}
    run = load_run(folder / "sync")
    assert run.summary["updates"] == 30
    assert run.scenario["algorithm"]["name"] == "ssgd"
    # the resolved scenario runs by itself to the same numbers
    main(["run", str(folder / "sync" / "scenario.toml"), "--out", "again"])
    assert load_run(small / "again" / "sync").updates == run.updates
    first = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    main(["run", "small.toml"])
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == first


def test_overrides(small, capsys):
    settings = [
        "variants.sync.algorithm.momentum=0.3",
        "cluster.workers[0].count=5",
        "variants.async.algorithm.momentum=0.9",
        "variants.sync.algorithm.learning_rate=0.3",
        "problem.eigenvalues=[2.0]",
        "stop={samples=640}",
        "schedule.decay=cosine",
        "schedule.length=3",
    ]
    scenarios = load_scenarios("small.toml", settings)
    a, s = scenarios["async"], scenarios["sync"]
    assert a.cluster.num_workers == s.cluster.num_workers == 6
    assert (a.algorithm.momentum, a.algorithm.learning_rate) == (0.9, 0.05)
    assert (s.algorithm.momentum, s.algorithm.learning_rate) == (0.3, 0.3)
    assert a.problem.eigenvalues == (2.0,)
    assert (a.stop.samples, a.stop.updates) == (640, None)
    assert a.schedule.length == 3.0
    # a table with nothing but a name may be written as that name
    assert load_scenarios("small.toml", ["algorithm=ssgd"])["sync"].algorithm.learning_rate == 0.1
    # another method starts from its own defaults
    assert load_scenarios("small.toml", ["algorithm.name=ssgd"])["async"].algorithm.learning_rate == 0.1
    # laid over every run, whatever tables of its own it has, and names before what belongs to them
    both = load_scenarios("small.toml", ["algorithm.momentum=0.25", "seed=9"])
    assert [(x.algorithm.momentum, x.seed) for x in both.values()] == [(0.25, 9)] * 2
    both = load_scenarios("small.toml", ["algorithm.learning_rate=0.3", "algorithm.name=ssgd"])
    assert [(x.algorithm.name, x.algorithm.learning_rate) for x in both.values()] == [("ssgd", 0.3)] * 2
    main(["trace", "small.toml", "--set", "cluster.latency=0.5", "--set", "seed=4"])
    assert "staleness, mean" in capsys.readouterr().out


def test_trace_alone(small, capsys):
    main(["trace", "small.toml", "--out", "traces"])
    out = capsys.readouterr().out
    for title in ("throughput", "staleness, mean", "busy", "sending"):
        assert title in out
    trace = Trace.load(small / "traces" / "async.npz")
    assert trace.updates[-1] == 30
    assert not (small / "runs").exists()


def test_list(capsys):
    main(["list"])
    out = capsys.readouterr().out
    for name in (
        "asgd",
        "ssgd",
        "sgp",
        "async",
        "sync",
        "gamma",
        "shifted_exponential",
        "straggler_trace",
        "independent",
        "mlp",
        "quadratic",
        "digits",
        "blobs",
    ):
        assert f"  {name} " in out
    assert len(out.splitlines()) == sum(1 + len(family.members) for family in FAMILIES.values())  # a line each
    main(["list", "protocols"])
    assert "asgd" not in capsys.readouterr().out
    main(["list", "eager"])
    out = capsys.readouterr().out
    assert "protocol for traces of kind peers, normally with eager_sgd; in Python EagerAllreduce" in out
    main(["list", "gamma"])
    out = capsys.readouterr().out
    assert "cv   a number >= 1e-09 and <= 1e+09 (required)" in out
    assert "Ali et al." in out
    main(["list", "scenario"])
    out = capsys.readouterr().out
    for key in ("[stop]", "[evaluate]", "[target]", "[schedule]", "milestones", "measures", "precision"):
        assert key in out
    assert "nothing is called 'gama'" in fails(capsys, "list", "gama")
    main(["--version"])
    assert capsys.readouterr().out.startswith("asyncsim 0.")


def test_a_plugin_brings_methods(small, capsys):
    (small / "mine_for_cli.py").write_text(
        "import asyncsim\n"
        "from asyncsim.algorithms import ASGD, algorithm\n"
        "@asyncsim.register('mine')\n@algorithm\nclass Mine(ASGD):\n    'theta = theta - eta g, but mine.'\n"
    )
    try:
        main(["run", "small.toml", "--plugin", "mine_for_cli", "--set", "algorithm.name=mine", "--out", "out"])
    finally:
        from asyncsim.algorithms import Algorithm

        Algorithm.members.pop("mine", None)
    assert load_run(small / "out" / "async").scenario["algorithm"]["name"] == "mine"


def edit(text, old, new):
    assert old in text
    return text.replace(old, new)


MISTAKES = {
    "an unknown key": (
        'name = "asgd"\nlearning_rate',
        'name = "asgd"\nmomentun = 0.9\nlearning_rate',
        "bad.toml: algorithm.momentun: unknown key; allowed: learning_rate, momentum, weight_decay, decay_at, "
        "nesterov; did you mean 'momentum'?",
    ),
    "an unknown table": ("[stop]", "[stopp]", "bad.toml: stopp: unknown key"),
    "a missing table": (
        "[stop]\nupdates = 30",
        "",
        "bad.toml: stop: is missing; expected a Stop, or a table with any of: updates, samples",
    ),
    "an unknown name": (
        '"asgd"',
        '"assgd"',
        "bad.toml: algorithm.name: no algorithm is called 'assgd'; there are: averaging, ",
    ),
    "a name of Python": ('"asgd"', '"DanaZero"', "did you mean 'dana_zero'?"),
    "no name": ('name = "asgd"\n', "", "bad.toml: algorithm.name: says no name; there are: averaging"),
    "a wrong type": (
        "learning_rate = 0.05",
        'learning_rate = "fast"',
        "bad.toml: algorithm.learning_rate: expected a number > 0, got 'fast'",
    ),
    "a wrong range": (
        "learning_rate = 0.05",
        "learning_rate = 0",
        "algorithm.learning_rate: expected a number > 0, got 0",
    ),
    "a number that is none": (
        "learning_rate = 0.05",
        "learning_rate = nan",
        "learning_rate: expected a number > 0, got nan",
    ),
    "an infinite number": (
        "mean = 2.0",
        "mean = inf",
        "cluster.workers[1].step_time.mean: expected a number > 0 and <= 1e+12, got inf",
    ),
    "a huge whole number": ("seed = 1", f"seed = {10**30}", "seed: expected a whole number >= 0 and < 2147483648"),
    "a worker without a time model": (
        'count = 1\nstep_time = { name = "exponential", mean = 2.0 }',
        "count = 1",
        "bad.toml: cluster.workers[1].step_time: is missing; expected a step-time model, or a table whose name is one "
        "of: constant, uniform, gamma",
    ),
    "no workers": (
        "count = 2",
        "count = 0",
        "cluster.workers[0].count: expected a whole number >= 1 and <= 100000, got 0",
    ),
    "a negative time": (
        "seconds = 1.0",
        "seconds = -1.0",
        "step_time.seconds: expected a number > 0 and <= 1e+12, got -1.0",
    ),
    "a negative latency": (
        "latency = 0.01",
        "latency = -0.01",
        "cluster.latency: expected a number >= 0 and <= 1e+12, got -0.01",
    ),
    "a forgotten letter": ("[variants.sync]", "[variant.sync]", "bad.toml: variant: unknown key; allowed: cluster, "),
    "a mistake in a variant": (
        "learning_rate = 0.2",
        "learning_rate = -0.2",
        "bad.toml: variants.sync.algorithm.learning_rate: expected a number > 0, got -0.2",
    ),
    "a variant that is no table": (
        "[variants.async]",
        "[variants]\nasync = 3",
        "variants.async: expected a table, got 3",
    ),
    "nothing to stop at": ("updates = 30", "", "stop: give at least one of: updates, samples, epochs, seconds"),
    "a method between peers": (
        '"asgd"',
        '"averaging"',
        "bad.toml: variants.async.protocol: is missing, and averaging names none",
    ),
    "a protocol that does not fit": (
        "[algorithm]",
        '[protocol]\nname = "serial"\n[algorithm]',
        "bad.toml: protocol: the serial protocol runs on 1 worker, not 3",
    ),
    "a table in place of a number": ("seed = 1", "seed = { a = 1 }", "seed: expected a whole number"),
    "a number in place of a table": (
        "seed = 1",
        "seed = 1\ntarget = 3",
        "bad.toml: target: expected a Target, or a table with: value, metric, stop, got 3",
    ),
    "a date": ("latency = 0.01", "latency = 1979-05-27", "latency: expected a number >= 0"),
    "a date for a flag": ("seed = 1", "seed = 1\nmeasures = 1979-05-27", "measures: expected true or false"),
    "true for a number": ("seed = 1", "seed = true", "seed: expected a whole number"),
    "a name that leads elsewhere": (
        "[variants.async]",
        '[variants."../x"]',
        "variants.../x: a name has at most 80 plain",
    ),
    "a name of many lines": ("[variants.async]", '[variants."a\\nb"]', "a name has at most 80 plain"),
    "a number without end": ("seed = 1", f"seed = {'9' * 5000}", "is not valid TOML: Exceeds the limit"),
    "milestones in disorder": (
        "[stop]",
        '[schedule]\ndecay = "step"\nmilestones = [3, 2]\n[stop]',
        "schedule.milestones: come one after the other, got [3.0, 2.0]",
    ),
    "too many evaluations": (
        "[stop]",
        "[evaluate]\nseconds = 1e-12\n[stop]",
        "bad.toml: evaluate.seconds: makes 1",
    ),
    "no end in sight": (
        "updates = 30",
        "seconds = 1e12",
        "bad.toml: stop: about 2.46e+12 gradients or more come before the end",
    ),
    "not TOML": ("[stop]", "[stop", "bad.toml: is not valid TOML: "),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_in_a_scenario(small, capsys, case):
    old, new, message = MISTAKES[case]
    (small / "bad.toml").write_text(edit(SMALL, old, new))
    assert message in fails(capsys, "run", "bad.toml")
    assert sorted(p.name for p in small.iterdir()) == ["bad.toml", "small.toml"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["run", "smal.toml"], "smal.toml: no such file; in that folder: small.toml"),
        (["run", "nowhere/x.toml"], "nowhere/x.toml: no such file"),
        (["run", "."], ".: is no file"),
        (["run", "small.toml", "--set", "seed"], "--set: expected KEY=VALUE"),
        (["run", "small.toml", "--set", "cluster.workers[7].count=1"], "no such item; the list has 2, from [0]"),
        (
            ["run", "small.toml", "--set", "variants.synk.seed=1"],
            "no variant is called 'synk'; there are: async, sync; did",
        ),
        (["run", "small.toml", "--set", "cluster.workers[0x.count=1"], "--set: expected KEY=VALUE"),
        (["run", "small.toml", "--set", "cluster.workers[²].count=1"], "--set: expected KEY=VALUE"),
        (["run", "small.toml", "--set", "seed.x=1"], "seed.x: 1 has no parts to set"),
        (
            ["run", "small.toml", "--set", "algorithm.momentum=2"],
            "algorithm.momentum: expected a number >= 0 and < 1, got 2",
        ),
        (["run", "small.toml", "--out", "small.toml"], "small.toml: is a file, not a folder"),
        (["run", "small.toml", "--out", "small.toml/x"], "small.toml/x: cannot be made"),
        (["run", "small.toml", "--out", "."], "is not empty and holds no asyncsim results"),
        (["run", "small.toml", "--plugin", "no_such_module"], "--plugin no_such_module: cannot be imported"),
        (
            ["run", "small.toml", "--set", "target.value=0.9"],
            "small.toml: target.metric: no 'accuracy' is measured; there are: loss",
        ),
    ],
)
def test_mistakes_on_the_command_line(small, capsys, args, message):
    assert message in fails(capsys, *args)
    assert [p.name for p in small.iterdir()] == ["small.toml"]


def test_an_unwritable_folder_costs_no_work(small, capsys, monkeypatch):
    (small / "locked").mkdir(mode=0o500)
    # root may write everywhere but here
    locked = "/proc/asyncsim/x" if os.geteuid() == 0 else "locked/x"
    monkeypatch.setattr("asyncsim.scenario.run", lambda *_, **__: pytest.fail("it ran all the same"))
    assert f"{locked}: cannot be made" in fails(capsys, "run", "small.toml", "--out", locked)


def test_a_file_that_is_no_scenario(small, capsys):
    (small / "big.toml").write_bytes(b"#" * 2_000_000)
    assert "larger than 1000000 bytes" in fails(capsys, "run", "big.toml")
    (small / "deep.toml").write_text("a = " + "[" * 50_000 + "]" * 50_000)
    assert "is not valid TOML" in fails(capsys, "run", "deep.toml")
    (small / "binary.toml").write_bytes(bytes(range(256)))
    assert "is not valid TOML" in fails(capsys, "run", "binary.toml")


def test_help_and_no_arguments(capsys):
    for args in (["--help"], [], ["run", "--help"], ["trace", "--help"], ["list", "--help"]):
        with pytest.raises(SystemExit) as end:
            main(args)
        assert end.value.code == 0
        assert "Example: asyncsim" in capsys.readouterr().out


COMMAND = [sys.executable, "-c", "from asyncsim.cli import main; main()"]


def test_two_processes_write_the_same_bytes(small):
    for out in ("a", "b"):
        subprocess.run([*COMMAND, "run", "small.toml", "--out", out], check=True, capture_output=True)
    a, b = ({p.relative_to(small / n): p.read_bytes() for p in (small / n).rglob("*") if p.is_file()} for n in "ab")
    assert a == b
    assert len(a) == 3 + 2 * 8


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_run_leaves_nothing_behind(small, number, status):
    # a shell in the background has its children ignore SIGINT: these shall not
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n" + COMMAND[-1]
    command = [sys.executable, "-c", code, "run", "small.toml", "--set", "stop.updates=300000"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        while not list(small.glob("runs/.*")):  # the folder under way is made first
            assert process.poll() is None
        process.send_signal(number)
        try:
            process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == status
    assert [p.name for p in small.iterdir()] == ["small.toml"]


def test_the_quick_start(scenarios_folder, tmp_path, monkeypatch, capsys):
    """The README's main job, on fewer epochs: the numbers of both runs make sense."""
    monkeypatch.chdir(tmp_path)
    main(["run", str(scenarios_folder / "quickstart.toml"), "--set", "stop.epochs=20"])
    (folder,) = (tmp_path / "runs").iterdir()
    both = [load_run(folder / name) for name in ("async", "sync")]
    a, s = (run.summary for run in both)
    assert a["samples"] == pytest.approx(s["samples"], abs=8 * 32)
    assert a["staleness_mean"] == pytest.approx(7, abs=0.1)
    assert s["staleness_mean"] == 0
    assert a["throughput"] > 1.5 * s["throughput"]
    assert a["compute_share"] > 0.9 > s["compute_share"]
    assert min(a["accuracy"], s["accuracy"]) > 0.9
    assert a["gap"] > 0 == s["gap"]
    table = (folder / "table.txt").read_text()
    assert table.strip() in capsys.readouterr().out
    assert np.all(np.diff(both[0].updates["time"]) >= 0)


def test_every_scenario_in_the_folder_is_valid(scenarios_folder):
    files = list(scenarios_folder.glob("*.toml"))
    assert files
    for file in files:
        assert rows(*load(file)) if "sweep" in tomllib.loads(file.read_text()) else load_scenarios(file)


@pytest.mark.parametrize("module", ["asyncsim", "asyncsim.cli"])
def test_as_a_module(module):
    command = [sys.executable, "-m", module, "run", "none.toml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "none.toml" in done.stderr


def test_what_a_scenario_leaves_out_is_the_default():
    """None is not written: so nothing that may be None has another default."""
    for family in FAMILIES.values():
        for cls in family.members.values():
            hints = typing.get_type_hints(cls)
            for f in dataclasses.fields(cls):
                if type(None) in typing.get_args(hints[f.name]):
                    assert f.default is None, (cls, f.name)


@asyncsim.checked
class Odd:
    """Has a default where None means something else."""

    period: float | None = 2.0


def test_none_in_place_of_a_default_is_not_written():
    assert table(Odd()) == {"period": 2.0}
    with pytest.raises(asyncsim.InputError, match="period: None cannot be written to a scenario file"):
        table(Odd(None))
