"""Ways of teams along one axis: main strategies of every layer, and what passes between layers in parts of the tokens.

Layers with equal operators run alike, in all stages. For each graph of operators, kind of device and micro-batch size,
the choices of strategies that no other one dominates are compared (`LayerWays.figures`, summed over these layers). The
main strategies of one of them are worth searching unless others are at least as good for all kinds and sizes. Layers
that share weights split them alike.
Ways of unlike layers are combined, by sums over all layers (`together`). Combinations that are nearly as good as
another one between the same placements are left out (`alike`).

Tensors between layers are whole on every device, or all those that can be are split along tokens.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from itertools import chain, count, pairwise, product

import numpy as np
from numpy.typing import NDArray

from pipeplan.core.cluster import DeviceKind
from pipeplan.core.model import LayerCost, Model, Profile, Provenance, Tie
from pipeplan.core.operators import TOKEN, Operator, OperatorGraph
from pipeplan.core.splits import Split
from pipeplan.core.strategies import WHOLE, AxisStrategy, LayerStrategies, Placements, Strategy, splits
from pipeplan.costs.sharding.alike import figures, unlike
from pipeplan.costs.sharding.batches import with_samples
from pipeplan.costs.sharding.coordinates import COORDINATES
from pipeplan.costs.sharding.layer_ways import (
    COMPARED,
    COMPARED_AGAIN,
    KEEPS,
    PARTS,
    LayerWays,
    MainStrategies,
    parallelism,
)
from pipeplan.costs.sharding.members import device_model
from pipeplan.costs.sharding.placements import ends_of, handed_over, token_axis
from pipeplan.costs.sharding.problem import MeshProblem
from pipeplan.costs.sharding.teams import Teams
from pipeplan.costs.sharding.ties import agree, shared_bytes, shared_cuts
from pipeplan.costs.sharding.together import Together
from pipeplan_formulations.common.pareto import minimal

PREFERRED = (0, 2, 3, 4)
"""Figures of which combinations with the least stay: time of a micro-batch, parameters, saved bytes, and where layers
may be recomputed the time with another forward."""

NEARLY = 4096
"""A way is left out if another one takes no figure of the model more by over one part in so many."""

Figures = tuple[int, ...]
"""Sums of `LayerWays.figures` over layers, bytes in `PARTS` of theirs; on each kind for each micro-batch size."""
Between = tuple[Placements, tuple[bool, ...]]
"""The placements of what passes between layers, and the layers whose output has them; others are whole."""
Asked = Collection[tuple[Between | None, int]]
"""What passes between layers, None in meshes, and micro-batch sizes."""
Alike = list[tuple[int, LayerWays]]
"""Ways of layers on a kind at a micro-batch size, and how many equal ones have each."""


class TeamWays:
    """The ways in which teams of one size, each along one axis, run a model.

    Parameters
    ----------
    teams : Teams
    """

    def __init__(self, teams: Teams) -> None:
        self.teams, self.model = teams, teams.model
        self._layers: dict[tuple[object, ...], LayerWays] = {}
        self._known: dict[object, dict[object, object]] = {}
        self._asked: Asked | None = None

    def at(self, sizes: tuple[int, ...]) -> "TeamWays":
        """Return the ways at these micro-batch sizes; what is priced for these is priced here."""
        if sizes == self.teams.sizes:
            return self
        found = copy(self)
        found.teams = self.teams.at(sizes)
        return found

    def among(self, asked: "Asked") -> "TeamWays":
        """Return the same, of which those between some placements are asked for, each at some micro-batch sizes."""
        found = copy(self)
        found._asked = asked
        return found

    def _sizes(self, between: Between) -> tuple[int, ...]:
        """The micro-batch sizes at which ways are asked for."""
        return tuple(size for size in self.teams.sizes if self._asked is None or (between, size) in self._asked)

    def ways(self, tokens: bool = True) -> Iterator[tuple[Split, Model]]:
        """Yield the ways that are worth searching, each with the costs of a device: a profile for each size.

        ``tokens``: also those with parts of the tokens between layers.
        """
        numbers = count()
        for between in self.between(tokens):
            if sizes := self._sizes(between):
                yield from self.at(sizes)._between_same(between, numbers)

    def _between_same(self, between: Between, numbers: Iterator[int]) -> Iterator[tuple[Split, Model]]:
        """Yield those between the same placements."""
        names = dict.fromkeys(layer.operators for layer in self.model.layers if layer.operators)
        choices = {name: self._worthwhile(name, *between) for name in names}
        every = _AllLayers(self, *between)
        together = chain(*map(self._together, _with_and_without(choices)))
        ways = [every.way(main, 0) for main in together if every.possible(main) and every.splits(main)]
        for k in unlike([figures(model, self.teams) for _, model in ways], [], NEARLY):
            split, model = ways[k]
            yield replace(split, number=next(numbers)), model

    def way(self, main: Mapping[str, MainStrategies], tokens: bool = False) -> tuple[Split, Model]:
        """Return a way with main strategies by graph, and the costs of a device; ``tokens``: with parts of them."""
        every = {}
        for name, graph in self.graphs.items():
            shared = {
                operator.name for operator in graph.operators if any(weight.shared for weight in operator.weights)
            }
            every[name] = tuple((dict.fromkeys(sorted(shared), (AxisStrategy(),)) | dict(main[name])).items())
        return _AllLayers(self, *self.between(tokens)[-1]).way(every, 0)

    def layer(self, i: int, kind: DeviceKind, size: int, input_: Placements, output: Placements) -> LayerWays:
        """Return the ways of a layer between given placements; one object for equal layers."""
        return self._of_layers([i], kind, size, input_, output)[1]

    def _of_layers(
        self, layers: Sequence[int], kind: DeviceKind, size: int, input_: Placements, output: Placements
    ) -> tuple[int, LayerWays]:
        """The ways of layers that run alike, whose figures are sums; of equal ones those of one, and how many."""
        unlike = self.teams.different(layers, kind, size)
        key = *((id(whole), count) for whole, count in unlike), input_, output
        if key not in self._layers:
            graph = self.graphs[self.model.layers[layers[0]].operators]
            every = tuple((self.teams.with_graph(whole, graph), count) for whole, count in unlike)
            problem = MeshProblem(
                every[0][0],
                self.teams.mesh(kind, (self.teams.team,)),
                input_,
                output,
                tokens={*input_, *output} != {WHOLE},
                gathers=False,
                split_loss=self.teams.vocabulary_parallel,
                allows=None if self.teams.context_parallel else _without_context,
                known=self._known,
                layers=every,
            )
            self._layers[key] = LayerWays(problem, self.teams.again, self.teams.clock)
        return len(layers) if len(unlike) == 1 else 1, self._layers[key]

    def _alike(self, name: str, placements: Placements, passes: tuple[bool, ...]) -> Iterator[Alike]:
        """Yield the layers with the same operators, on each kind at each micro-batch size.

        Those between the same placements are alike, with as many parameters: they have sums of their costs.
        """
        groups: dict[tuple[tuple[Placements, Placements], int], list[int]] = {}
        for i, layer in enumerate(self.model.layers):
            if layer.operators == name:
                groups.setdefault((ends_of(placements, passes, i), layer.parameters), []).append(i)
        for kind, size in product(self.teams.kinds, self.teams.sizes):
            yield [self._of_layers(layers, kind, size, *ends) for (ends, _), layers in groups.items()]

    @cached_property
    def graphs(self) -> dict[str, OperatorGraph]:
        """The operators of layers, with an axis of samples."""
        return {name: with_samples(graph, self.teams.plain) for name, graph in self.model.operators.items()}

    def between(self, tokens: bool = True) -> list[Between]:
        """Return what may pass between layers, whole tensors first; ``tokens``: also parts of the tokens."""
        return self._between if tokens else self._between[:1]

    @cached_property
    def _between(self) -> list[Between]:
        named = [self.graphs.get(layer.operators) for layer in self.model.layers]
        passes: dict[int, list[bool]] = {}
        for cut, (before, after) in enumerate(pairwise(named)):
            axis = WHOLE
            if before is not None and after is not None and self.model.hands_over(cut):
                axis = _passed_axis(before, after, self.teams.team)
            if axis != WHOLE:
                passes.setdefault(axis, [False] * len(named))[cut] = True
        whole = (WHOLE,), (False,) * len(named)
        return [whole, *(((axis,), tuple(row)) for axis, row in sorted(passes.items()))]

    def _worthwhile(self, name: str, placements: Placements, passes: tuple[bool, ...]) -> dict[MainStrategies, Figures]:
        """The main strategies of layers with the same operators that no others dominate on all kinds at all sizes.

        With each, its figures for all of these.
        """
        alike = list(self._alike(name, placements, passes))
        problems = [layer_ways for row in alike for _, layer_ways in row]
        kept: dict[MainStrategies, Figures] = {}
        for shared in max(
            (layer_ways for _, layer_ways in alike[0]), key=lambda layer_ways: layer_ways.problem.tokens
        ).shared_strategies:
            mains: dict[MainStrategies, None] = {}
            for problem in problems:
                self.teams.check()
                mains |= dict.fromkeys(problem.undominated(shared))
            rows: dict[MainStrategies, Figures] = {}
            for main in mains:
                self.teams.check()
                if all(problem.chosen(main) for problem in problems):
                    rows[main] = tuple(chain.from_iterable(_figures(row, main) for row in alike))
            for keeps in (False, True):
                both = {main: figures for main, figures in rows.items() if (KEEPS in main) == keeps}
                undominated = minimal(np.array(list(both.values()))) if both else ()
                kept |= {main: figures for k, (main, figures) in enumerate(both.items()) if k in undominated}
        return kept

    def _together(self, choices: Mapping[str, Mapping[MainStrategies, Figures]]) -> list[dict[str, MainStrategies]]:
        """The main strategies of all layers in combinations in which layers that share weights split them alike."""
        width = len(COMPARED_AGAIN if self.teams.again else COMPARED)
        order = sorted(choices, key=lambda name: not any(weight.shared for weight in self.graphs[name].weights))
        return Together(
            {
                name: {main: np.array(figures) * self._units(name) for main, figures in choices[name].items()}
                for name in order
            },
            lambda name, main: shared_cuts(self.graphs[name], dict(main)),
            lambda cuts: agree(self.model, lambda name: [cuts[name]] if name in cuts else []),
            [slice(k, None, width) for k in (PREFERRED if self.teams.again else PREFERRED[:-1])],
            self.teams.check,
        ).rows()

    def _units(self, name: str) -> NDArray[np.float64]:
        """Nanoseconds and bytes of one in each of the figures of the layers with these operators."""
        layers = [i for i, layer in enumerate(self.model.layers) if layer.operators == name]
        parameters, units = sum(self.model.layers[i].parameters for i in layers), list[float]()
        for kind, size in product(self.teams.kinds, self.teams.sizes):
            saved = sum(self.teams.costs(kind, size)[i].saved for i in layers)
            units += [1, 1, *(max(whole, 1) / PARTS for whole in (parameters, saved)), *[1] * self.teams.again]
        return np.array(units)


class _AllLayers:
    """The layers of a model between the same placements: what equal ones have is found once for all."""

    def __init__(self, ways: TeamWays, placements: Placements, passes: tuple[bool, ...]) -> None:
        self._ways, self._teams, self._model = ways, ways.teams, ways.model
        self._placements, self._passes = placements, passes
        self._places = [(kind, size) for kind in self._teams.kinds for size in self._teams.sizes]
        self._rows = {(kind.name, size): self._row(kind, size) for kind, size in self._places}

    def _row(self, kind: DeviceKind, size: int) -> list[LayerWays | None]:
        """The ways of each layer; None where its operators are not known."""
        return [
            self._ways.layer(i, kind, size, *ends_of(self._placements, self._passes, i)) if layer.operators else None
            for i, layer in enumerate(self._model.layers)
        ]

    def possible(self, main: Mapping[str, MainStrategies]) -> bool:
        """Whether all layers with the same operators can run alike: some have other ends than the first."""
        names = [layer.operators for layer in self._model.layers]
        pairs = {
            (layer_ways, name)
            for row in self._rows.values()
            for layer_ways, name in zip(row, names, strict=True)
            if layer_ways
        }
        return all(layer_ways.chosen(main[name]) is not None for layer_ways, name in pairs if layer_ways)

    def splits(self, main: Mapping[str, MainStrategies]) -> bool:
        """Whether any operator is split, not only the loss, on some kind at some micro-batch size."""
        names = [layer.operators for layer in self._model.layers]
        return any(
            splits(strategy) and operator not in self._ways.graphs[name].loss_names
            for row in self._rows.values()
            for layer_ways, name in zip(row, names, strict=True)
            if layer_ways and (chosen := layer_ways.chosen(main[name]))
            for operator, (strategy, _) in chosen.strategies.operators.items()
        )

    def way(self, main: Mapping[str, MainStrategies], number: int) -> tuple[Split, Model]:
        """Return a way, and the model whose layers have the parameters and the costs of one device, as profiles."""
        teams, model = self._teams, self._model
        teams.check()
        profiles, strategies = [], dict[tuple[str, int], tuple[LayerStrategies, ...]]()
        for kind, size in self._places:
            costs, layers = self._on(kind, size, main)
            profiles.append(Profile(kind.name, size, costs, Provenance("analytic", f"teams of {teams.team}")))
            strategies[kind.name, size] = layers
        sizes = (teams.team,)
        graphs = self._ways.graphs
        said = parallelism(
            ((graphs[name], strategies_of_main) for name, strategies_of_main in main.items()), any(self._passes)
        )
        split = Split(sizes, self._placements, self._passes, number, *teams.links(sizes), strategies, said)
        return split, device_model(model, profiles, self._kept(main), [self._shared(tie, main) for tie in model.ties])

    def _on(
        self, kind: DeviceKind, size: int, main: Mapping[str, MainStrategies]
    ) -> tuple[tuple[LayerCost, ...], tuple[LayerStrategies, ...]]:
        """The costs of a device and the strategies of all layers."""
        known: dict[LayerWays, tuple[LayerCost, LayerStrategies]] = {}
        costs, strategies = [], []
        whole = self._teams.costs(kind, size)
        for layer, layer_ways, cost in zip(self._model.layers, self._rows[kind.name, size], whole, strict=True):
            if layer_ways is None:
                priced = cost, LayerStrategies()
            elif layer_ways in known:
                priced = known[layer_ways]
            else:
                chosen = layer_ways.chosen(main[layer.operators])
                assert chosen is not None, "the way is possible"
                priced = known[layer_ways] = layer_ways.device(main[layer.operators]), chosen.strategies
            costs.append(priced[0])
            strategies.append(priced[1])
        return tuple(costs), tuple(strategies)

    def _kept(self, main: Mapping[str, MainStrategies]) -> list[int]:
        """Bytes of each layer's parameters on a device."""
        row, kept = next(iter(self._rows.values())), []
        for layer, layer_ways in zip(self._model.layers, row, strict=True):
            chosen = layer_ways and layer_ways.chosen(main[layer.operators])
            kept.append(chosen.costs[COORDINATES.index("parameters")] if chosen else layer.parameters)
        return kept

    def _shared(self, tie: Tie, main: Mapping[str, MainStrategies]) -> int:
        """Bytes on a device of the weights that layers share."""
        name = next(layer.operators for layer in self._model.layers if layer.name == tie.layers[0])
        return shared_bytes(tie, self._ways.graphs.get(name), dict(main.get(name, ())), (self._teams.team,))


