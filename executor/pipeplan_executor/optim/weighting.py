"""What each micro-batch counts in the mean loss of its batch."""

from collections.abc import Callable, Sequence
from typing import Any

from pipeplan.core.errors import InputError


def shares(weight: Callable[[Any], float] | None, targets: Sequence[Any]) -> list[float]:
    """Parts of 1, one a micro-batch, in proportion to what `Workload.weight` says of its targets; else equal.

    Raises
    ------
    InputError
        If weights are negative, or all zero.
    """
    weights = [1.0 if weight is None else float(weight(part)) for part in targets]
    total = sum(weights)
    if not total > 0 or min(weights) < 0:
        raise InputError(
            f"the micro-batches of this batch weigh {weights}: no weight may be negative, and one must be positive; "
            "leave out batches in which nothing counts, like those of padding only"
        )
    return [weight / total for weight in weights]
