"""What one process of a sweep does: records a trace, or runs a scenario along one, and leaves a file or a folder."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable
from multiprocessing import connection, parent_process
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from asyncsim.errors import InputError
from asyncsim.scenario import Scenario, run
from asyncsim.trace import Trace


class Failure(NamedTuple):
    """Why something did not come to its end."""

    error: str
    traceback: str


class Job(NamedTuple):
    """The trace of a scenario, or its run, and where it goes."""

    scenario: Scenario
    trace: Path
    run: Path | None = None  # None: the trace alone
    whole: bool = False  # keep the run's every table

    def work(self) -> Failure | None:
        """Do it, all or nothing; what went wrong is returned, as not every exception can travel between processes."""
        try:
            if self.run is None:
                self.scenario.record().save(self.trace)
            else:
                done = run(self.scenario, trace=Trace.load(self.trace))
                put_in_place(self.run, lambda folder: done.write(folder, brief=not self.whole))
        except InputError as error:
            return Failure(str(error), "")
        except (Exception, SystemExit) as error:
            text = f"{type(error).__name__}: {error}".splitlines()[0]
            return Failure(text, "".join(traceback.format_exception(error)))
        return None


def put_in_place(path: Path, fill: Callable[[Path], None]) -> None:
    """Fill a new folder, then give it its name."""
    temporary = Path(tempfile.mkdtemp(prefix=".", dir=path.parent))
    try:
        temporary.chmod(0o755)
        fill(temporary)
        # one that is there is of the same run: finished by a process that outlived its sweep, or in brief
        shutil.rmtree(path, ignore_errors=True)
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def begin(cache: str | None, plugins: tuple[str, ...]) -> None:
    """In a new process, before JAX does anything."""
    os.environ["NPROC"] = "1"  # threads of XLA: one, so that processes do not crowd each other
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits for this one
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    tqdm.set_lock(threading.RLock())  # its own is one between processes, which a killed process would leave behind
    import jax

    # a process that was killed may have left half a program behind: it is compiled again
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")
    if cache is not None:
        jax.config.update("jax_compilation_cache_dir", cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    sys.path.insert(0, "")
    for module in plugins:
        importlib.import_module(module)


def _leave_with_parent() -> None:
    """A process whose parent was killed would wait for work for ever."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
