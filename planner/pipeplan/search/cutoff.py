"""What a node asks a formulation for, what it learns from the report, and when it is done.

::

    incumbent ─────────┬───────
                       │ gap          what a node may still gain there is not asked for
    cutoff    ─────────┴───────
                  ▲
    bound     ────┘
"""

from typing import Any

from pipeplan.search.branch_and_bound import Node, Prover
from pipeplan_formulations.common.report import Limits, Report, Status, Stop

ACCURACY = 0.1
"""How close a part's bound comes to its optimum, as a part of the share that the cutoff lies below the incumbent."""


def below(value: int, share: float) -> int:
    """A value less that share of it, rounded up."""
    return value - int(share * value)


def cutoff(prover: Prover) -> int | None:
    """Nanoseconds from which on values do not matter; None while there is no plan."""
    return None if prover.value is None else below(prover.value, prover.limits.gap)


def closed(node: Node, prover: Prover) -> bool:
    """Whether there is nothing to gain below the node. The cutoff never rises, so the node need not be kept."""
    least = cutoff(prover)
    return least is not None and node.bound >= least


def precise(prover: Prover, time: float) -> Limits:
    """Limits for a part of the search."""
    return Limits(time, ACCURACY * prover.limits.gap, prover.limits.workers, prover.limits.seed)


def learned(node: Node, report: Report[Any]) -> bool:
    """Raise the node's bound to what the report proves; False if that is that nothing below it is feasible.

    Raises
    ------
    KeyboardInterrupt
        If the user interrupted the solver: the search ends as well.
    """
    if report.stop is Stop.INTERRUPT:
        raise KeyboardInterrupt
    if report.status is Status.INFEASIBLE:
        return False
    node.bound = max(node.bound, report.bound)
    return True
