"""Devices of teams on meshes of one shape: what each has of the layers, under given words."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from math import prod

from pipeplan.core.cluster import DeviceKind
from pipeplan.core.model import LayerCost, Model, Profile, Provenance
from pipeplan.core.operators import OperatorGraph
from pipeplan.core.words import UNSPLIT, WHOLE, LayerWords, Layout, MeshSplit
from pipeplan.costs.sharding.attention import split_attention
from pipeplan.costs.sharding.batches import by_samples, has_samples
from pipeplan.costs.sharding.coordinates import COORDINATES
from pipeplan.costs.sharding.layouts import stream
from pipeplan.costs.sharding.named import Strategy, rows_are_samples
from pipeplan.costs.sharding.prices import class_axes, exchanged
from pipeplan.costs.sharding.problem import MeshProblem
from pipeplan.costs.sharding.rooflines import PASSES
from pipeplan.costs.sharding.shapes import Mesh, mesh_on
from pipeplan.costs.sharding.teams import Teams
from pipeplan.costs.sharding.words import divides, share

Case = tuple[str, Layout, Layout]
"""The operators of a layer, and the layouts of what it reads and makes."""


@dataclass(frozen=True)
class MeshMembers:
    """Teams of one size as meshes of one shape.

    Attributes
    ----------
    teams : Teams
    sizes : tuple of int
        Devices along each axis.
    strategy : Strategy or None
        The one by which products of matrices are split where they can be; None is any.
    """

    teams: Teams
    sizes: tuple[int, ...]
    strategy: Strategy | None = field(default=None, kw_only=True)
    _problems: dict[tuple[object, ...], MeshProblem] = field(default_factory=dict, init=False, repr=False)
    _known: dict[Hashable, dict[Hashable, object]] = field(default_factory=dict, init=False, repr=False)
    _graphs: dict[tuple[str, int], OperatorGraph] = field(default_factory=dict, init=False, repr=False)
    _possible: dict[MeshSplit, tuple[int, ...]] = field(default_factory=dict, init=False, repr=False)

    def graph(self, name: str, size: int) -> OperatorGraph:
        """Return operators of layers at a micro-batch size, which may run on parts of the samples."""
        if (name, size) not in self._graphs:
            plain = not any(map(has_samples, self.teams.model.operators.values()))
            self._graphs[name, size] = by_samples(self.teams.model.operators[name], size, plain)
        return self._graphs[name, size]

    @cached_property
    def graphs(self) -> dict[str, OperatorGraph]:
        """Operators of all layers at the largest micro-batch size."""
        return {name: self.graph(name, max(self.teams.sizes)) for name in self.teams.model.operators}

    def possible(self, split: MeshSplit) -> tuple[int, ...]:
        """Return the micro-batch sizes at which a way is possible: those whose samples axes divide."""
        if split not in self._possible:
            self._possible[split] = tuple(size for size in self.teams.sizes if self._runs(split, size))
        return self._possible[split]

    def _runs(self, split: MeshSplit, size: int) -> bool:
        every = [(self.graph(name, size), own) for (name, *_), own in split.words]
        rows = [(each, own.operators[each.name].word) for graph, own in every for each in graph.operators]
        return all(divides(operator, word, self.sizes) for operator, word in rows) and None not in (
            self._evaluated(split, own[0], self.teams.kinds[0], size)
            for own in self.cases(split.layout, split.passes).values()
        )

    def case(self, i: int, layout: Layout, passes: tuple[bool, ...]) -> Case:
        """Return the operators and the ends of a layer, if some outputs have a layout."""
        whole = (WHOLE,) * len(self.sizes)
        before = layout if i and passes[i - 1] else whole
        return self.teams.model.layers[i].operators, before, layout if passes[i] else whole

    def cases(self, layout: Layout, passes: tuple[bool, ...]) -> dict[Case, list[int]]:
        """Return the numbers of the layers that are split alike, by operators and ends."""
        found: dict[Case, list[int]] = {}
        for i, layer in enumerate(self.teams.model.layers):
            if layer.operators:
                found.setdefault(self.case(i, layout, passes), []).append(i)
        return found

    def problem(
        self,
        layers: Sequence[int],
        case: Case,
        kind: DeviceKind,
        size: int,
        only: LayerWords | None = None,
        keeps: bool = True,
    ) -> MeshProblem:
        """The words of layers on a kind of device at a micro-batch size, at their mean cost; one for equal layers."""
        i, costs = layers[0], self.teams.costs(kind, size)
        cost = _mean_cost([costs[each] for each in layers])
        key = case, self.teams.model.layers[i].parameters, cost, kind.name, size, only, keeps
        if key not in self._problems:
            own = replace(self.teams.rooflines(i, kind, size), cost=cost, graph=self.graph(case[0], size))
            tokens, ends = self.teams.context_parallel and not self._by_samples(size), case[1:]
            self._problems[key] = MeshProblem(
                own,
                self.mesh(kind),
                *ends,
                gathers=not any(weight.shared for each in own.graph.operators for weight in each.weights),
                split_loss=self.teams.vocabulary_parallel,
                tokens=tokens,
                strategy=self.strategy,
                keeps=keeps,
                only=only,
                known=self._known,
            )
        return self._problems[key]

    def _by_samples(self, size: int) -> bool:
        """Whether a strategy splits samples alone at a micro-batch size."""
        return self.strategy is not None and rows_are_samples(self.sizes, size)

    def mesh(self, kind: DeviceKind) -> Mesh:
        """Return the mesh of teams of a kind of device."""
        place = self.teams.places[kind.name]
        across = self.teams.cluster.network or place.inside
        return mesh_on(self.sizes, self.teams.team // place.nodes, place.inside, across)

    def costs(self, split: MeshSplit, i: int, kind: DeviceKind, size: int) -> tuple[int, ...]:
        """Return the coordinates of a layer under a way."""
        found = self._evaluated(split, i, kind, size)
        assert found is not None, "the way is possible at this size"
        return tuple(found)

    def _evaluated(self, split: MeshSplit, i: int, kind: DeviceKind, size: int) -> Sequence[int] | None:
        problem = self._chosen(split, i, kind, size)
        return problem.sharding.evaluate((0,) * len(problem.sharding.costs))

    def _chosen(self, split: MeshSplit, i: int, kind: DeviceKind, size: int) -> MeshProblem:
        """The problem of a layer with one signature of each operator."""
        case = self.case(i, split.layout, split.passes)
        return self.problem([i], case, kind, size, dict(split.words)[case])

    def member(self, split: MeshSplit, i: int, kind: DeviceKind, size: int) -> LayerCost:
        """Return the cost of a layer on each device."""
        case, problem = self.case(i, split.layout, split.passes), self._chosen(split, i, kind, size)
        words, own = dict(split.words)[case], problem.own(problem.graph.operators[0]).rooflines
        of = dict(zip(COORDINATES, self.costs(split, i, kind, size), strict=True))
        longer = {name: self._longer(own.graph, words, own.cost, kind, name) for name in PASSES[:1] + PASSES[2:]}
        longer["backward"] = longer["input_gradient"] + longer["weight_gradient"]
        return LayerCost(
            **{name: of[name] + own.constant(name) + longer[name] for name in PASSES},
            saved=of["saved"],
            output=self._output(own.graph, own.cost, split, case, size, words),
            workspace=own.cost.workspace_for(of["saved"]) + self._at_once(problem, words),
            update=of["update"] + of["summed"],
        )

    def _at_once(self, problem: MeshProblem, words: LayerWords) -> int:
        """Most bytes that an operator needs beside what is kept.

        Weights that are gathered for it and their gradients, keys and theirs, copies that operators before it or itself
        read and it or those behind it do, unless they are kept, and tensors that it reads in fewer parts than they are
        held in.
        """
        found = [0]
        copies = _copies_at(problem, words)
        for number, each in enumerate(problem.graph.operators):
            word = words.operators[each.name].word
            weights = exchanged(each, word, self.sizes, True)
            attention = split_attention(problem.own(each).rooflines, each, word, self.sizes)
            own = 2 * sum(size for size, axes in weights if axes)
            own += 0 if attention is None else attention.beside
            own += sum(size for first, last, size in copies if first <= number <= last)
            for source in each.reads:
                need, copy = problem.needed(each, word, source), words.copies.get(source)
                if copy is None or (each.name, need) not in ((reader, copy.layout) for reader in copy.readers):
                    held, read = problem.held(source, words), share(need, self.sizes)
                    own += problem.tensors[source].size // read * (read < share(held, self.sizes))
            found.append(own)
        return max(found)

    @staticmethod
    def _longer(graph: OperatorGraph, words: LayerWords, cost: LayerCost, kind: DeviceKind, name: str) -> int:
        """Nanoseconds of a pass that operators take longer because they are split."""
        if not splits_any(words) or not getattr(cost, name):
            return 0
        return kind.shard_overhead * sum(name != "weight_gradient" or bool(each.weights) for each in graph.operators)

    @staticmethod
    def _output(
        graph: OperatorGraph, cost: LayerCost, split: MeshSplit, case: Case, size: int, words: LayerWords
    ) -> int:
        """Bytes of a device's outputs; those beside the one that is split are whole. Of logits it has its classes."""
        if graph.loss_name:
            axes = class_axes(words.operators[graph.loss_name].word)
            return -(-cost.output // prod(split.sizes[axis] for axis in axes))
        if set(case[2]) == {WHOLE}:
            return cost.output
        own = stream(graph, graph.outputs)
        sizes = {**graph.inputs} | {each.name: each.output for each in graph.operators}
        beside = min(sum(sizes[name] for name in graph.outputs if name != own) * size, cost.output)
        return beside - (beside - cost.output) // split.parts

    def kept(self, split: MeshSplit, i: int) -> int:
        """Return the bytes of a layer's parameters on each device."""
        kind, size = self.teams.kinds[0], self.possible(split)[0]
        return self.costs(split, i, kind, size)[COORDINATES.index("parameters")]

    def shared(self, split: MeshSplit, i: int) -> tuple[int, int]:
        """Return the bytes of the weights that a layer shares, and what each device has of them."""
        case = self.case(i, split.layout, split.passes)
        words, graph = dict(split.words)[case], self.teams.model.operators[case[0]]
        whole = own = 0
        for operator in graph.operators:
            for weight in operator.weights:
                if weight.shared:
                    word = words.operators[operator.name].word
                    parts = prod(n for n, letter in zip(self.sizes, word, strict=True) if letter.loop in weight.loops)
                    whole, own = whole + weight.size, own + weight.size // parts
        return whole, own

    def model(self, split: MeshSplit) -> Model:
        """Return the model whose layers have the parameters and the costs of one device, as profiles."""
        model = self.teams.model
        every = [
            Profile(
                kind.name,
                size,
                tuple(
                    self.member(split, i, kind, size) if layer.operators else cost
                    for i, (layer, cost) in enumerate(zip(model.layers, self.teams.costs(kind, size), strict=True))
                ),
                Provenance("analytic", f"teams of {' x '.join(map(str, split.sizes))}"),
            )
            for kind in self.teams.kinds
            for size in self.possible(split)
        ]
        kept = [self.kept(split, i) if layer.operators else layer.parameters for i, layer in enumerate(model.layers)]
        layers = tuple(
            replace(layer, parameters=own, work=None, operators="")
            for layer, own in zip(model.layers, kept, strict=True)
        )
        found = []
        for tie in model.ties:
            first = model.names.index(tie.layers[0])
            whole, own = self.shared(split, first) if model.layers[first].operators else (0, 0)
            found.append(replace(tie, parameters=tie.parameters * own // whole if whole else tie.parameters))
        found = [tie for tie in found if tie.parameters or tie.frozen]
        return replace(model, layers=layers, profiles=tuple(every), ties=tuple(found), operators={})


def _copies_at(problem: MeshProblem, words: LayerWords) -> list[tuple[int, int, int]]:
    """The copies that are not kept: numbers of the first and the last operator that reads one, and its bytes."""
    found = []
    for name, (layout, readers, kept) in words.copies.items():
        if kept:
            continue
        places = [problem.index[reader] for reader in readers]
        size = problem.tensors[name].size // share(layout, problem.mesh.sizes)
        found.append((min(places), max(places), size))
    return found


def _mean_cost(costs: Sequence[LayerCost]) -> LayerCost:
    """Return the mean of costs, rounded."""
    first = costs[0]
    if all(each == first for each in costs):
        return first
    mean = {each.name: round(sum(getattr(cost, each.name) for cost in costs) / len(costs)) for each in fields(first)}
    return LayerCost(**mean)


def splits_loss(graph: OperatorGraph, words: LayerWords) -> bool:
    """Whether a layer's loss is split along the classes of the logits."""
    return bool(graph.loss_name and class_axes(words.operators[graph.loss_name].word))


def splits_any(words: LayerWords) -> bool:
    """Whether any operator is split."""
    return any(letter.loop != UNSPLIT for word, _ in words.operators.values() for letter in word)
