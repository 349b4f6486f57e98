"""Teams over several nodes as meshes of several axes; the shapes and words worth searching.

Inside a node of equal links several axes gain far less than across nodes (docs/meshes.md), and none are searched there.
What passes between layers has one layout in all of the model, wherever it can have it::

    layer 0 ──whole──▶ layer 1 ──tokens over nodes, whole in each──▶ layer 2 ──the same──▶ … ──▶ loss

For each such layout all layers have the words that are fastest for a number of micro-batches, or keep the fewest
parameters, or save the fewest bytes. A way is left out if another one is not larger by more than 1 / `ALIKE` in any
figure, on any kind of device, at any micro-batch size, whatever its shape.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import pairwise, product
from math import lcm, prod

import numpy as np
from numpy.typing import NDArray

from pipeplan.core.cluster import DeviceKind
from pipeplan.core.model import LayerCost
from pipeplan.core.operators import Operator, OperatorGraph
from pipeplan.core.words import PARTIAL, UNSPLIT, WHOLE, LayerWords, Layout, MeshSplit
from pipeplan.costs.meshes.prices import exchanged
from pipeplan.costs.meshes.problem import MeshProblem
from pipeplan.costs.meshes.shapes import Mesh, fitting, mesh_on
from pipeplan.costs.teams.places import Place
from pipeplan.costs.teams.problem import COMPARED, COORDINATES, combined
from pipeplan.costs.teams.rooflines import PASSES
from pipeplan.costs.teams.signatures import stream
from pipeplan.costs.teams.splits import Teams
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits
from pipeplan_formulations.sharding import frontier
from pipeplan_formulations.sharding.instance import LARGEST

MICRO_BATCHES = (1, 4, 16, 64)
"""Micro-batches of a replica for which words take least time, updates and sums once per step included."""
LEAN = (
    combined(("parameters",), ("forward", "backward"), ("saved",), ("summed", "update")),
    combined(("saved",), ("forward", "backward"), ("parameters",), ("summed", "update")),
)
FAST = tuple(
    np.concatenate([combined(("forward", "backward")) * count + combined(("summed", "update")), LEAN[1][[0, 2]]])
    for count in MICRO_BATCHES
)
"""What words have least of, in order: time, then saved bytes; or bytes of parameters, or saved bytes first."""

ALIKE = 32
"""Ways are alike if no figure differs by more than one part in so many."""

Case = tuple[str, Layout, Layout]
"""The operators of a layer, and the layouts of what it reads and makes."""


@dataclass(frozen=True)
class MeshTeams:
    """Teams of one size over several nodes as meshes of one shape.

    Attributes
    ----------
    teams : Teams
    sizes : tuple of int
        Devices along each axis.
    batch : int
        Samples of a step.
    """

    teams: Teams
    sizes: tuple[int, ...]
    batch: int
    _problems: dict[tuple[object, ...], MeshProblem] = field(default_factory=dict, init=False, repr=False)
    _known: dict[Hashable, dict[Hashable, object]] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, teams: Teams, batch: int, axes: int) -> "tuple[MeshTeams, ...]":
        """Return the meshes of 2 to ``axes`` axes that teams may be; none unless all lie in as many nodes, several."""
        nodes = {place.nodes for place in teams.places.values()}
        if len(nodes) > 1 or nodes == {1}:
            return ()
        within = teams.team // nodes.pop()
        return tuple(cls(teams, sizes, batch) for sizes in fitting(teams.team, within) if 1 < len(sizes) <= axes)

    @cached_property
    def kinds(self) -> tuple[DeviceKind, ...]:
        """The kinds of device that have teams."""
        return tuple(kind for kind in self.teams.cluster.kinds.values() if kind.name in self.teams.places)

    def splits(self, tokens: bool = True) -> list[MeshSplit]:
        """Return ways, the best ones among them; ``tokens``: also those that split what passes between layers."""
        found: dict[MeshSplit, None] = {}
        meshes = {kind.name: self._mesh(kind) for kind in self.kinds}
        links = tuple((name, tuple(link.in_collectives for link in own.links)) for name, own in meshes.items())
        sharing = next(iter(meshes.values())).sharing
        for layout in product((WHOLE, *range(self._rank if tokens else 0)), repeat=len(self.sizes)):
            passes = self._passes(layout)
            if any(passes) or set(layout) == {WHOLE}:
                for words in self._ways(layout, passes):
                    if self._agrees(words) and any(map(_splits, words.values())):
                        found[MeshSplit(self.sizes, layout, passes, tuple(words.items()), links, sharing)] = None
        return list(found)

    @property
    def _rank(self) -> int:
        """The largest number of axes of what passes between layers."""
        made = ((graph, stream(graph, graph.outputs)) for graph in self.teams.model.operators.values())
        return max((len(_rows(graph, name)[0][1]) for graph, name in made if name and _rows(graph, name)), default=0)

    def _passes(self, layout: Layout) -> tuple[bool, ...]:
        """Whether the output of each layer can have a layout: only the next one reads it, and nothing else."""
        model = self.teams.model
        graphs = [model.operators.get(layer.operators) for layer in model.layers]
        found = [
            before is not None
            and after is not None
            and set(layout) != {WHOLE}
            and model.crossing(cut) == (cut,)
            and _hands_over(before, after)
            and self._fits(before, before.outputs, layout)
            and self._fits(after, tuple(after.inputs), layout)
            for cut, (before, after) in enumerate(pairwise(graphs))
        ]
        return (*found, False)

    def _fits(self, graph: OperatorGraph, names: tuple[str, ...], layout: Layout) -> bool:
        rows = _rows(graph, stream(graph, names))
        return max(layout) < len(rows[0][1]) and not any(
            lcm(*(each.loops.get(axes[axis], 1) for each, axes in rows))
            % prod(n for n, entry in zip(self.sizes, layout, strict=True) if entry == axis)
            for axis in range(len(rows[0][1]))
        )

    def cases(self, layout: Layout, passes: tuple[bool, ...]) -> dict[Case, list[int]]:
        """Return the numbers of the layers that are split alike, by operators and ends."""
        found: dict[Case, list[int]] = {}
        for i, layer in enumerate(self.teams.model.layers):
            if layer.operators:
                found.setdefault(self._case(i, layout, passes), []).append(i)
        return found

    def _case(self, i: int, layout: Layout, passes: tuple[bool, ...]) -> Case:
        whole = (WHOLE,) * len(self.sizes)
        before = layout if i and passes[i - 1] else whole
        return self.teams.model.layers[i].operators, before, layout if passes[i] else whole

    def _ways(self, layout: Layout, passes: tuple[bool, ...]) -> Iterator[dict[Case, LayerWords]]:
        """Yield the words of all layers that have least of one figure.

        Least time is sought at the smallest and largest micro-batch size, for as many micro-batches as there may be.
        """
        cases, smallest = self.cases(layout, passes), min(self.teams.sizes)
        for kind in self.kinds:
            for size in sorted({smallest, max(self.teams.sizes)}):
                counts = sum(count * size <= self.batch for count in MICRO_BATCHES)
                for rows in (*FAST[:counts], *(LEAN if size == smallest else ())):
                    self.teams.check()
                    yield {
                        case: _least(self._problem(own, case, kind, size), case, rows) for case, own in cases.items()
                    }

    def _problem(
        self, layers: Sequence[int], case: Case, kind: DeviceKind, size: int, only: LayerWords | None = None
    ) -> MeshProblem:
        """The words of layers on a kind of device at a micro-batch size, at their mean cost; one for equal layers."""
        i, costs = layers[0], self.teams.costs(kind, size)
        cost = _mean_cost([costs[each] for each in layers])
        key = case, self.teams.model.layers[i].parameters, cost, kind.name, size, only
        if key not in self._problems:
            own = replace(self.teams.problem(i, kind, size, ()).rooflines, cost=cost)
            tokens, ends = self.teams.context_parallel, case[1:]
            self._problems[key] = MeshProblem(
                own,
                self._mesh(kind),
                *ends,
                gathers=not any(weight.shared for each in own.graph.operators for weight in each.weights),
                split_loss=False,
                tokens=tokens,
                only=only,
                known=self._known,
            )
        return self._problems[key]

    def _mesh(self, kind: DeviceKind) -> Mesh:
        place: Place = self.teams.places[kind.name]
        network = self.teams.cluster.network
        assert network is not None
        return mesh_on(self.sizes, self.teams.team // place.nodes, place.inside, network)

    def _agrees(self, words: Mapping[Case, LayerWords]) -> bool:
        """Whether layers that share weights split these alike; where operators are not known, they are whole."""
        model = self.teams.model
        of = {layer.name: layer.operators for layer in model.layers}
        for tie in model.ties:
            tied = {of[name] for name in tie.layers}
            cuts = [_cuts(model.operators[case[0]], own) for case, own in words.items() if case[0] in tied]
            unknown = any(not of[name] for name in tie.layers)
            if len(set(cuts)) > 1 or (unknown and any(entry != WHOLE for row in cuts for cut in row for entry in cut)):
                return False
        return True

    def figures(self, split: MeshSplit) -> list[int]:
        """What ways are compared by, on each kind at each micro-batch size: sums over all layers, and bytes sent."""
        found: list[int] = []
        for kind in self.kinds:
            self.teams.check()
            for size in self.teams.sizes:
                rows = [
                    COMPARED @ np.array(self.costs(split, i, kind, size), np.int64)
                    for i, layer in enumerate(self.teams.model.layers)
                    if layer.operators
                ]
                found += [*np.sum(rows, axis=0).tolist(), 2**20 // split.parts]
        return found

    def costs(self, split: MeshSplit, i: int, kind: DeviceKind, size: int) -> tuple[int, ...]:
        """Return the coordinates of a layer under a way."""
        case = self._case(i, split.layout, split.passes)
        problem = self._problem([i], case, kind, size, dict(split.words)[case])
        found = problem.sharding.evaluate((0,) * len(problem.sharding.costs))
        assert found is not None, "words that are possible at one size are possible at all"
        return tuple(found)

    def member(self, split: MeshSplit, i: int, kind: DeviceKind, size: int) -> LayerCost:
        """Return the cost of a layer on each device."""
        case = self._case(i, split.layout, split.passes)
        own, words = self.teams.problem(i, kind, size, ()).rooflines, dict(split.words)[case]
        of = dict(zip(COORDINATES, self.costs(split, i, kind, size), strict=True))
        longer = {name: self._longer(own.graph, words, own.cost, kind, name) for name in PASSES[:1] + PASSES[2:]}
        longer["backward"] = longer["input_gradient"] + longer["weight_gradient"]
        return LayerCost(
            **{name: of[name] + own.constant(name) + longer[name] for name in PASSES},
            saved=of["saved"],
            output=self._output(own.graph, own.cost, split, case, size),
            workspace=own.cost.workspace + self._gathered(own.graph, words),
            update=of["update"] + of["summed"],
        )

    def _gathered(self, graph: OperatorGraph, words: LayerWords) -> int:
        """Most bytes of weights that are gathered for an operator, and of their gradients."""
        found = [0]
        for each in graph.operators:
            own = exchanged(each, words.operators[each.name].word, self.sizes, True)
            found.append(2 * sum(size for size, axes in own if axes))
        return max(found)

    @staticmethod
    def _longer(graph: OperatorGraph, words: LayerWords, cost: LayerCost, kind: DeviceKind, name: str) -> int:
        """Nanoseconds of a pass that operators take longer because they are split."""
        if not _splits(words) or not getattr(cost, name):
            return 0
        return kind.shard_overhead * sum(name != "weight_gradient" or bool(each.weights) for each in graph.operators)

    @staticmethod
    def _output(graph: OperatorGraph, cost: LayerCost, split: MeshSplit, case: Case, size: int) -> int:
        """Bytes of a device's outputs; those beside the one that is split are whole."""
        if set(case[2]) == {WHOLE}:
            return cost.output
        own = stream(graph, graph.outputs)
        sizes = {**graph.inputs} | {each.name: each.output for each in graph.operators}
        beside = min(sum(sizes[name] for name in graph.outputs if name != own) * size, cost.output)
        return beside - (beside - cost.output) // split.parts

    def kept(self, split: MeshSplit, i: int) -> int:
        """Return the bytes of a layer's parameters on each device."""
        kind, size = self.kinds[0], self.teams.sizes[0]
        return self.costs(split, i, kind, size)[COORDINATES.index("parameters")]

    def shared(self, split: MeshSplit, i: int) -> tuple[int, int]:
        """Return the bytes of the weights that a layer shares, and what each device has of them."""
        case = self._case(i, split.layout, split.passes)
        words, graph = dict(split.words)[case], self.teams.model.operators[case[0]]
        whole = own = 0
        for operator in graph.operators:
            for weight in operator.weights:
                if weight.shared:
                    word = words.operators[operator.name].word
                    parts = prod(n for n, letter in zip(self.sizes, word, strict=True) if letter.loop in weight.loops)
                    whole, own = whole + weight.size, own + weight.size // parts
        return whole, own


