"""The studies in ``scenarios/``: their quick forms run, and what is committed is what they give."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FASHION = Path("/usr/share/datasets/fashion-mnist")
STUDIES = (
    *("smega2_accuracy", "gap", "momentum_memory", "learning_rate", "error_runtime"),
    *("wagma_accuracy", "wagma_throughput", "eager_collectives"),
)
WITHOUT_DATA = ("momentum_memory", "eager_collectives", "wagma_throughput")


def run(study, folder, *arguments):
    command = [sys.executable, "-W", "error", str(ROOT / "scenarios" / f"{study}.py"), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.parametrize("study", STUDIES)
def test_the_quick_form_runs(study, tmp_path):
    if study not in WITHOUT_DATA and not FASHION.exists():
        pytest.skip("needs Fashion-MNIST")
    done = run(study, tmp_path, "--quick", "--processes", "1")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / f"{study}-quick"
    assert done.stdout.startswith((folder / "table.txt").read_text())
    assert {"table.txt", "figure.png", "asyncsim.json"} <= {p.name for p in folder.iterdir()}
    assert json.loads((folder / "asyncsim.json").read_text())["kind"] == f"study {study}-quick"


def test_the_committed_memory_is_what_the_study_counts(tmp_path):
    done = run("momentum_memory", tmp_path, "--out", "made")
    assert done.returncode == 0, done.stderr
    for name in ("table.txt", "memory.csv"):
        assert (tmp_path / "made" / name).read_text() == (ROOT / "results" / "momentum_memory" / name).read_text()


def test_no_study_takes_the_place_of_another(tmp_path):
    assert run("momentum_memory", tmp_path, "--out", "made").returncode == 0
    done = run("momentum_memory", tmp_path, "--quick", "--out", "made")
    assert done.returncode == 2
    assert "made: holds a study momentum_memory, which a study momentum_memory-quick would replace" in done.stderr
    assert run("momentum_memory", tmp_path, "--out", "made").returncode == 0  # but that of the same name


def test_a_folder_that_holds_anything_else_is_left_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    done = run("momentum_memory", tmp_path, "--quick", "--out", "mine")
    assert done.returncode == 2
    assert done.stderr.startswith("momentum_memory-quick: mine: is not empty and holds no asyncsim results")
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("study", "arguments", "message"),
    [
        ("momentum_memory", ["--fast"], "unrecognized arguments: --fast"),
        ("eager_collectives", ["--workers", "16"], "unrecognized arguments: --workers 16"),
        ("wagma_accuracy", ["--workers", "17"], "argument --workers: invalid choice: 17"),
    ],
)
def test_wrong_arguments_are_one_line(study, arguments, message, tmp_path):
    done = run(study, tmp_path, *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(f"{study}: {message}")
    assert done.stderr.count("\n") == 1
    assert not done.stdout
    assert not any(tmp_path.iterdir())


def test_each_form_of_a_study_has_a_name(monkeypatch):
    """So that no form takes the place of another."""
    monkeypatch.syspath_prepend(str(ROOT / "scenarios"))
    studies = importlib.import_module("studies")
    more = {"--workers": {"type": int}}
    names = {"": "a_study", "--workers 16": "a_study-16", "--quick --workers 16": "a_study-16-quick"}
    for words, name in names.items():
        monkeypatch.setattr(sys, "argv", ["scenarios/a_study.py", *words.split()])
        assert studies.arguments("What it asks.", more).name == name
