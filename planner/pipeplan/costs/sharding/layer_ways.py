"""Ways to run one layer on a mesh, told apart by the strategies of its *main operators*.

These are operators that split weights, or sum gradients of weights that are more than 1 / `PARTS` of the layer's;
products of matrices and attention on parts of the tokens; and the loss if its classes are split. Those with weights
that the layer shares with others are always among them. Under given main strategies the other operators, and the
placements of all tensors, are those of the fastest choice, with copies that are kept for the backward or without.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeplan.core.model import LayerCost
from pipeplan.core.operators import TOKEN, Operator, OperatorGraph
from pipeplan.core.splits import CONTEXT, LOSS, SEQUENCE
from pipeplan.core.strategies import UNSPLIT, LayerStrategies, Strategy, splits
from pipeplan.costs.sharding.coordinates import COORDINATES, FASTEST, WORTH, combined, in_order
from pipeplan.costs.sharding.device_costs import device_cost, longer
from pipeplan.costs.sharding.prices import class_axes
from pipeplan.costs.sharding.problem import MeshProblem, added
from pipeplan_formulations.common.clock import Clock, no_limit
from pipeplan_formulations.common.sentinels import UNLIMITED
from pipeplan_formulations.sharding import Choice, Edge, Sharding, frontier, least_choice

MainStrategies = tuple[tuple[str, Strategy], ...]
"""Of a layer's main operators, by name; the others are none of these. With `KEEPS` copies may be kept."""
KEEPS: tuple[str, Strategy] = ("", ())

PARTS = 1024
"""Bytes are compared in these parts of a layer's."""
COMPARED = combined(("forward", "backward"), ("summed",), ("parameters",), ("saved",))
"""What ways are compared by."""
COMPARED_AGAIN = np.concatenate([COMPARED, COMPARED[:1] + combined(("forward",))])
"""The same where layers may be recomputed: then a backward has the forward in it once more."""


class Chosen(NamedTuple):
    """The fastest choice under main strategies, and what it costs in each of `COORDINATES`."""

    strategies: LayerStrategies
    costs: tuple[int, ...]


def is_main(graph: OperatorGraph, operator: Operator, strategy: Strategy) -> bool:
    """Return whether an operator is a main one under a strategy."""
    loops = {entry.loop for entry in strategy} - {UNSPLIT}
    if operator.name == graph.loss_name:
        return bool(class_axes(strategy))
    summed = sum(weight.size for weight in operator.weights if (loops & {*operator.makes}) - {*weight.loops})
    return (
        any(weight.shared or loops & {*weight.loops} for weight in operator.weights)
        or any(entry.gathers for entry in strategy)
        or (operator.by_plan and TOKEN in loops)
        or summed * PARTS > graph.parameters
    )


def main_strategies(graph: OperatorGraph, strategies: LayerStrategies) -> MainStrategies:
    """Return the strategies of a layer's main operators."""
    rows = ((each, strategies.operators[each.name].strategy) for each in graph.operators)
    return tuple((each.name, strategy) for each, strategy in rows if is_main(graph, each, strategy))


def parallelism(rows: Iterable[tuple[OperatorGraph, MainStrategies]], passes: bool) -> tuple[str, ...]:
    """Return what is split beside weights (`Split.parallelism`); ``passes``: whether tensors between layers are."""
    found = {SEQUENCE} if passes else set[str]()
    for graph, main in rows:
        by_plan = {each.name for each in graph.operators if each.by_plan}
        for name, strategy in main:
            if name and name == graph.loss_name:  # `KEEPS` has no name, and neither has a loss that is not known
                found.add(LOSS)
            if name in by_plan and any(entry.loop == TOKEN for entry in strategy):
                found.add(CONTEXT)
    return tuple(name for name in (SEQUENCE, CONTEXT, LOSS) if name in found)


