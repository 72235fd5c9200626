"""Jobs on an executor: each trace before the runs along it, and every process replaced that dies."""

from __future__ import annotations

import os
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from multiprocessing import active_children, get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from asyncsim.compilation import program_cache
from asyncsim.errors import InputError
from asyncsim.interruption import signals_held
from asyncsim.sweeps.working import Failure, Job, begin

DIED = Failure("its process died, and died again when it was tried alone (killed, or out of memory)")
PATIENCE = 0.2  # seconds until an interruption is noticed
# of XLA and of what NumPy may be built with: so that processes do not crowd each other
ONE_THREAD = {"NPROC": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class Here(Executor):
    """Does everything at once, in this process."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class Processes(Executor):
    """A pool of processes of one thread each, that is made anew when one of them dies."""

    def __init__(self, count: int, plugins: tuple[str, ...]):
        self.count, self._begin = count, (program_cache(1), plugins)
        self._pool: ProcessPoolExecutor | None = None
        self._own: set[BaseProcess] = set()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        with _to_start_processes():
            others = set(active_children())
            try:
                future = self._running().submit(fn, *args, **kwargs)
            except BrokenProcessPool:  # a process died while it had nothing to do
                self.shutdown()
                future = self._running().submit(fn, *args, **kwargs)
            self._own |= set(active_children()) - others
        return future

    def _running(self) -> ProcessPoolExecutor:
        if self._pool is None:
            context = get_context("spawn")  # a fork of a process that runs JAX hangs
            self._pool = ProcessPoolExecutor(self.count, context, begin, self._begin)
        return self._pool

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = True) -> None:
        """End all processes at once; what they are doing is lost."""
        if self._pool is not None:
            for process in self._own:
                process.kill()
            self._pool.shutdown(wait, cancel_futures=cancel_futures)
            self._pool, self._own = None, set()


@contextmanager
def _to_start_processes() -> Iterator[None]:
    """What a new process finds: one thread, and no script of the caller's to import, which may have no
    ``if __name__ == '__main__'``."""
    main, environment = sys.modules["__main__"], dict(os.environ)
    sys.modules["__main__"] = types.ModuleType("__main__")
    os.environ.update(ONE_THREAD)
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        for name in ONE_THREAD:
            if name in environment:
                os.environ[name] = environment[name]
            else:
                del os.environ[name]


def execute(jobs: Iterable[Job], executor: Executor, done: Callable[[Job, Failure | None], None]) -> None:
    """Do all jobs, each trace first that is not there; ``done`` hears of each run.

    On ``Processes`` there are as many jobs under way as processes, and a job whose process died is tried once more, by
    itself, so that it is known which one it was.
    """
    own = isinstance(executor, Processes)
    window = executor.count if isinstance(executor, Processes) else 1 if isinstance(executor, Here) else 10**6
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

    with signals_held() if own else nullcontext() as let_through:
        try:
            while ready or suspects or flying:
                while ready and not suspects and len(flying) < window:
                    job = ready.popleft()
                    flying[_submitted(executor, job)] = job
                alone = bool(suspects) and not flying
                if alone:
                    job = suspects.popleft()
                    flying[_submitted(executor, job)] = job
                for future in finished(flying, let_through):
                    job = flying.pop(future)
                    try:
                        finish(job, future.result())
                    except BrokenExecutor as error:
                        if not own:
                            finish(job, Failure(f"the executor broke: {error}"))
                        elif alone:
                            finish(job, DIED)
                        else:
                            suspects.append(job)
                        if own:
                            executor.shutdown()
                    except Exception as error:  # of an executor of the user's own: cancelled, cannot pickle, ...
                        finish(job, Failure.of(error))
        finally:
            if own:
                executor.shutdown()


def _submitted(executor: Executor, job: Job) -> Future[Failure | None]:
    try:
        return executor.submit(job.work)
    except RuntimeError as error:  # it was shut down
        raise InputError(f"takes no more jobs: {error}", "executor") from None


def finished(flying: Iterable[Future[Failure | None]], let_through: Callable[[], None] | None) -> set[Future[Any]]:
    """Those that have come to their end, as soon as there is one."""
    if let_through is None:
        return wait(flying, return_when=FIRST_COMPLETED).done
    while not (done := wait(flying, PATIENCE, FIRST_COMPLETED).done):
        let_through()
    let_through()
    return done
