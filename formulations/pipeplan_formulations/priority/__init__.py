"""Sums of gradients on one link, front layers first: when the next forward ends, in which order, with what left out.

`Sums` may be interrupted at any time, and some of them may be lost. `Chunks` may not be interrupted, and leave in one
order. Both take at least the closed form of `instance`.
"""

from pipeplan_formulations.common.backends import Backend, backend_of
from pipeplan_formulations.common.report import Limits, Progress, Report
from pipeplan_formulations.priority import closed, cpsat, front_first, linear
from pipeplan_formulations.priority.instance import BUDGETS_BELOW, Chunks, Losses, Order, Sums

__all__ = ["BACKENDS", "BUDGETS_BELOW", "ORDERS", "Chunks", "Losses", "Order", "Sums", "order", "solve"]

BACKENDS: dict[str, Backend[Sums, Losses]] = {"closed": closed, "linear": linear}
"""Back ends of sums that may be interrupted, by name; 'closed' only where nothing may be lost."""
ORDERS: dict[str, Backend[Chunks, Order]] = {"front-first": front_first, "cpsat": cpsat}
"""Back ends of chunks, by name."""


def solve(
    problem: Sums,
    limits: Limits,
    hint: Losses | None = None,
    on_progress: Progress | None = None,
    backend: str = "linear",
) -> Report[Losses]:
    """Find what to leave out so that the next forward ends first, by one of `BACKENDS`.

    Raises
    ------
    ValueError
        If no backend has this name, or it does not take the problem.
    """
    return backend_of(BACKENDS, backend).solve(problem, limits, hint, on_progress)


def order(
    problem: Chunks,
    limits: Limits,
    hint: Order | None = None,
    on_progress: Progress | None = None,
    backend: str = "cpsat",
) -> Report[Order]:
    """Find the order of chunks in which the next forward ends first, by one of `ORDERS`.

    Raises
    ------
    ValueError
        If no backend has this name.
    """
    return backend_of(ORDERS, backend).solve(problem, limits, hint, on_progress)