class LayerWays:
    """The ways to run one layer on a kind of device at a micro-batch size.

    Parameters
    ----------
    problem : MeshProblem
        Of one layer, in which copies may be kept.
    again : bool
        Whether layers may be recomputed.
    clock : Clock, optional
        The time in which ways are found; by default there is no limit.
    """

    def __init__(self, problem: MeshProblem, again: bool, clock: Clock | None = None) -> None:
        self.problem, self.rooflines, self._again = problem, problem.layer, again
        self._clock = clock or no_limit()
        self._problems = {True: problem, False: replace(problem, keeps=False)}
        self._fastest: dict[bool, Sharding] = {}
        self._chosen: dict[MainStrategies, Chosen | None] = {}
        self._devices: dict[MainStrategies, LayerCost] = {}

    @property
    def graph(self) -> OperatorGraph:
        """The operators."""
        return self.problem.graph

    @property
    def compared(self) -> NDArray[np.int64]:
        """What ways are compared by."""
        return COMPARED_AGAIN if self._again else COMPARED

    @property
    def wholes(self) -> tuple[int, int]:
        """Bytes of parameters, and saved ones, on one device."""
        layers = self.problem.every_layer
        return sum(own.parameters * count for own, count in layers), sum(
            own.cost.saved * count for own, count in layers
        )

    @property
    def shared_strategies(self) -> Iterator[dict[str, Strategy]]:
        """The choices of strategies for the operators whose weights the layer shares with others."""
        own = {
            each.name: dict.fromkeys(signature.strategy for signature in signatures)
            for each, signatures in zip(self.graph.operators, self.problem.signatures, strict=True)
            if any(weight.shared for weight in each.weights)
        }
        for strategies in product(*own.values()):
            yield dict(zip(own, strategies, strict=True))

    def undominated(self, shared: Mapping[str, Strategy]) -> Iterator[MainStrategies]:
        """Yield the main strategies of all choices that no other one dominates, and possibly of more.

        ``shared``: the strategies of the operators whose weights are shared.
        """
        if self.rooflines.kind.shard_overhead and not any(map(splits, shared.values())):
            yield tuple(shared.items())  # all whole, which may be faster than what dominates it before this overhead
        fits = [[shared.get(each.name, strategy) == strategy for strategy in row] for each, row in self._strategies]
        if not all(map(any, fits)):
            return
        problem = _restricted(self.problem.sharding, fits)
        rows = [row for row in self.compared if any(problem.project(row[None]).largest)]
        points = frontier(problem.project(np.array(rows or COMPARED[:1])), self._clock)
        for point in range(len(points.points)):
            choice = points.choice(point)
            kept = any(copy.kept for copy in self.problem.copies(choice).values())
            yield self._main(choice) + (KEEPS,) * kept

    def figures(self, main: MainStrategies) -> tuple[int, ...]:
        """Nanoseconds of a micro-batch and of sums; bytes of parameters, and saved ones, under main strategies.

        Where layers may be recomputed, also nanoseconds of a micro-batch with another forward.
        """
        chosen = self._of(main)
        of, more = dict(zip(COORDINATES, chosen.costs, strict=True)), longer(self.problem, chosen.strategies)
        forward, backward = (of[name] + more[name] for name in ("forward", "backward"))
        again = (2 * forward + backward,) if self._again else ()
        return forward + backward, of["summed"], of["parameters"], of["saved"], *again

    def chosen(self, main: MainStrategies) -> Chosen | None:
        """Return the fastest choice under main strategies; None if there is none.

        Operators on parts of the tokens are whole where the layer has none beside it.
        """
        if main not in self._chosen:
            self._chosen[main] = self._find(main)
        return self._chosen[main]

    def device(self, main: MainStrategies) -> LayerCost:
        """Return the costs of each device under main strategies."""
        if main not in self._devices:
            self._devices[main] = device_cost(self._problems[KEEPS in main], *self._of(main))
        return self._devices[main]

    def _of(self, main: MainStrategies) -> Chosen:
        chosen = self.chosen(main)
        assert chosen is not None, "the way is possible"
        return chosen

    @cached_property
    def _strategies(self) -> list[tuple[Operator, list[Strategy]]]:
        """Each operator with the strategies of its signatures."""
        rows = zip(self.graph.operators, self.problem.signatures, strict=True)
        return [(each, [signature.strategy for signature in signatures]) for each, signatures in rows]

    @cached_property
    def _entries(self) -> list[list[Strategy | None]]:
        """For each operator, and each of its signatures, the strategy as a main operator; None where it is none."""
        return [
            [strategy if is_main(self.graph, each, strategy) else None for strategy in row]
            for each, row in self._strategies
        ]

    def _main(self, choice: Choice) -> MainStrategies:
        rows = zip(self.graph.operators, self._entries, choice, strict=False)
        return tuple((each.name, row[k]) for each, row, k in rows if row[k] is not None)  # type: ignore[misc]

    def _find(self, main: MainStrategies) -> Chosen | None:
        of, problem = dict(main), self._problems[KEEPS in main]
        if not self.problem.tokens:
            of = {name: strategy for name, strategy in main if all(one.loop != TOKEN for one in strategy)}
        fits = [
            [entry == of.get(each.name) for entry in row]
            for each, row in zip(self.graph.operators, self._entries, strict=True)
        ]
        found = self._least(problem, fits)
        if found is None or not self.rooflines.kind.shard_overhead or any(map(splits, of.values())):
            return found
        whole = self._least(problem, [[not splits(strategy) for strategy in row] for _, row in self._strategies])
        return found if whole is None else min(whole, found, key=self._time)

    def _least(self, problem: MeshProblem, fits: list[list[bool]]) -> Chosen | None:
        """The fastest choice of signatures that fit; None if there is none."""
        if not all(map(any, fits)):
            return None
        if problem.keeps not in self._fastest:
            self._fastest[problem.keeps] = problem.sharding.project(in_order(problem.sharding, FASTEST, WORTH))
        own, rows, open_ = _of_some(self._fastest[problem.keeps], fits)
        found = least_choice(own, self._clock)
        if found is None:
            return None
        at = dict(zip(open_, found, strict=True))
        choice = tuple(int(row[at.get(v, 0)]) for v, row in enumerate(rows))
        costs = problem.sharding.evaluate(choice)
        assert costs is not None, "it was found"
        return Chosen(problem.layer_strategies(choice), costs)

    def _time(self, chosen: Chosen) -> int:
        """Nanoseconds of a micro-batch."""
        of, more = dict(zip(COORDINATES, chosen.costs, strict=True)), longer(self.problem, chosen.strategies)
        return sum(of[name] + more[name] for name in ("forward", "backward"))


