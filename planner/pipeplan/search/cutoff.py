"""When a node is done: what its bound must reach so that the gap that was asked for is closed.

::

    incumbent ─────────┬───────
                       │ gap          what a node may still gain there is not asked for
    cutoff    ─────────┴───────
                  ▲
    bound     ────┘
"""

from pipeplan.search.prove import Node, Prover
from pipeplan_formulations.report import Limits

ACCURACY = 0.1
"""How close a part's bound comes to its optimum, as a share of the gap asked for of the whole."""


def cutoff(prover: Prover) -> int | None:
    """Nanoseconds from which on values do not matter; None while there is no plan."""
    return None if prover.value is None else prover.value - int(prover.limits.gap * prover.value)


def closed(node: Node, prover: Prover) -> bool:
    """Whether there is nothing to gain below the node, unless the incumbent changes."""
    least = cutoff(prover)
    return least is not None and node.bound >= least


def done(node: Node, prover: Prover) -> bool:
    """The same, and the prover keeps the bound in mind. The cutoff never rises, so the node need not be kept."""
    if closed(node, prover):
        prover.settle(node.bound)
        return True
    return False


def precise(prover: Prover, time: float) -> Limits:
    """Limits for a part of the search."""
    return Limits(time, ACCURACY * prover.limits.gap, prover.limits.workers, prover.limits.seed)