def mesh_ways(every: Sequence[MeshTeams], tokens: bool = True) -> Iterator[tuple[MeshTeams, MeshSplit]]:
    """Yield the ways over teams of one size that are worth searching, each with the mesh, shape by shape.

    Those that take no figure less than another one by more than 1 / `ALIKE` are left out, of one shape or a former one.
    """
    kept: list[NDArray[np.int64]] = []
    for own in every:
        splits = own.splits(tokens)
        rows = [np.array(own.figures(split), np.int64) for split in splits]
        unlike: list[int] = []
        for k in sorted(range(len(splits)), key=lambda k: sum(rows[k])):
            if not any((other <= rows[k] + rows[k] // ALIKE).all() for other in kept):
                unlike.append(k)
                kept.append(rows[k])
        first = len(kept) - len(unlike)
        yield from ((own, replace(splits[k], number=first + n)) for n, k in enumerate(sorted(unlike)))


def _least(problem: MeshProblem, case: Case, rows: NDArray[np.int64]) -> LayerWords:
    """Return the words with least of some sums of coordinates, compared in order as far as 61 bits go."""
    one, *others = rows.astype(object)
    for other, bound in zip(others, problem.sharding.project(rows).largest[1:], strict=True):
        both = (bound + 1) * one + other
        if sum(both * problem.sharding.largest) >= LARGEST:
            break
        one = both
    found = frontier(problem.sharding.project(np.array([one], np.int64)), Clock(Limits())).choice(0)
    chosen = found[len(problem.signatures) :]
    sums = {each.tensor: each.layouts[k] for each, k in zip(problem.sums, chosen, strict=True)}
    return LayerWords(problem.words(found), sums, case[1], case[2])


def _mean_cost(costs: Sequence[LayerCost]) -> LayerCost:
    """Return the mean of costs, rounded."""
    first = costs[0]
    if all(each == first for each in costs):
        return first
    mean = {each.name: round(sum(getattr(cost, each.name) for cost in costs) / len(costs)) for each in fields(first)}
    return LayerCost(**mean)


def _splits(words: LayerWords) -> bool:
    """Whether any operator is split."""
    return any(letter.loop != UNSPLIT for word, _ in words.operators.values() for letter in word)


def _cuts(graph: OperatorGraph, words: LayerWords) -> tuple[tuple[int, ...], ...]:
    """How the weights that a layer shares are split along each axis of the mesh, and where gradients are parts."""
    return tuple(
        tuple(
            weight.loops.index(letter.loop)
            if letter.loop in weight.loops
            else PARTIAL
            if letter.loop in each.makes
            else WHOLE
            for letter in word
        )
        for each in graph.operators
        for word in [words.operators[each.name].word]
        for weight in each.weights
        if weight.shared
    )


def _hands_over(before: OperatorGraph, after: OperatorGraph) -> bool:
    """Whether a layer hands the next one a tensor that may be split, and that neither of them passes on."""
    made, read = stream(before, before.outputs), stream(after, tuple(after.inputs))
    if not made or not read or len(before.outputs) != len(after.inputs):
        return False
    return (
        before.outputs.index(made) == tuple(after.inputs).index(read)
        and made not in before.inputs
        and read not in after.outputs
        and bool(_rows(before, made))
        and bool(_rows(after, read))
        and len(_rows(before, made)[0][1]) == len(_rows(after, read)[0][1])
    )


def _rows(graph: OperatorGraph, name: str) -> list[tuple[Operator, tuple[str, ...]]]:
    """The operators that read or make a tensor, with the loop of each of its axes."""
    found = [(each, each.reads[name]) for each in graph.operators if name in each.reads]
    return found + [(each, each.makes) for each in graph.operators if each.name == name]