def _figures(alike: Alike, main: MainStrategies) -> Figures:
    """Return the sums of figures of layers under main strategies, bytes in `PARTS`."""
    rows = np.array([[*layer_ways.figures(main), *layer_ways.wholes] for _, layer_ways in alike])
    *sums, parameters, saved = (rows.T @ [count for count, _ in alike]).tolist()
    sums[2:4] = (
        round(PARTS * part / max(whole, 1)) for part, whole in zip(sums[2:4], (parameters, saved), strict=True)
    )
    return tuple(sums)


def _with_and_without(
    choices: Mapping[str, Mapping[MainStrategies, Figures]],
) -> Iterator[dict[str, dict[MainStrategies, Figures]]]:
    """Yield the choices without kept copies, and those with them of all graphs that have some, if any has."""
    split = {
        name: tuple({main: mains[main] for main in mains if (KEEPS in main) == keeps} for keeps in (False, True))
        for name, mains in choices.items()
    }
    yield {name: without for name, (without, _) in split.items()}
    if any(kept for _, kept in split.values()):
        yield {name: kept or without for name, (without, kept) in split.items()}


def _without_context(operator: Operator, strategy: Strategy) -> bool:
    """Whether a strategy runs no product or attention on parts of the tokens."""
    return not operator.by_plan or all(entry.loop != TOKEN for entry in strategy)


def _passed_axis(before: OperatorGraph, after: OperatorGraph, team: int) -> int:
    """Return the axis of the tokens in what a layer hands the next one; `WHOLE` if devices cannot have parts of them.

    Neither of them passes it on, and a team divides the parts of all operators along tokens.
    """
    handed = handed_over(before, after)
    if handed is None:
        return WHOLE
    axes = {token_axis(before, handed[0]), token_axis(after, handed[1])}
    fits = has_token_parts(after, team) and (has_token_parts(before, team) or not has_token_parts(before, 1))
    return axes.pop() if fits and len(axes) == 1 else WHOLE


def has_token_parts(graph: OperatorGraph, team: int) -> bool:
    """Return whether there are operators with the loop `TOKEN`, and a team divides the parts of all of them."""
    parts = [operator.loops[TOKEN] for operator in graph.operators if TOKEN in operator.loops]
    return bool(parts) and not any(count % team for count in parts)
