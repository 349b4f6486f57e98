"""Worker processes that solve cells, a limited number at a time, one process per cell.

A worker that crashes, hangs or is killed for memory fails its own cell only.
"""

import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any

PRELOADED = ("ortools.sat.python.cp_model", "pipeplan.solve", "pipeplan.analysis.sweep.work")
"""Modules that workers need, imported once in the process of which workers are copies."""
PATIENCE = 1.0
"""Most seconds between two checks of the deadlines."""


@dataclass(frozen=True)
class Task:
    """A running worker; ``key`` identifies its cell. After ``deadline`` (monotonic seconds) it is ended."""

    key: int
    process: BaseProcess
    deadline: float


class WorkerPool:
    """A pool of at most ``size`` workers; leaving the ``with`` block ends those that still run."""

    def __init__(self, size: int) -> None:
        methods = multiprocessing.get_all_start_methods()
        self._context: Any = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
        if "forkserver" in methods:  # every worker starts as a copy of a process that has the solvers loaded
            self._context.set_forkserver_preload([*PRELOADED])
        self._size = size
        self._tasks: list[Task] = []

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        for task in self._tasks:
            task.process.kill()
        for task in self._tasks:
            task.process.join()
        self._tasks.clear()

    @property
    def busy(self) -> int:
        """Number of running workers."""
        return len(self._tasks)

    @property
    def free(self) -> bool:
        """True if another worker may start."""
        return len(self._tasks) < self._size

    def start(self, key: int, target: Callable[..., None], arguments: tuple[Any, ...], seconds: float) -> None:
        """Start a worker that calls ``target(*arguments)``, and end it after ``seconds``."""
        process = self._context.Process(target=target, args=arguments, daemon=True)
        process.start()
        self._tasks.append(Task(key, process, time.monotonic() + seconds))

    def finished(self) -> list[tuple[int, str]]:
        """Wait until some worker has ended; return keys, each with its error (empty if there is none)."""
        while True:
            wait([task.process.sentinel for task in self._tasks], timeout=PATIENCE)
            late = [task for task in self._tasks if task.process.is_alive() and time.monotonic() > task.deadline]
            for task in late:
                task.process.kill()
                task.process.join()
            ended = [task for task in self._tasks if not task.process.is_alive()]
            if ended or not self._tasks:
                self._tasks = [task for task in self._tasks if task not in ended]
                return [(task.key, self._verdict(task, task in late)) for task in ended]

    @staticmethod
    def _verdict(task: Task, late: bool) -> str:
        code = task.process.exitcode
        task.process.close()
        if late:
            return "its process did not end in time and was killed"
        if code and code < 0:
            return f"its process was ended by signal {-code}" + (" (out of memory?)" if code == -9 else "")
        return f"its process ended with exit code {code}" if code else ""
