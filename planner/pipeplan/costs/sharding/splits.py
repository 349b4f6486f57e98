"""Teams as meshes; the shapes and strategies worth searching.

Inside a node of equal links several axes gain far less than across nodes (docs/meshes.md): there is one, or none. What
passes between layers has the same placements in all of the model, or is whole::

    layer 0 ──whole──▶ layer 1 ──tokens over nodes, whole in each──▶ layer 2 ──the same──▶ … ──▶ loss

Tokens and features are split wherever they can be, samples where that is best: as long as weights are small, say. For
all placements all layers have the strategies that are fastest for a number of micro-batches, or keep the fewest
parameters, or save the fewest bytes; and the same without copies that are kept, which are fast and take memory. A way
is left out if another one is not larger by more than 1 / `ALIKE` in any figure, on any kind of device, at any
micro-batch size, whatever its shape, or if teams without a mesh have such a way.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import count, pairwise, product
from math import prod
from operator import add

import numpy as np
from numpy.typing import NDArray

from pipeplan.core.cluster import DeviceKind
from pipeplan.core.model import Model
from pipeplan.core.operators import SAMPLE, TOKEN, Operator, OperatorGraph
from pipeplan.core.splits import Split
from pipeplan.core.strategies import WHOLE, LayerStrategies, Placements
from pipeplan.costs.sharding.alike import figures, unlike
from pipeplan.costs.sharding.coordinates import combined, in_order
from pipeplan.costs.sharding.members import Case, MeshMembers, Way
from pipeplan.costs.sharding.named import follows, shapes_of
from pipeplan.costs.sharding.placements import handed_over, stream
from pipeplan.costs.sharding.problem import MeshProblem
from pipeplan.costs.sharding.shapes import fitting
from pipeplan.costs.sharding.signatures import parts_of
from pipeplan.costs.sharding.teams import Teams
from pipeplan.costs.sharding.ties import Cuts, agree, shared_cuts
from pipeplan_formulations.common.clock import Clock, no_limit
from pipeplan_formulations.sharding import least_choice

MICRO_BATCHES = (1, 4, 16, 64)
"""Micro-batches of a replica for which strategies take least time, updates and sums once per step included."""
LEAN = (
    combined(("parameters",), ("forward", "backward"), ("saved",), ("summed", "update")),
    combined(("saved",), ("forward", "backward"), ("parameters",), ("summed", "update")),
)
PASSES = combined(("forward", "backward"))
FAST, FAST_AGAIN = (
    tuple(np.concatenate([own * count + combined(("summed", "update")), LEAN[1][[0, 2]]]) for count in MICRO_BATCHES)
    for own in (PASSES, PASSES + combined(("forward",)))
)
"""What strategies have least of, in order: time, then saved bytes; or bytes of parameters, or saved bytes first.

