"""Back ends of a problem: modules or objects with a ``solve`` function, looked up by name.

Importing them loads no solver; `solvers` does so when a model is built for it.
"""

from collections.abc import Mapping
from typing import Protocol, TypeVar

from pipeplan_formulations.common.report import Limits, Progress, Report

Problem = TypeVar("Problem", contravariant=True)
Solution = TypeVar("Solution")


class Backend(Protocol[Problem, Solution]):
    """A module or object that solves a problem.

    To add one, write a module with this ``solve`` and name it in ``BACKENDS`` of the problem's package. To add a solver
    of linear models, write a `MipSolver` beside those in `common.mip`, and name it in ``common.mip.SOLVERS``.
    """

    def solve(
        self, problem: Problem, limits: Limits, hint: Solution | None = None, on_progress: Progress | None = None
    ) -> Report[Solution]:
        """Minimise the objective, from ``hint`` if it is a solution; call ``on_progress`` with each improvement."""
        ...


def backend_of(backends: Mapping[str, Backend[Problem, Solution]], name: str) -> Backend[Problem, Solution]:
    """Return the back end of this name.

    Raises
    ------
    ValueError
        If no back end has this name.
    """
    if name not in backends:
        raise ValueError(f"backend {name!r} is not known; choose from {', '.join(backends)}")
    return backends[name]