def _of_some(problem: Sharding, fits: list[list[bool]]) -> tuple[Sharding, list[NDArray[np.int64]], list[int]]:
    """The problem of the signatures of the first operators that fit, and of all others, with the numbers of these.

    Operators without a choice are left out of it, and their costs added to others: last the operators that have one.
    """
    rows = [*map(np.flatnonzero, fits), *(np.arange(len(own)) for own in problem.costs[len(fits) :])]
    costs = [own[row] for own, row in zip(problem.costs, rows, strict=True)]
    open_ = [v for v, row in enumerate(rows) if len(row) > 1] or [0]
    place = {v: number for number, v in enumerate(open_)}
    beside, edges = np.zeros((1, problem.coordinates), np.int64), []
    for u, v, table in problem.edges:
        table = table[rows[u][:, None], rows[v]]
        if u in place and v in place:
            edges.append(Edge(place[u], place[v], table))
        elif u in place:
            costs[u] = added(costs[u], table[:, 0])
        elif v in place:
            costs[v] = added(costs[v], table[0])
        else:
            beside = added(beside, table[0])
    for v, own in enumerate(costs):
        beside = beside if v in place else added(beside, own)
    costs[open_[0]] = added(costs[open_[0]], beside)
    return Sharding(tuple(costs[v] for v in open_), tuple(edges)), rows, open_


def _restricted(problem: Sharding, fits: list[list[bool]]) -> Sharding:
    """The problem without the signatures of the first operators that do not fit."""
    costs = [
        own if all(row) else np.where(np.array(row)[:, None], own, UNLIMITED)
        for own, row in zip(problem.costs, fits, strict=False)
    ]
    return Sharding((*costs, *problem.costs[len(costs) :]), problem.edges)
