"""What one process of a sweep does: records a trace, or runs a scenario along one, and leaves a file or a folder."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
import traceback
from collections.abc import Callable
from multiprocessing import connection, parent_process
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from asyncsim.compilation import keep_programs
from asyncsim.errors import InputError
from asyncsim.plugins import import_plugins
from asyncsim.scenario import Scenario, run
from asyncsim.trace import Trace


class Failure(NamedTuple):
    """Why something did not come to its end."""

    error: str
    traceback: str = ""

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """An exception in one line; of one that nobody foresaw, where it came from as well."""
        if isinstance(error, InputError):
            return cls(str(error))
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        return cls(text, "".join(traceback.format_exception(error)))


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
                done = run(self.scenario, trace=self._load())
                put_in_place(self.run, lambda folder: done.write(folder, brief=not self.whole))
        except (Exception, SystemExit) as error:
            return Failure.of(error)
        return None

    def _load(self) -> Trace:
        try:
            return Trace.load(self.trace)
        except InputError:  # lost or damaged: it can be had again
            self.scenario.record().save(self.trace)
            return Trace.load(self.trace)


def put_in_place(path: Path, fill: Callable[[Path], None]) -> None:
    """Fill a new folder, then give it its name."""
    temporary, old = (Path(tempfile.mkdtemp(prefix=".", dir=path.parent)) for _ in range(2))
    try:
        temporary.chmod(0o755)
        fill(temporary)
        if path.exists():  # of the same run: in brief, damaged, or finished by a process that outlived its sweep
            path.rename(old / path.name)
        temporary.rename(path)
    finally:
        for folder in (temporary, old):
            shutil.rmtree(folder, ignore_errors=True)


def begin(cache: str | None, plugins: tuple[str, ...]) -> None:
    """In a new process, before JAX does anything."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits for this one
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    tqdm.set_lock(threading.RLock())  # its own is one between processes, which a killed process would leave behind
    keep_programs(cache)
    import_plugins(plugins)


def _leave_with_parent() -> None:
    """A process whose parent was killed would wait for work for ever."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
