"""The README tells the truth: its code runs, its numbers are those of the committed results."""

import os
import re

import pytest


@pytest.fixture
def readme(request):
    return (request.config.rootpath / "README.md").read_text(encoding="utf-8")


def blocks(text, language):
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_its_python_runs(readme, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    found = blocks(readme, "python")
    assert len(found) == 3
    for code in found:
        exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    out = capsys.readouterr().out
    assert "[0 1 2 1 3 2]" in out
    assert (tmp_path / "overview.png").stat().st_size > 10_000


def test_its_table_is_the_committed_one(readme, request):
    table = (request.config.rootpath / "results" / "quickstart" / "table.txt").read_text(encoding="utf-8")
    assert table.strip("\n") in readme


def test_ci_runs_its_test_command(readme, request):
    command = next(b for b in blocks(readme, "sh") if "pytest" in b)
    ci = (request.config.rootpath / ".ci" / "run").read_text(encoding="utf-8")
    for part in ("-m venv", "'.[test]'", "/pytest"):
        assert part in command.replace("bin/pytest", "/pytest")
        assert part in ci
    assert os.access(request.config.rootpath / ".ci" / "run", os.X_OK)


def test_every_file_it_names_is_there(readme, request):
    for name in re.findall(r"(?:scenarios|results|asyncsim)/[\w/]+\.(?:toml|png|py)", readme):
        assert (request.config.rootpath / name).exists(), name
