"""Who imports whom, in fresh interpreters."""

import subprocess
import sys
from pathlib import Path

import pytest

import asyncsim

TIMING = """
import asyncsim
cluster = asyncsim.Cluster((asyncsim.Workers(asyncsim.Gamma(1.0, 0.1), 4),), latency=0.01)
for protocol in (asyncsim.Asynchronous(), asyncsim.Synchronous()):
    trace = asyncsim.record(cluster, protocol, asyncsim.Workload(batch_size=8), stop=asyncsim.Stop(updates=10))
    trace.summary(), trace.spans, repr(trace)
"""
LEARNING = """
import asyncsim
from asyncsim.testing import check_algorithm
run = asyncsim.replay(asyncsim.Trace.from_arrivals([0, 1, 0]), asyncsim.ASGD(0.1), asyncsim.Quadratic())
check_algorithm(asyncsim.SGP(0.1))
"""
HELP = """
from asyncsim.cli import main
try:
    main(["--help"])
except SystemExit as end:
    assert end.code == 0
"""


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        (TIMING, ("jax", "matplotlib", "optax")),
        (HELP, ("jax", "matplotlib", "numpy")),
        (LEARNING, ("simpy", "matplotlib")),
    ],
    ids=["timing", "help", "learning"],
)
def test_what_is_not_imported(code, absent):
    check = f"{code}\nimport sys\nprint('ABSENT', [m for m in {absent!r} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-W", "error", "-c", check], capture_output=True, text=True, check=False)
    assert out.stdout.splitlines()[-1:] == ["ABSENT []"], out.stderr


def test_no_half_names_the_other_halfs_library():
    package = Path(asyncsim.__file__).parent
    halves = {
        "jax": [
            "cluster",
            "network",
            "protocols",
            "views.py",
            "trace.py",
            "recorder.py",
            "recording.py",
            "records.py",
            "vocabulary.py",
            "workload.py",
        ],
        "simpy": ["algorithms", "data", "problems", "replaying", "trace.py", "recorder.py", "runs.py", "testing.py"],
    }
    for library, places in halves.items():
        for place in places:
            where = package / place
            for file in [where] if where.is_file() else where.glob("*.py"):
                lines = file.read_text().splitlines()
                assert not [x for x in lines if x.strip().startswith((f"import {library}", f"from {library}"))], file


def test_every_public_name_is_there_and_documented():
    for name in asyncsim.__all__:
        thing = getattr(asyncsim, name)
        assert (thing.__doc__ or "").strip(), name
    assert set(dir(asyncsim)) == set(asyncsim.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        asyncsim.nothing  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'Allreduce'; did you mean 'AllreduceSGD'"):
        asyncsim.Allreduce  # noqa: B018
