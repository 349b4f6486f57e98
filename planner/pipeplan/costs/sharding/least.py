"""The least that each member of a team takes for a layer, before any way to split it is priced.

`least_work` knows no way: of each operator one of the most parts, and nothing that is sent. `least_steps` has the least
of all strategies along one axis, redistributions, sums and updates included: one number in place of a frontier.

docs/bounds/teams.md has the proofs ("Ways that are not known yet").
"""

from collections.abc import Sequence
from functools import partial
from math import gcd

import numpy as np
from numpy.typing import NDArray

from pipeplan.core.cluster import DeviceKind
from pipeplan.core.operators import Operator
from pipeplan.costs.sharding.coordinates import combined
from pipeplan.costs.sharding.device_costs import if_split
from pipeplan.costs.sharding.layer_ways import LayerWays
from pipeplan.costs.sharding.placements import ends_of
from pipeplan.costs.sharding.rooflines import Rooflines
from pipeplan.costs.sharding.teams import Teams
from pipeplan.costs.sharding.ways import Between, TeamWays
from pipeplan_formulations.common.clock import no_limit
from pipeplan_formulations.sharding import least_sums

COUNTED, IN_HALVES = ("forward", "backward"), ("forward", "input_gradient", "weight_gradient")
ONCE = combined(("summed", "update"))
"""What a member does once per step."""


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


def least_steps(
    ways: TeamWays, between: Between, kind: DeviceKind, size: int, count: int, every: Sequence[tuple[str, ...]]
) -> NDArray[np.int64]:
    """Return for each layer the least nanoseconds of a member, in any way along one axis: in a step, and in one pass.

    The latter is of one micro-batch, without what is done once. All sums are found at once.

    Parameters
    ----------
    ways : TeamWays
    between : Between
        What passes between layers in parts.
    kind : DeviceKind
    size : int
        Of micro-batches.
    count : int
        Micro-batches of the step, in each of which all passes of a row run. Sums over the team and the update run once.
    every : sequence of tuple of str
        Passes, row by row.

    Returns
    -------
    array, shape (rows, 2, n)

    Raises
    ------
    BeyondIntegersError, TooLargeError
    """
    known: dict[LayerWays, list[tuple[int, int]]] = {}
    found = []
    for number, (layer, cost) in enumerate(zip(ways.model.layers, ways.teams.costs(kind, size), strict=True)):
        if not layer.operators:
            wholes = [sum(getattr(cost, name) for name in passes) for passes in every]
            found.append([(count * whole + cost.update, whole) for whole in wholes])
            continue
        own = ways.layer(number, kind, size, *ends_of(*between, number))
        if own not in known:
            known[own] = _least_step(own, count, every)
        found.append(known[own])
    return np.array(found, np.int64).transpose(1, 2, 0)


def _least_step(own: LayerWays, count: int, every: Sequence[tuple[str, ...]]) -> list[tuple[int, int]]:
    """Nanoseconds of a layer in a step, and in one pass: of whole operators, or of split ones with what this adds.

    0 if there is no choice: then no way has this between its layers.
    """
    problem, layer = own.problem, own.rooflines
    rows = combined(*every)
    sums = least_sums(problem.sharding.project(np.concatenate([count * rows + ONCE, rows])), no_limit())
    found = []
    for passes, *least in zip(every, sums, sums[len(every) :], strict=False):
        constant, whole = (sum(map(each, passes)) for each in (layer.constant, partial(getattr, layer.cost)))
        more = sum(map(if_split(problem).__getitem__, passes))
        costs = [(many, other + many * constant) for many, other in zip((count, 1), least, strict=True)]
        step, once = (max(own, min(many * whole, own + many * more)) for many, own in costs)
        found.append((step, once))
    return found or [(0, 0)] * len(every)


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
