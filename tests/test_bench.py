"""What the benchmarks compare with computes the same; their figures are there. How fast anything is, no test says."""

import json

import jax
import numpy as np
import pytest

from asyncsim import bench
from asyncsim.algorithms import SGD
from asyncsim.bench.bare import MOMENTUM, RATE, Bare
from asyncsim.bench.recordings import recording
from asyncsim.bench.timing import ratio
from asyncsim.cli import main
from asyncsim.data import Blobs
from asyncsim.errors import InputError
from asyncsim.problems import MLP
from asyncsim.replaying import replay
from asyncsim.trace import Trace


def same(a, b):
    return all(
        np.asarray(x) == pytest.approx(np.asarray(y), abs=1e-5)
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def test_bare_loops_are_momentum_sgd():
    problem = MLP(Blobs(features=6, classes=3, train=40, test=20), hidden=(5,))
    trace = Trace.from_arrivals([0] * 30, batch_size=4)
    bare, run = Bare(trace, problem), replay(trace, SGD(RATE, MOMENTUM), problem)
    for loop in (bare.scan, bare.calls, lambda: bare.events(trace.worker[trace.gradients])):
        assert same(loop(), run.params)
    assert bare.fastest() in (bare.scan, bare.calls)
    # with several workers that of events is asynchronous
    stale = Trace.from_arrivals([0, 1, 2, 1, 0, 2, 2, 1], batch_size=4)
    events = Bare(stale, problem).events(stale.worker[stale.gradients])
    assert same(events, replay(stale, SGD(RATE, MOMENTUM), problem).params)


def test_a_ratio_is_of_theirs_over_ours(monkeypatch):
    passed = [0.0]
    for clock in ("process_time", "perf_counter"):
        monkeypatch.setattr(f"asyncsim.bench.timing.time.{clock}", lambda: passed[0])

    def burn(seconds):
        passed[0] += seconds

    found = ratio(lambda: burn(0.25), lambda: burn(25.0), rounds=3)
    assert (found.cpu, found.wall) == (100.0, 100.0)


def test_figures_of_timing_alone(capsys, monkeypatch):
    found = dict(recording(2**-7))
    assert found.keys() >= {"recording.async.8", "recording.async.1024", "recording.nic.64", "recording.bytes_a_row"}
    assert all(np.isfinite(value) for value in found.values())
    assert found["recording.bytes_a_row"] <= 64
    monkeypatch.setitem(bench.GROUPS, "recording", lambda scale: iter([("recording.async.8", 2 * scale)]))
    main(["bench", "recording"])
    assert capsys.readouterr().out == "recording.async.8: 2\n"
    main(["bench", "recording", "--quick", "--json"])
    assert json.loads(capsys.readouterr().out) == {"recording.async.8": 0.25}


def test_a_group_that_there_is_not():
    with pytest.raises(InputError, match=r"group: no group 'record'; there are: replay, .*did you mean 'recording'"):
        next(bench.figures(["record"]))


def test_figures_go_to_a_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(bench.GROUPS, "recording", lambda scale: iter([("one", 0.5), ("two", 1.25)]))
    main(["bench", "recording", "--out", "here"])
    assert (tmp_path / "here" / "bench.txt").read_text() == capsys.readouterr().out == "one: 0.5\ntwo: 1.25\n"
    assert "machine" in json.loads((tmp_path / "here" / "asyncsim.json").read_text())["versions"]
