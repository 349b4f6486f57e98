"""Splits: what teams of a size split in every layer of a model, and between layers; those that are worth searching.

Equal layers are split alike, in all stages. For each graph of operators, kind of device and micro-batch size, the
choices of signatures that no other one dominates are compared (`TeamProblem.figures`). The shards of one of them are
worth searching unless others are at least as good for all kinds and sizes. Layers that share weights split them alike.
Shards say what is split apart from tensors: weights, the loss, and which products and attention run on parts of the
tokens (`pipeplan.core.operators.Shards`).
Ways to split unlike layers are combined; of too many combinations, those are left in which all layers take least time,
or all keep least.

Tensors between layers are whole on every member, or all those that can be are split along tokens: `sequence`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, pairwise, product
from math import prod

import numpy as np

from pipeplan.core.cluster import DeviceKind
from pipeplan.core.grouped_axis import ShardAxis
from pipeplan.core.model import Layer, LayerCost
from pipeplan.core.operators import OperatorGraph, Shards, Split
from pipeplan.core.words import WHOLE
from pipeplan.costs.sharding.layouts import handed_over
from pipeplan.costs.sharding.rooflines import rates_of
from pipeplan.costs.sharding.teams import Teams
from pipeplan.costs.teams.problem import COMPARED, COMPARED_AGAIN, TeamProblem
from pipeplan.costs.teams.signatures import Ends, ends_of, has_token_parts, token_axis
from pipeplan_formulations.common.pareto import minimal

MOST = 128
"""Combinations of the ways to split unlike layers up to which all are searched."""
PREFERRED = (0, 2, 3, 4)
"""Figures by which ways are combined otherwise: time of a micro-batch, parameters, saved bytes, and where layers may be
recomputed the time with another forward."""

Figures = tuple[int, ...]
"""`TeamProblem.figures` on each kind for each micro-batch size."""


@dataclass(frozen=True)
class TeamSplits(Teams):
    """What teams of one size, each along one axis, split of a model."""

    _problems: dict[tuple[object, ...], TeamProblem] = field(default_factory=dict, init=False, repr=False)

    def problem(self, number: int, kind: DeviceKind, size: int, sequence: tuple[bool, ...]) -> TeamProblem:
        """The choice of signatures for a layer; one object for equal layers."""
        layer, cost = self.model.layers[number], self.costs(kind, size)[number]
        ends = ends_of(sequence, number)
        key = layer.operators, layer.parameters, cost, kind.name, size, ends
        if key not in self._problems:
            self._problems[key] = self._problem(layer, cost, kind, size, ends)
        return self._problems[key]

    def _problem(self, layer: Layer, cost: LayerCost, kind: DeviceKind, size: int, ends: Ends) -> TeamProblem:
        rates = rates_of(kind, self.model.dtype)
        graph, place = self.model.operators[layer.operators], self.places[kind.name]
        return TeamProblem(
            graph,
            cost,
            layer.parameters,
            kind,
            rates,
            size,
            self.team,
            place.link,
            ends,
            self.vocabulary_parallel,
            self.context_parallel,
            place.sharing(self.team),
            self.again,
        )

    def splits(self, tokens: bool = True) -> Iterator[Split]:
        """Yield the splits that are worth searching; ``tokens``: also those along tokens."""
        firsts = {layer.operators: i for i, layer in reversed(list(enumerate(self.model.layers))) if layer.operators}
        number = 0
        for sequence in ((), self.sequence) if tokens and any(self.sequence) else ((),):
            choices = {name: self._worthwhile(i, sequence) for name, i in firsts.items()}
            for row in self._together(choices):
                split = Split(self.team, tuple(zip(choices, row, strict=True)), number, sequence)
                if self._splits_operators(split) and self._agrees(split) and self._is_possible(split):
                    number += 1
                    yield split

    def _together(self, choices: Mapping[str, Mapping[Shards, Figures]]) -> Iterator[tuple[Shards, ...]]:
        """Yield the shards of all layers in all combinations; of too many, those that all prefer the same figure."""
        if prod(map(len, choices.values())) <= MOST:
            return product(*choices.values())
        preferred = PREFERRED if self.again else PREFERRED[:-1]
        alike = (product(*(self._best(name, own, k) for name, own in choices.items())) for k in preferred)
        return iter(dict.fromkeys(chain.from_iterable(alike)))

    def _best(self, name: str, choices: Mapping[Shards, Figures], preferred: int) -> list[Shards]:
        """The shards with least of a figure, for each way to split what the layer shares with others."""
        groups: dict[tuple[ShardAxis | None, ...], list[Shards]] = {}
        each = len(COMPARED_AGAIN if self.again else COMPARED)
        for shards in choices:
            groups.setdefault(self._shared_axes(name, dict(shards)), []).append(shards)

        def figures(shards: Shards) -> tuple[int, Figures]:
            return sum(choices[shards][preferred::each]), choices[shards]

        return [min(own, key=figures) for own in groups.values()]

    @cached_property
    def sequence(self) -> tuple[bool, ...]:
        """For each layer whether its output can be split along tokens: only the next one reads it, and nothing else."""
        graphs = [self.model.operators.get(layer.operators) for layer in self.model.layers]
        found = [
            before is not None
            and after is not None
            and self.model.crossing(cut) == (cut,)
            and _passes_tokens(before, after)
            and has_token_parts(after, self.team)
            and (has_token_parts(before, self.team) or not has_token_parts(before, 1))
            for cut, (before, after) in enumerate(pairwise(graphs))
        ]
        return (*found, False)

    def _worthwhile(self, number: int, sequence: tuple[bool, ...]) -> dict[Shards, Figures]:
        """The shards of a layer that no other shards dominate on every kind at every micro-batch size.

        With each, its figures for all of these.
        """
        problems = [self.problem(number, kind, size, sequence) for kind in self.kinds for size in self.sizes]
        kept: dict[Shards, Figures] = {}
        for fixed in problems[0].shared_axes:
            found: dict[Shards, None] = {}
            for problem in problems:
                self.check()
                found |= dict.fromkeys(problem.undominated(fixed))
            rows = []
            for shards in found:
                self.check()
                rows.append(tuple(chain.from_iterable(problem.figures(shards) for problem in problems)))
            undominated = minimal(np.array(rows)) if rows else ()
            kept |= {shards: rows[i] for i, shards in enumerate(found) if i in undominated}
        return kept

    def _splits_operators(self, split: Split) -> bool:
        """Whether any weight is split, or a product or attention runs on parts of the tokens; not only the loss."""
        return any(dict(own).keys() - {self.model.operators[name].loss_name} for name, own in split.shards)

    def _is_possible(self, split: Split) -> bool:
        """Whether all layers with the same operators can be split alike: some have other ends than the first."""
        return all(
            self.problem(i, self.kinds[0], self.sizes[0], split.sequence).possible(
                tuple(split.of(layer.operators).items())
            )
            for i, layer in enumerate(self.model.layers)
            if layer.operators
        )

    def _agrees(self, split: Split) -> bool:
        """Whether layers that share weights split them alike; where operators are not known, these are whole."""
        of = {layer.name: layer.operators for layer in self.model.layers}
        for tie in self.model.ties:
            axes = {self._shared_axes(of[name], split.of(of[name])) for name in tie.layers if of[name]}
            whole = any(not of[name] for name in tie.layers)
            if len(axes) > 1 or (whole and any(axis is not None for row in axes for axis in row)):
                return False
        return True

    def _shared_axes(self, name: str, shards: Mapping[str, int]) -> tuple[ShardAxis | None, ...]:
        graph = self.model.operators[name]
        names = [weight.name for weight in graph.weights if weight.shared]
        return tuple(graph.shard_axis(each, shards[each]) if each in shards else None for each in names)


def _passes_tokens(before: OperatorGraph, after: OperatorGraph) -> bool:
    """Return whether a layer hands the next one a tensor with tokens that neither of them passes on."""
    handed = handed_over(before, after)
    if handed is None:
        return False
    made, read = handed
    return token_axis(before, made) != WHOLE != token_axis(after, read)
