"""The solvers' modules, imported late and in the one order that works, and their versions.

OR-Tools comes before PuLP: PuLP loads ``highspy`` if it is installed, whose library clashes with the one in OR-Tools
when it is first.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from signal import SIGINT, getsignal, signal
from threading import current_thread, main_thread
from typing import Any

from pipeplan_formulations.report import Limits

WORKERS = 8
"""Most threads that CP-SAT is given."""


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

    Ctrl-C stops a solve, which then returns what it has. Behind it OR-Tools leaves the system's own answer to the next
    Ctrl-C, which is to end the process; so Python's is put back.
    """
    cp = cp_model()

    class Solver(cp.CpSolver):  # type: ignore[misc, name-defined]
        def solve(self, *arguments: Any) -> Any:
            try:
                return super().solve(*arguments)
            finally:
                answer = getsignal(SIGINT)
                if answer is not None and current_thread() is main_thread():
                    signal(SIGINT, answer)

    solver = Solver()
    solver.parameters.max_time_in_seconds = max(limits.time, 0.05)
    solver.parameters.num_workers = min(limits.workers, WORKERS)
    solver.parameters.random_seed = limits.seed
    solver.parameters.relative_gap_limit = limits.gap
    solver.parameters.cp_model_presolve = False
    return solver


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
