"""Plans whose teams say by shards and tokens what they split, as plans with strategies on meshes of one axis.

::

    shards, sequence, context, vocabulary   of the plan, or shards of the workload and a number of processes
    operators of each layer ──────────────▶ strategies that agree with them (`pipeplan.costs.sharding.given`)
    what no operator splits like that ────▶ kept in parts, gathered for each pass of a layer

Layers whose operators cannot be followed, or cannot run as it is asked, run whole on every process.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache, partial

import torch
from torch import Tensor

from pipeplan.core.grouped_axis import ShardAxis
from pipeplan.core.operators import OperatorGraph
from pipeplan.core.plan import Context, Plan
from pipeplan.core.strategies import LayerStrategies
from pipeplan.costs.sharding.given import GivenSplit, given_strategies, usual_rooflines
from pipeplan.frontend.batch import Batch
from pipeplan.frontend.capture.flow import Tensors
from pipeplan.frontend.operators.find import named_weights
from pipeplan.frontend.profile.passes import autocast
from pipeplan_executor.sharding.declared import TensorParallel
from pipeplan_executor.sharding.mesh.ends import check_mesh
from pipeplan_executor.sharding.mesh.moves import LINK
from pipeplan_executor.sharding.mesh.programs import program
from pipeplan_executor.sharding.sequence import AXIS
from pipeplan_executor.sharding.shards import find_shards
from pipeplan_executor.stages.split import Fitted

AutocastContext = Callable[[], AbstractContextManager[object]]


def on_meshes(fitted: Fitted, wanted: TensorParallel, precision: str | None, device: torch.device) -> Fitted:
    """Return a plan and its model with strategies for every layer that several processes share.

    ``wanted``: those of a plan without teams; see `pipeplan_executor.sharding.declared.declared`.

    Raises
    ------
    InputError
        If a parameter cannot be sharded as declared.
    """
    plan = fitted.plan
    if plan.strategies or wanted.size == 1:
        return fitted
    given = _Given(_with_teams(plan, wanted.size), fitted, wanted, partial(autocast, precision, device))
    strategies, kept = given.strategies()
    stages = tuple(replace(stage, mesh=(stage.team,) if stage.team > 1 else ()) for stage in given.plan.stages)
    nothing = Context()
    planned = replace(
        given.plan, stages=stages, strategies=strategies, shards=(), sequence=(), context=nothing, vocabulary=None
    )
    check_mesh(planned, fitted.names, fitted.flow.tensors)
    return replace(fitted, plan=planned, kept=kept)


def _with_teams(plan: Plan, size: int) -> Plan:
    if plan.team > 1:
        return plan
    return replace(plan, stages=tuple(replace(stage, team=size) for stage in plan.stages))


class _Given:
    """What is asked of the layers of a plan."""

    def __init__(self, plan: Plan, fitted: Fitted, wanted: TensorParallel, context: AutocastContext) -> None:
        self.plan, self._fitted, self._context = plan, fitted, context
        self._weights = named_weights(fitted.blank, fitted.sequence)
        self._teams = {name: stage.team for stage in plan.stages for name in stage.layers}
        self._shards: dict[str, ShardAxis] = {}
        is_declared = fitted.plan.team == 1 or bool(plan.shards)  # teams may split tokens alone
        for team in sorted({*plan.teams}) if is_declared else ():
            stages = [n for n, stage in enumerate(plan.stages) if stage.team == team]
            names = {name for number in stages for name, _ in fitted.named_parameters(number)}
            own = find_shards(fitted.blank, fitted.workload.shards, replace(wanted, size=team), 0, names)
            self._shards |= {name: shard.along for name, shard in own.items()}
        self._graph, self._solved = cache(self._followed), dict[str, LayerStrategies | None]()

    def strategies(self) -> tuple[tuple[tuple[str, LayerStrategies], ...], Mapping[str, ShardAxis]]:
        """Return the strategies of layers, and the parameters that are kept in parts which no operator has.

        Layers that share a parameter split it alike, or none does.
        """
        kept: frozenset[str] = frozenset()
        while True:
            rows = {name: self._layer(n, kept) for n, name in enumerate(self._fitted.names) if self._teams[name] > 1}
            more = kept.union(*(own for _, own in rows.values()))
            if more == kept:
                return tuple((name, own) for name, (own, _) in rows.items()), {n: self._shards[n] for n in kept}
            kept = more

    def _layer(self, number: int, kept: frozenset[str]) -> tuple[LayerStrategies, frozenset[str]]:
        """Return the strategies of a layer, and the parameters that it does not split as it is asked to."""
        full = {local: name for local, name in self._fitted.sequence.parameters[number].items() if name in self._shards}
        team, graph = self._teams[self._fitted.names[number]], self._graph(number)
        given, own = self._given(number, kept), self._weights[number]
        given = replace(given, loss=graph is not None and graph.loss is not None)
        before, after = ((AXIS,) if is_split else () for is_split in (given.input, given.output))
        strategies = None if graph is None else self._strategies(graph, given, team, number)
        if strategies is None or (strategies.input, strategies.output) != (before, after):
            return LayerStrategies({}, {}, before, after), self._aliases(full.values())
        split = frozenset[str]() if graph is None else given.splits(graph, team)
        return strategies, self._aliases(name for n, name in full.items() if n not in own or own[n].name not in split)

    def _strategies(self, graph: OperatorGraph, given: GivenSplit, team: int, number: int) -> LayerStrategies | None:
        """Return strategies of a layer; equal layers are solved once."""
        key = repr((graph, given, team))
        if key not in self._solved:
            samples = self._fitted.flow.tensors[number][0].shape[0]
            self._solved[key] = given_strategies(graph, given, team, usual_rooflines(graph, samples), LINK)
        return self._solved[key]

    def _given(self, number: int, kept: frozenset[str]) -> GivenSplit:
        name, held, plan = self._fitted.names[number], self._fitted.sequence.parameters[number], self.plan
        own = {weight.name: held[local] for local, weight in self._weights[number].items()}
        return GivenSplit(
            {short: self._shards[full] for short, full in own.items() if full in self._shards and full not in kept},
            frozenset(short for short, full in own.items() if full in plan.context.products),
            {place: by for layer, place, by in plan.context.attention if layer == name},
            self._is_split(number),
            self._is_split(number + 1),
        )

    def _is_split(self, number: int) -> bool:
        """Whether the tensor before the layer of this number is split along tokens."""
        return number > 0 and self._fitted.names[number - 1] in self.plan.sequence

    def _aliases(self, names: Iterable[str]) -> frozenset[str]:
        """Return all names of parameters."""
        known = dict(self._fitted.blank.named_parameters(remove_duplicate=False))
        same = {id(known[name]) for name in names}
        return frozenset(name for name, parameter in known.items() if id(parameter) in same and name in self._shards)

    def _followed(self, number: int) -> OperatorGraph | None:
        """Return the operators of a layer, with its loss where that is to be split and can be; None if unknown."""
        name, fitted = self._fitted.names[number], self._fitted
        layer, given = fitted.sequence.layers[number], fitted.flow.tensors[number]
        followed = partial(program, name, layer, given, self._weights[number], self._context)
        for loss in (self._loss, None) if name == self.plan.vocabulary else (None,):
            try:
                found = followed(True, fitted.targets, loss).graph
            except Exception:  # a layer may fail in any way without values
                continue
            if loss is None or found.loss is not None:
                return found
        return None

    def _loss(self, outputs: Tensors, targets: Batch) -> Tensor:
        return self._fitted.workload.loss(self._fitted.restored(outputs), targets)
