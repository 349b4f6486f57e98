"""Ways that take no figure less than another one does, but for a small part of it."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from pipeplan.core.model import LayerCost, Model
from pipeplan.costs.sharding.teams import Teams

MISSING = 2**50
"""Figure of a way at a micro-batch size at which it is not possible."""
SUMMED = ("update", "saved", "output")


def figures(model: Model, teams: Teams) -> NDArray[np.int64]:
    """Return what ways are compared by, given the costs of a device: on each kind at each micro-batch size.

    Sums over all layers, and the largest workspace; where layers may be recomputed, the time with another forward too.
    """
    parameters, missing = sum(layer.parameters for layer in model.layers), (MISSING,) * (6 + teams.again)
    of = {(profile.device, profile.micro_batch): profile.costs for profile in model.profiles}
    rows = []
    for kind in teams.kinds:
        for size in teams.sizes:
            costs = of.get((kind.name, size))
            rows.append(missing if costs is None else (*_of_costs(costs, teams.again), parameters))
    return np.array(rows, np.int64).ravel()


def _of_costs(costs: Sequence[LayerCost], again: bool) -> Iterator[int]:
    """Yield the figures of layers, of which many have the same object as their costs."""
    places: dict[int, list[LayerCost]] = {}
    for cost in costs:
        places.setdefault(id(cost), []).append(cost)
    alike = [(own[0], len(own)) for own in places.values()]
    yield sum((cost.forward + cost.backward) * count for cost, count in alike)
    if again:
        yield sum((2 * cost.forward + cost.backward) * count for cost, count in alike)
    for name in SUMMED:
        yield sum(getattr(cost, name) * count for cost, count in alike)
    yield max(cost.workspace for cost, _ in alike)


def unlike(rows: Sequence[NDArray[np.int64]], kept: list[NDArray[np.int64]], parts: int) -> list[int]:
    """Return the numbers of the ways that are not nearly as large in every figure as one that is kept, in order.

    Parameters
    ----------
    rows : sequence of array of int
        The figures of each way. Those with the least sum are kept first.
    kept : list of array of int
        Figures of ways that are kept already; those of the returned ones are appended.
    parts : int
        A figure is nearly as large as another one that exceeds it by at most one part in so many.
    """
    found: list[int] = []
    for k in sorted(range(len(rows)), key=lambda k: sum(map(int, rows[k]))):
        most = rows[k] + rows[k] // parts
        if not any((other <= most).all() for other in kept):
            found.append(k)
            kept.append(rows[k])
    return sorted(found)