Where layers may be recomputed, also time with another forward."""

ALIKE = 32
"""Ways are alike if no figure differs by more than one part in so many."""
SAMPLES = 0
"""Entry of placements along which samples are split: they are the first axis."""

Figures = tuple[Fraction, ...]


@dataclass(frozen=True)
class MeshTeams(MeshMembers):
    """The ways in which teams of one size run a model on meshes of one shape.

    Attributes
    ----------
    batch : int
        Samples of a step.
    """

    batch: int
    _strategies: dict[Hashable, tuple[Figures, LayerStrategies]] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, teams: Teams, batch: int, axes: int) -> "tuple[MeshTeams, ...]":
        """Return the meshes of up to ``axes`` axes that teams may be.

        None unless all teams lie in as many nodes. In one node there is one axis, which splits samples in models that
        have no tokens; in those that do, it found no way better than teams without a mesh have. A strategy that is
        asked for by name has the meshes with as many axes as it can split, also in one node.
        """
        nodes = {place.nodes for place in teams.places.values()}
        every = (operator for graph in teams.model.operators.values() for operator in graph.operators)
        if len(nodes) == 1 and teams.strategy:
            shapes = shapes_of(teams.strategy, fitting(teams.team, teams.team // nodes.pop()))
            return tuple(cls(teams, sizes, batch, named=named) for sizes, named in shapes)
        if len(nodes) > 1 or (nodes == {1} and any(TOKEN in operator.makes for operator in every)):
            return ()
        most = min(axes, 1) if nodes == {1} else axes
        within = teams.team // nodes.pop()
        return tuple(cls(teams, sizes, batch) for sizes in fitting(teams.team, within) if len(sizes) <= most)

    def ways(self, tokens: bool = True) -> list[Way]:
        """Return ways, the best ones among them; ``tokens``: also those that split what passes between layers."""
        ways: dict[Way, None] = {}
        for placements in self._between(tokens):
            can = self._passes(placements)
            if any(can) or set(placements) == {WHOLE}:
                for passes, strategies in self._ways(placements, can):
                    if self._agrees(strategies) and self._is_asked(strategies):
                        ways[Way(placements, passes, tuple(strategies.items()))] = None
        return [way for way in ways if self.possible(way)]

    def _between(self, tokens: bool) -> Iterable[Placements]:
        """Return the placements that what passes between layers may have."""
        if self.named is None:
            return product((WHOLE, *range(self._rank if tokens else 0)), repeat=len(self.sizes))
        asked = self.named.placements(self._rank, not all(map(self._by_samples, self.teams.sizes)))
        return [placements for placements in asked if any(self._passes(placements))] or [(WHOLE,) * len(self.sizes)]

    def _is_asked(self, strategies: Mapping[Case, LayerStrategies]) -> bool:
        """Whether any operator is split; if a strategy is named, any product by this."""
        if self.named is None:
            return any(layer.splits_any for layer in strategies.values())
        every = (
            (operator, layer) for (name, *_), layer in strategies.items() for operator in self.graphs[name].operators
        )
        return any(follows(operator, layer.operators[operator.name].strategy, self.named) for operator, layer in every)

    @property
    def _rank(self) -> int:
        """The largest number of axes of what passes between layers."""
        made = ((graph, stream(graph, graph.outputs)) for graph in self.graphs.values())
        return max((len(_rows(graph, name)[0][1]) for graph, name in made if name and _rows(graph, name)), default=0)

    def _passes(self, placements: Placements) -> tuple[bool, ...]:
        """Whether the output of each layer can have placements: only the next one reads it, and nothing else."""
        model = self.teams.model
        graphs = [self.graphs.get(layer.operators) for layer in model.layers]
        passes = [
            before is not None
            and after is not None
            and set(placements) != {WHOLE}
            and model.hands_over(cut)
            and _hands_over(before, after, placements)
            and self._fits(before, before.outputs, placements)
            and self._fits(after, tuple(after.inputs), placements)
            for cut, (before, after) in enumerate(pairwise(graphs))
        ]
        return (*passes, False)

    def _fits(self, graph: OperatorGraph, names: tuple[str, ...], placements: Placements) -> bool:
        parts = parts_of(graph, stream(graph, names))
        return max(placements) < len(parts) and not any(
            count % prod(n for n, placement in zip(self.sizes, placements, strict=True) if placement == axis)
            for axis, count in enumerate(parts)
        )

    def _ways(
        self, placements: Placements, can: tuple[bool, ...]
    ) -> Iterator[tuple[tuple[bool, ...], dict[Case, LayerStrategies]]]:
        """Yield which outputs have placements, and the strategies of all layers, that have least of one figure.

        Least time is sought at the smallest and largest micro-batch size, for as many micro-batches as there may be.
        """
        sizes = [size for size in self.teams.sizes if self._takes(placements, can, size)]
        for kind in self.teams.kinds:
            for size in sorted({*sizes[:1], *sizes[-1:]}):
                counts = sum(count * size <= self.batch for count in MICRO_BATCHES)
                again = FAST_AGAIN[:counts] if self.teams.again else ()
                every = (*FAST[:counts], *again, *(LEAN if size == sizes[0] else ()))
                for at in product([kind], [size], every, (True, False)):
                    self.teams.check()
                    passes = self._best_passes(placements, can, *at) if SAMPLES in placements else can
                    cases = self.cases(placements, passes)
                    yield passes, {case: self._least(layers, case, *at)[1] for case, layers in cases.items()}

    def _takes(self, placements: Placements, can: tuple[bool, ...], size: int) -> bool:
        """Whether what passes between layers can have placements at a micro-batch size."""
        pairs = zip(pairwise(layer.operators for layer in self.teams.model.layers), can, strict=False)
        graphs = [[self.graph(name, size) for name in names] for names in {names for names, passes in pairs if passes}]
        return all(
            self._fits(before, before.outputs, placements) and self._fits(after, tuple(after.inputs), placements)
            for before, after in graphs
        )

    def _best_passes(
        self,
        placements: Placements,
        can: tuple[bool, ...],
        kind: DeviceKind,
        size: int,
        rows: NDArray[np.int64],
        keeps: bool,
    ) -> tuple[bool, ...]:
        """Return which outputs have placements so that all layers together have least: a shortest path along the chain.

        Layers of equal operators count alike.
        """
        alike = {name: layers for (name, *_), layers in self.cases((), (False,) * len(can)).items()}
        paths: dict[bool, tuple[Figures, tuple[bool, ...]]] = {False: ((Fraction(),) * len(rows), ())}
        for i, layer in enumerate(self.teams.model.layers):
            longer: dict[bool, tuple[Figures, tuple[bool, ...]]] = {}
            for after, (before, (spent, path)) in product((False, True) if can[i] else (False,), paths.items()):
                if layer.operators:
                    case = self.case(i, placements, (*(before,) * i, after))
                    figures, _ = self._least(alike[layer.operators], case, kind, size, rows, keeps)
                    spent = tuple(map(add, spent, figures))
                path_to = spent, (*path, after)
                longer[after] = min(longer.get(after, path_to), path_to)
            paths = longer
        return paths[False][1]

    def _least(
        self,
        layers: Sequence[int],
        case: Case,
        kind: DeviceKind,
        size: int,
        rows: NDArray[np.int64],
        keeps: bool,
    ) -> tuple[Figures, LayerStrategies]:
        """Return the strategies of layers that have least of some sums of coordinates, in order, and their means."""
        key = tuple(layers), case, kind.name, size, rows.tobytes(), keeps
        if key not in self._strategies:
            self._strategies[key] = _least(self.problem(layers, case, kind, size, keeps=keeps), rows, self.teams.clock)
        return self._strategies[key]

    def _agrees(self, strategies: Mapping[Case, LayerStrategies]) -> bool:
        """Whether layers that share weights split these alike; where operators are not known, they are whole."""
        cuts: dict[str, list[Cuts]] = {}
        for (name, *_), layer in strategies.items():
            of = {operator: strategy for operator, (strategy, _) in layer.operators.items()}
            cuts.setdefault(name, []).append(shared_cuts(self.graphs[name], of))
        return agree(self.teams.model, lambda name: cuts.get(name, []))


def mesh_ways(
    every: Sequence[MeshTeams], tokens: bool = True, others: Sequence[Model] = ()
) -> Iterator[tuple[Split, Model]]:
    """Yield the ways over teams of one size that are worth searching, with a device's costs: a profile for each size.

    Those that take no figure less than another one by more than 1 / `ALIKE` are left out, of one shape or a former one.

    Parameters
    ----------
    every : sequence of MeshTeams
        The shapes.
    tokens : bool
        Whether what passes between layers may be split.
    others : sequence of Model
        Costs of a device in other ways that are searched.
    """
    kept = [figures(model, every[0].teams) for model in others] if every else []
    numbers = count(len(others))
    for mesh in every:
        models = [(way, mesh.model(way)) for way in mesh.ways(tokens)]
        for k in unlike([figures(model, mesh.teams) for _, model in models], kept, ALIKE):
            mesh.teams.check()
            way, model = models[k]
            yield mesh.split(way, next(numbers)), model


def _least(problem: MeshProblem, rows: NDArray[np.int64], clock: Clock | None) -> tuple[Figures, LayerStrategies]:
    """Return the strategies with least of some sums of coordinates, in order as far as 61 bits go; and means."""
    choice = least_choice(problem.sharding.project(in_order(problem.sharding, rows)), clock or no_limit())
    assert choice is not None, "no operator has to be split"
    costs = problem.sharding.evaluate(choice)
    assert costs is not None, "it was found"
    figures = tuple(Fraction(int(figure), problem.count) for figure in rows @ np.array(costs, np.int64))
    return figures, problem.layer_strategies(choice)


def _hands_over(before: OperatorGraph, after: OperatorGraph, placements: Placements) -> bool:
    """Whether a layer hands the next one a tensor that may be split, and that neither of them passes on.

    The one may see it with other axes than the other, behind the samples: as images, and as rows of a matrix.
    """
    handed = handed_over(before, after)
    if handed is None:
        return False
    made, read = handed
    rows = _rows(before, made)[:1] + _rows(after, read)[:1]
    if len(rows) < 2:
        return False
    (_, axes), (_, others) = rows
    return len(axes) == len(others) or (max(placements) == SAMPLES and axes[:1] == others[:1] == (SAMPLE,))


def _rows(graph: OperatorGraph, name: str) -> list[tuple[Operator, tuple[str, ...]]]:
    """The operators that read or make a tensor, with the loop of each of its axes."""
    rows = [(operator, operator.reads[name]) for operator in graph.operators if name in operator.reads]
    return rows + [(operator, operator.makes) for operator in graph.operators if operator.name == name]
