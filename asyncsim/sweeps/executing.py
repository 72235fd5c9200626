"""Jobs on an executor: each trace before the runs along it, and every process replaced that dies."""

from __future__ import annotations

import os
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

from asyncsim.files import cache_folder
from asyncsim.sweeps.working import Failure, Job, begin

DIED = Failure("its process died, and died again when it was tried alone (killed, or out of memory)", "")


class Here(Executor):
    """Does everything at once, in this process."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class Processes:
    """A pool of processes that is made anew when one of them dies; as many jobs under way as processes."""

    def __init__(self, count: int, plugins: tuple[str, ...]):
        self.count, self._begin = count, (compilation_cache(), plugins)
        self._pool: ProcessPoolExecutor | None = None

    def submit(self, job: Job) -> Future[Failure | None]:
        with _no_main():
            try:
                return self._running().submit(job.work)
            except BrokenProcessPool:  # a process died while it had nothing to do
                self.close()
                return self._running().submit(job.work)

    def _running(self) -> ProcessPoolExecutor:
        if self._pool is None:
            self._others = set(active_children())
            context = get_context("spawn")  # a fork of a process that runs JAX hangs
            self._pool = ProcessPoolExecutor(self.count, context, begin, self._begin)
        return self._pool

    def close(self) -> None:
        """End all processes; what they are doing is lost."""
        if self._pool is not None:
            for process in set(active_children()) - self._others:
                process.kill()
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


@contextmanager
def _no_main() -> Iterator[None]:
    """New processes do not import the caller's script, which may have no ``if __name__ == '__main__'``."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def compilation_cache() -> str | None:
    """The folder where compiled programs are kept for all processes and later sweeps.

    None where JAX was told of one, or where none can be made.
    """
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return None
    try:
        folder = cache_folder() / "compiled"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # nowhere to write, or no home
        return None
    return str(folder) if os.access(folder, os.W_OK | os.X_OK) else None


def execute(jobs: Iterable[Job], executor: Executor | Processes, done: Callable[[Job, Failure | None], None]) -> None:
    """Do all jobs, each trace first that is not there; ``done`` hears of each run.

    A job whose process died is tried once more, by itself, so that it is known which one it was.
    """
    if isinstance(executor, Processes):
        window = executor.count
    else:
        window = 1 if isinstance(executor, Here) else 10**6
    ready: deque[Job] = deque()
    waiting: dict[Path, list[Job]] = {}  # for a trace
    for job in jobs:
        if job.trace in waiting:
            waiting[job.trace].append(job)
        elif job.trace.exists():
            ready.append(job)
        else:
            waiting[job.trace] = [job]
            ready.append(job._replace(run=None))
    suspects: deque[Job] = deque()
    flying: dict[Future[Failure | None], Job] = {}

    def finish(job: Job, failure: Failure | None) -> None:
        if job.run is not None:
            done(job, failure)
            return
        runs = waiting.pop(job.trace)
        if failure is None:
            ready.extendleft(reversed(runs))
        else:
            for run in runs:
                done(run, failure)

    try:
        while ready or suspects or flying:
            while ready and not suspects and len(flying) < window:
                job = ready.popleft()
                flying[_submit(executor, job)] = job
            alone = bool(suspects) and not flying
            if alone:
                job = suspects.popleft()
                flying[_submit(executor, job)] = job
            for future in wait(flying, return_when=FIRST_COMPLETED).done:
                job = flying.pop(future)
                try:
                    finish(job, future.result())
                except BrokenExecutor as error:
                    if not isinstance(executor, Processes):
                        finish(job, Failure(f"the executor broke: {error}", ""))
                        continue
                    executor.close()
                    if alone:
                        finish(job, DIED)
                    else:
                        suspects.append(job)
    finally:
        if isinstance(executor, Processes):
            executor.close()


def _submit(executor: Executor | Processes, job: Job) -> Future[Failure | None]:
    return executor.submit(job) if isinstance(executor, Processes) else executor.submit(job.work)
