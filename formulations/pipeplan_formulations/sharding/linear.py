"""Linear model of the least weighted sum of a sharding's costs, for any MIP solver."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from pipeplan_formulations.common.mip.model import Expression, LinearModel, sum_of
from pipeplan_formulations.common.scaling import Scale
from pipeplan_formulations.sharding.instance import Array, Choice, WeightedSharding, possible


@dataclass(kw_only=True)
class ShardingModel(LinearModel):
    """Linear model with the variables of operators and edges.

    Attributes
    ----------
    chosen : list of dict
        x of each operator: variable of each possible signature.
    flows : list of dict
        z of each edge: variable of each possible pair.
    """

    problem: WeightedSharding
    chosen: list[dict[int, int]] = field(default_factory=list)
    flows: list[dict[tuple[int, int], int]] = field(default_factory=list)

    def read(self, values: list[float]) -> Choice:
        """Choice at a point of the model."""
        return tuple(max(own, key=lambda k: values[own[k]]) for own in self.chosen)

    def point(self, choice: Choice, objective: int) -> list[int]:
        """A value for each variable: the point of a choice that is possible."""
        values = [0] * len(self.lows)
        for own, k in zip(self.chosen, choice, strict=True):
            values[own[k]] = 1
        for flow, (u, v, _) in zip(self.flows, self.problem.problem.edges, strict=True):
            values[flow[choice[u], choice[v]]] = 1
        self.complete(values)
        values[self.objective] = objective
        return values

    def parts(self) -> Iterator[tuple[Array, Array]]:
        """For each operator and edge: variables, and the costs of each, of shape (variables, D)."""
        for own, costs in zip(self.chosen, self.problem.problem.costs, strict=True):
            yield np.array(list(own.values()), np.int64), costs[list(own)]
        for flow, (_, _, costs) in zip(self.flows, self.problem.problem.edges, strict=True):
            yield np.array(list(flow.values()), np.int64), costs[possible(costs)]


def linear_model(problem: WeightedSharding, scale: Scale, low: int, high: int) -> ShardingModel:
    """Build the model with the objective in units of ``scale``, rounded down, from ``low`` to ``high``."""
    model = ShardingModel(problem=problem)
    _choices(model)
    _flows(model)
    _caps(model)
    model.minimize(model.time(low, high))
    weights = np.array(problem.weights, np.int64)
    costs = [
        Expression(dict(zip(own.tolist(), scale.down(table[:, : len(weights)] @ weights).tolist(), strict=True)))
        for own, table in model.parts()
    ]
    model.at_least(Expression({model.objective: 1}) - sum_of(costs))  # weighted sum
    return model


def _choices(model: ShardingModel) -> None:
    """Every operator has one signature."""
    for costs in model.problem.problem.costs:
        own = {k: model.boolean() for k in np.flatnonzero(possible(costs)).tolist()}
        model.equal(dict.fromkeys(own.values(), 1), 1)
        model.chosen.append(own)


def _flows(model: ShardingModel) -> None:
    """The flow on an edge leaves the signature of one end, and arrives at that of the other."""
    for u, v, costs in model.problem.problem.edges:
        flow = {(s, t): model.real(0, 1) for s, t in np.argwhere(possible(costs)).tolist()}
        for end, operator in enumerate((u, v)):
            rows: dict[int, dict[int, int]] = {k: {x: -1} for k, x in model.chosen[operator].items()}
            for pair, z in flow.items():
                rows.setdefault(pair[end], {})[z] = 1
            for row in rows.values():
                model.equal(row)
        model.flows.append(flow)


def _caps(model: ShardingModel) -> None:
    """Caps on sums, and on variables that are at least each part of a maximum."""
    problem = model.problem.problem
    for weights, limit in model.problem.binding:
        total = Expression({})
        for own, table in model.parts():
            sums = table[:, : problem.sums] @ np.array(weights[: problem.sums], np.int64)
            total += Expression(dict(zip(own.tolist(), sums.tolist(), strict=True)))
        for d in range(problem.sums, problem.coordinates):
            if weights[d]:
                parts = [
                    Expression(dict(zip(own.tolist(), table[:, d].tolist(), strict=True)))
                    for own, table in model.parts()
                ]
                total += weights[d] * model.largest(parts)
        model.at_least(-total, -limit)
