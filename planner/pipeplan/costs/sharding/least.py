"""The least that each member of a team computes, however operators are split: a bound for ways that are not known yet.

docs/bounds/teams.md has the proof ("Ways that are not known yet").
"""

from math import gcd

import numpy as np
from numpy.typing import NDArray

from pipeplan.core.cluster import DeviceKind
from pipeplan.core.operators import Operator
from pipeplan.costs.sharding.rooflines import Rooflines
from pipeplan.costs.sharding.teams import Teams

COUNTED, IN_HALVES = ("forward", "backward"), ("forward", "input_gradient", "weight_gradient")


def least_work(teams: Teams, kind: DeviceKind, size: int, passes: tuple[str, ...] = COUNTED) -> NDArray[np.int64]:
    """Return for each layer the least nanoseconds of forward and backward of a member, in any way, on any mesh."""
    known: dict[object, int] = {}
    found = []
    for number, (layer, cost) in enumerate(zip(teams.model.layers, teams.costs(kind, size), strict=True)):
        key = layer.operators, cost
        if not layer.operators:
            known[key] = sum(getattr(cost, name) for name in passes)
        elif key not in known:
            known[key] = _least(teams.rooflines(number, kind, size), teams.team, passes)
        found.append(known[key])
    return np.array(found, np.int64)


def _least(rooflines: Rooflines, team: int, passes: tuple[str, ...]) -> int:
    """Nanoseconds of what every member runs whole, and of the least part of each operator."""
    parts = {each.name: most_parts(each, team, rooflines.micro_batch) for each in rooflines.graph.operators}
    return sum(map(rooflines.constant, passes)) + sum(
        sum(rooflines.least(each, parts[each.name], passes)) for each in rooflines.graph.operators
    )


def most_parts(operator: Operator, team: int, micro_batch: int) -> int:
    """Return into how many parts a team may split an operator at most: loops, and samples, in numbers that divide them.

    The members along a loop divide both it and the team.
    """
    parts = gcd(micro_batch, team)
    for length in operator.loops.values():
        parts *= gcd(length, team)
    return min(parts, team)
