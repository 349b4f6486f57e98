"""The solvers' modules, imported late and in the one order that works, and their versions.

OR-Tools comes before PuLP: PuLP loads ``highspy`` if it is installed, whose library clashes with the one in OR-Tools
when it is first.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pipeplan_formulations.report import Limits


def cp_model() -> Any:
    """``ortools.sat.python.cp_model``."""
    return import_module("ortools.sat.python.cp_model")


def cpsat_solver(limits: Limits) -> Any:
    """A ``CpSolver`` within the limits.

    One family of presolve rules (linear rows against at-most-one rows) is off: in OR-Tools 9.15 it can remove every
    optimal solution, and CP-SAT then proves a wrong optimum (google/or-tools#5293, seen on chain partitions too).
    """
    solver = cp_model().CpSolver()
    solver.parameters.max_time_in_seconds = max(limits.time, 0.05)
    solver.parameters.num_workers = limits.workers
    solver.parameters.random_seed = limits.seed
    solver.parameters.relative_gap_limit = limits.gap
    solver.parameters.presolve_inclusion_work_limit = 0
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
