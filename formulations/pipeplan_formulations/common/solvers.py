"""The solvers' modules, imported late and in the one order that works, and their versions.

OR-Tools comes before PuLP: PuLP loads ``highspy`` if it is installed, whose library clashes with the one in OR-Tools
when it is first.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from threading import Event, Thread, current_thread, main_thread
from typing import Any

from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits, Stop
from pipeplan_formulations.common.signals import received

WORKERS = 8
"""Most threads that CP-SAT is given."""
POLL = 0.05
"""Seconds between two requests to stop."""


def cp_model() -> Any:
    """``ortools.sat.python.cp_model``."""
    return import_module("ortools.sat.python.cp_model")


def cpsat_solver(limits: Limits) -> Any:
    """A ``CpSolver`` within the limits.

    Presolve is off. In OR-Tools 9.15 some of its rules can remove every optimal solution, and CP-SAT then proves a
    wrong optimum or calls a feasible model infeasible (google/or-tools#5293 and #5274). Of 32,000 small chain
    partitions solved from nothing it got about 30 wrong with presolve, as many with the rules that #5293 names
    switched off, and none without presolve, which costs these models no time. Beyond ten workers presolve off has been
    reported wrong too (#5295), so there are at most `WORKERS`.

    Ctrl-C stops a solve, which then returns what it has, with ``interrupted`` set. CP-SAT's own answer to the signal is
    switched off, as Python would never learn of it; instead the solve runs in a thread of its own, beside a main thread
    that Python's handlers can reach.
    """
    cp = cp_model()

    class Solver(cp.CpSolver):  # type: ignore[misc, name-defined]
        interrupted = False

        def solve(self, *arguments: Any) -> Any:
            if current_thread() is not main_thread():
                return super().solve(*arguments)
            ended = Event()  # Thread.join takes a thread for ended if a signal comes at the wrong moment
            answers: list[Any] = []
            errors: list[BaseException] = []
            solve = super().solve

            def run() -> None:
                try:
                    answers.append(solve(*arguments))
                except BaseException as error:
                    errors.append(error)
                finally:
                    ended.set()

            Thread(target=run, name="cp-sat", daemon=True).start()
            while not ended.is_set():
                try:
                    ended.wait(POLL if self.interrupted else None)
                except KeyboardInterrupt:
                    self.interrupted = True
                if self.interrupted:  # again and again, as a search that has not begun does not notice
                    self.stop_search()
            if errors:
                raise errors[0]
            return answers[0]

    solver = Solver()
    solver.parameters.max_time_in_seconds = max(limits.time, 0.05)
    solver.parameters.num_workers = min(limits.workers, WORKERS)
    solver.parameters.random_seed = limits.seed
    solver.parameters.relative_gap_limit = limits.gap
    solver.parameters.cp_model_presolve = False
    solver.parameters.catch_sigint_signal = False
    return solver


def why_stopped(solver: Any, clock: Clock) -> Stop:
    """Why a solver of `cpsat_solver` ended without a proof: a signal, the time, or nothing that it tells."""
    if solver.interrupted or received():
        return Stop.INTERRUPT
    return Stop.TIME if clock.over else Stop.EXHAUSTED


def pulp() -> Any:
    """``pulp``, with OR-Tools loaded before it."""
    cp_model()
    return import_module("pulp")


def cpsat_version() -> str:
    """``'ortools 9.15.6755'``."""
    return _version("ortools")


def cbc_version() -> str:
    """``'pulp 3.3.0'``; the CBC it bundles goes with it."""
    return _version("pulp")


def _version(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"{package} (not installed)"
