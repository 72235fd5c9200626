"""Models of other libraries plug in as a loss: the README's examples."""

import re

import numpy as np
import pytest

import asyncsim


@pytest.mark.parametrize("library", ["flax", "equinox"])
def test_it_learns_and_both_engines_agree(library, request, capsys, tmp_path):
    readme = (request.config.rootpath / "README.md").read_text(encoding="utf-8")
    (code,) = (b for b in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if f"import {library}" in b)
    names = {"__name__": "readme"}
    exec(compile(code, library, "exec"), names)
    assert "4 workers, 400 updates" in capsys.readouterr().out
    problem = names["problem"]
    trace = asyncsim.Trace.from_arrivals(np.arange(50) % 3, batch_size=8)
    scan, rows = (
        asyncsim.replay(trace, asyncsim.ASGD(0.05), problem, engine=engine, precision="float64")
        for engine in ("scan", "rows")
    )
    assert scan.evals["loss"][-1] < scan.evals["loss"][0] - 0.1
    assert scan.updates["loss"] == pytest.approx(rows.updates["loss"], abs=1e-10)
    assert scan.evals["loss"] == pytest.approx(rows.evals["loss"], abs=1e-10)
    scan.save(tmp_path / "run")
    assert asyncsim.load(tmp_path / "run").summary == scan.summary
