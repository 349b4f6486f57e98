"""Devices of teams on meshes of one shape: what each has of the layers, under given strategies."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from pipeplan.core.cluster import DeviceKind
from pipeplan.core.model import LayerCost, Model, Profile, Provenance, Tie
from pipeplan.core.operators import OperatorGraph
from pipeplan.core.splits import Split
from pipeplan.core.strategies import LayerStrategies, Placements
from pipeplan.costs.sharding.batches import by_samples
from pipeplan.costs.sharding.coordinates import COORDINATES
from pipeplan.costs.sharding.device_costs import device_cost
from pipeplan.costs.sharding.layer_ways import main_strategies, parallelism
from pipeplan.costs.sharding.named import NamedStrategy, rows_are_samples
from pipeplan.costs.sharding.placements import ends_of
from pipeplan.costs.sharding.problem import MeshProblem
from pipeplan.costs.sharding.shapes import Mesh
from pipeplan.costs.sharding.strategies import divides
from pipeplan.costs.sharding.teams import Teams
from pipeplan.costs.sharding.ties import shared_bytes

Case = tuple[str, Placements, Placements]
"""The operators of a layer, and the placements of what it reads and makes."""


class Way(NamedTuple):
    """Strategies of all layers on a mesh, the same for all micro-batch sizes and kinds of device.

    Attributes
    ----------
    placements : Placements
        Of what passes between layers.
    passes : tuple of bool
        For each layer whether its output has it; others are whole.
    strategies : tuple of (Case, LayerStrategies)
    """

    placements: Placements
    passes: tuple[bool, ...]
    strategies: tuple[tuple[Case, LayerStrategies], ...]


@dataclass(frozen=True)
class MeshMembers:
    """Teams of one size as meshes of one shape.

    Attributes
    ----------
    teams : Teams
    sizes : tuple of int
        Devices along each axis.
    named : NamedStrategy or None
        The one by which products of matrices are split where they can be; None is any.
    """

    teams: Teams
    sizes: tuple[int, ...]
    named: NamedStrategy | None = field(default=None, kw_only=True)
    _problems: dict[tuple[object, ...], MeshProblem] = field(default_factory=dict, init=False, repr=False)
    _known: dict[Hashable, dict[Hashable, object]] = field(default_factory=dict, init=False, repr=False)
    _graphs: dict[tuple[str, int], OperatorGraph] = field(default_factory=dict, init=False, repr=False)
    _possible: dict[Way, tuple[int, ...]] = field(default_factory=dict, init=False, repr=False)

    def graph(self, name: str, size: int) -> OperatorGraph:
        """Return operators of layers at a micro-batch size, which may run on parts of the samples."""
        if (name, size) not in self._graphs:
            self._graphs[name, size] = by_samples(self.teams.model.operators[name], size, self.teams.plain)
        return self._graphs[name, size]

    @cached_property
    def graphs(self) -> dict[str, OperatorGraph]:
        """Operators of all layers at the largest micro-batch size."""
        return {name: self.graph(name, max(self.teams.sizes)) for name in self.teams.model.operators}

    def possible(self, way: Way) -> tuple[int, ...]:
        """Return the micro-batch sizes at which a way is possible: those whose samples axes divide."""
        if way not in self._possible:
            self._possible[way] = tuple(size for size in self.teams.sizes if self._runs(way, size))
        return self._possible[way]

    def _runs(self, way: Way, size: int) -> bool:
        every = [(self.graph(name, size), strategies) for (name, *_), strategies in way.strategies]
        rows = [
            (operator, strategies.operators[operator.name].strategy)
            for graph, strategies in every
            for operator in graph.operators
        ]
        return all(divides(operator, strategy, self.sizes) for operator, strategy in rows) and None not in (
            self._evaluated(way, layers[0], self.teams.kinds[0], size)
            for layers in self.cases(way.placements, way.passes).values()
        )

    def case(self, i: int, placements: Placements, passes: tuple[bool, ...]) -> Case:
        """Return the operators and the ends of a layer, if some outputs have them."""
        return self.teams.model.layers[i].operators, *ends_of(placements, passes, i)

    def cases(self, placements: Placements, passes: tuple[bool, ...]) -> dict[Case, list[int]]:
        """Return the numbers of the layers that are split alike, by operators and ends."""
        cases: dict[Case, list[int]] = {}
        for i, layer in enumerate(self.teams.model.layers):
            if layer.operators:
                cases.setdefault(self.case(i, placements, passes), []).append(i)
        return cases

    def problem(
        self,
        layers: Sequence[int],
        case: Case,
        kind: DeviceKind,
        size: int,
        only: LayerStrategies | None = None,
        keeps: bool = True,
    ) -> MeshProblem:
        """The strategies of layers on a kind of device at a micro-batch size: of equal layers those of one of them.

        Of unlike layers, which are split alike, costs are sums.
        """
        unlike = self.teams.different(layers, kind, size)
        key = case, *((id(whole), count) for whole, count in unlike), only, keeps
        if key not in self._problems:
            graph = self.graph(case[0], size)
            every = tuple((self.teams.with_graph(whole, graph), count) for whole, count in unlike)
            tokens, ends = self.teams.context_parallel and not self._by_samples(size), case[1:]
            self._problems[key] = MeshProblem(
                every[0][0],
                self.mesh(kind),
                *ends,
                gathers=not any(
                    weight.shared for operator in every[0][0].graph.operators for weight in operator.weights
                ),
                split_loss=self.teams.vocabulary_parallel,
                tokens=tokens,
                named=self.named,
                keeps=keeps,
                only=only,
                known=self._known,
                layers=every,
            )
        return self._problems[key]

    def _by_samples(self, size: int) -> bool:
        """Whether a named strategy splits samples alone at a micro-batch size."""
        return self.named is not None and rows_are_samples(self.sizes, size)

    def mesh(self, kind: DeviceKind) -> Mesh:
        """Return the mesh of teams of a kind of device."""
        return self.teams.mesh(kind, self.sizes)

    def costs(self, way: Way, i: int, kind: DeviceKind, size: int) -> tuple[int, ...]:
        """Return the coordinates of a layer under a way."""
        coordinates = self._evaluated(way, i, kind, size)
        assert coordinates is not None, "the way is possible at this size"
        return tuple(coordinates)

    def _evaluated(self, way: Way, i: int, kind: DeviceKind, size: int) -> Sequence[int] | None:
        problem = self._chosen(way, i, kind, size)
        return problem.sharding.evaluate((0,) * len(problem.sharding.costs))

    def _chosen(self, way: Way, i: int, kind: DeviceKind, size: int) -> MeshProblem:
        """The problem of a layer with one signature of each operator."""
        case = self.case(i, way.placements, way.passes)
        return self.problem([i], case, kind, size, dict(way.strategies)[case])

    def member(self, way: Way, i: int, kind: DeviceKind, size: int) -> LayerCost:
        """Return the cost of a layer on each device."""
        strategies = dict(way.strategies)[self.case(i, way.placements, way.passes)]
        return device_cost(self._chosen(way, i, kind, size), strategies, self.costs(way, i, kind, size))

    def kept(self, way: Way, i: int) -> int:
        """Return the bytes of a layer's parameters on each device."""
        kind, size = self.teams.kinds[0], self.possible(way)[0]
        return self.costs(way, i, kind, size)[COORDINATES.index("parameters")]

    def model(self, way: Way) -> Model:
        """Return the model whose layers have the parameters and the costs of one device, as profiles."""
        model = self.teams.model
        every = [
            Profile(
                kind.name,
                size,
                tuple(
                    self.member(way, i, kind, size) if layer.operators else cost
                    for i, (layer, cost) in enumerate(zip(model.layers, self.teams.costs(kind, size), strict=True))
                ),
                Provenance("analytic", f"teams of {' x '.join(map(str, self.sizes))}"),
            )
            for kind in self.teams.kinds
            for size in self.possible(way)
        ]
        kept = [self.kept(way, i) if layer.operators else layer.parameters for i, layer in enumerate(model.layers)]
        return device_model(model, every, kept, [self._shared(way, tie) for tie in model.ties])

    def _shared(self, way: Way, tie: Tie) -> int:
        """Bytes on a device of the weights that layers share."""
        case = self.case(self.teams.model.names.index(tie.layers[0]), way.placements, way.passes)
        operators = dict(way.strategies)[case].operators if case[0] else {}
        strategies = {name: strategy for name, (strategy, _) in operators.items()}
        return shared_bytes(tie, self.teams.model.operators.get(case[0]), strategies, self.sizes)

    def split(self, way: Way, number: int) -> Split:
        """Return a way as a split."""
        of, layers = dict(way.strategies), self.teams.model.layers
        strategies = tuple(
            of[self.case(i, way.placements, way.passes)] if layer.operators else LayerStrategies()
            for i, layer in enumerate(layers)
        )
        every = [(self.graphs[name], of_case) for (name, *_), of_case in way.strategies]
        places = ((kind.name, size) for kind in self.teams.kinds for size in self.possible(way))
        return Split(
            self.sizes,
            way.placements,
            way.passes,
            number,
            *self.teams.links(self.sizes),
            dict.fromkeys(places, strategies),
            parallelism(((graph, main_strategies(graph, of_case)) for graph, of_case in every), any(way.passes)),
        )


def device_model(model: Model, profiles: Sequence[Profile], kept: Sequence[int], shared: Sequence[int]) -> Model:
    """Return the model whose layers have the parameters and the costs of one device.

    Parameters
    ----------
    model : Model
    profiles : sequence of Profile
    kept, shared : sequence of int
        Bytes of each layer's parameters on a device, and of what each tie shares.
    """
    layers = tuple(
        replace(layer, parameters=size, work=None, operators="") for layer, size in zip(model.layers, kept, strict=True)
    )
    ties = (replace(tie, parameters=size) for tie, size in zip(model.ties, shared, strict=True))
    kept_ties = tuple(tie for tie in ties if tie.parameters or tie.frozen)
    return replace(model, layers=layers, profiles=tuple(profiles), ties=kept_ties, operators={}, slice_profiles=())
