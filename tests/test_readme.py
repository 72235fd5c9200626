"""The README tells the truth: its code runs, its numbers are those of the committed results."""

import itertools
import os
import re
import shlex

import numpy as np
import pytest

from asyncsim.protocols import WaitAvoidingGroups
from asyncsim.reports import TITLES, side_by_side
from asyncsim.scenario import run
from asyncsim.scenario_files import load_scenarios
from asyncsim.sweeps.axes import load as load_sweep_file
from asyncsim.sweeps.axes import rows


@pytest.fixture
def readme(request):
    return (request.config.rootpath / "README.md").read_text(encoding="utf-8")


def blocks(text, language):
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_its_python_runs(readme, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    found = blocks(readme, "python")
    assert len(found) == 13
    for code in found:
        if "import flax" in code or "import equinox" in code:
            continue  # test_other_libraries runs these
        exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    out = capsys.readouterr().out
    assert "[0 1 2 1 3 2]" in out
    assert "Memory(server_buffers=3.0, " in out
    last = np.array(next(line for line in reversed(out.splitlines()) if line[:1] == "[").strip("[]").split(), float)
    assert last == pytest.approx([1, -2, 0.5], abs=0.1)
    assert (tmp_path / "overview.png").stat().st_size > 10_000


def test_its_table_is_the_committed_one(readme, request):
    table = (request.config.rootpath / "results" / "quickstart" / "table.txt").read_text(encoding="utf-8")
    assert table.strip("\n") in readme


def test_its_scenario_runs(readme, tmp_path):
    toml, *_ = blocks(readme, "toml")
    (tmp_path / "mine.toml").write_text(toml, encoding="utf-8")
    (scenario,) = load_scenarios(tmp_path / "mine.toml", ["stop={updates=50}"]).values()
    assert run(scenario).summary["updates"] == 50


def test_its_clusters_are_right(readme, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows_of_ranks = "".join(f"{rank},{0.1 + rank / 100}\n" for _ in range(3) for rank in range(8))
    (tmp_path / "steps.csv").write_text("rank,seconds\n" + rows_of_ranks)
    scenario, _, *clusters = (text for text in blocks(readme, "toml") if "[variants." not in text)
    rest = scenario[scenario.index("[algorithm]") :]
    for cluster, workers in zip(clusters, (16, 12), strict=True):
        (tmp_path / "mine.toml").write_text(cluster + rest, encoding="utf-8")
        (scenario,) = load_scenarios(tmp_path / "mine.toml", ["stop={updates=50}"]).values()
        assert scenario.cluster.num_workers == workers
        assert run(scenario).summary["updates"] == 50


def test_its_peers_meet(readme, tmp_path):
    (toml,) = (text for text in blocks(readme, "toml") if "[variants." in text)
    (tmp_path / "peers.toml").write_text(toml, encoding="utf-8")
    found = load_scenarios(tmp_path / "peers.toml")
    assert list(found) == ["wagma", "allreduce", "gossip"]
    assert found["wagma"].protocol == WaitAvoidingGroups(group_size=4, sync_period=10)
    (table,) = (text for text in blocks(readme, "text") if "message age" in text)
    titles = {k: v for k, v in TITLES.items() if f"\n{v}  " in table}
    assert table.count("\n") == 1 + len(titles)
    shown = side_by_side(found, [scenario.record().summary() for scenario in found.values()], titles)
    assert [line.split() for line in table.splitlines()] == [line.split() for line in shown.splitlines()]
    run(load_scenarios(tmp_path / "peers.toml", ["stop={updates=80}"])["wagma"])


def test_its_sweep_is_one(readme, tmp_path, request):
    _, toml, *_ = blocks(readme, "toml")
    (tmp_path / "quickstart.toml").write_bytes((request.config.rootpath / "scenarios" / "quickstart.toml").read_bytes())
    (tmp_path / "sweep.toml").write_text(toml, encoding="utf-8")
    found = rows(*load_sweep_file(tmp_path / "sweep.toml"))
    assert len(found) == 2 * 3 * 4 * 2
    assert {(row.scenario.cluster.num_workers, row.scenario.batch_size) for row in found} == {(4, 16), (16, 64)}
    assert len(rows(*load_sweep_file(request.config.rootpath / "scenarios" / "learning_rates.toml"))) == 64


def test_its_commands_are_right(readme, request, monkeypatch, tmp_path):
    """Every setting that it shows is one that the quick start has."""
    commands = [
        shlex.split(line) for b in blocks(readme, "sh") for line in b.splitlines() if line.startswith("asyncsim")
    ]
    assert commands
    for words in commands:
        settings = [after for before, after in itertools.pairwise(words) if before == "--set"]
        load_any = load_sweep_file if words[1] == "sweep" else load_scenarios
        assert load_any(request.config.rootpath / words[2], settings)


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
