"""The operators of a layer on a team as a problem of `pipeplan_formulations.sharding`, in nanoseconds and bytes.

Nodes are operators, each with its signatures, and tensors, each with the layout in which it is held and the one in
which its gradient is summed up: parts of a gradient that several operators return are added up once::

    norm ──▶ (tensor) ──┬──▶ query        a part of a sum comes back from each of the three, and one
                        ├──▶ key          all-reduce adds them up
                        └──▶ value

The time of a layer on one device is known, measured or estimated. It is shared out to the operators in proportion to a
roofline of each, and a split operator takes less by its own roofline. What a kind of device adds to every pass of a
layer (`DeviceKind.overhead`) stays.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product

import numpy as np
from numpy.typing import NDArray

from pipeplan.core.cluster import DeviceKind, Link
from pipeplan.core.model import LayerCost
from pipeplan.core.operators import INPUT, Operator, OperatorGraph, Shards, Weight
from pipeplan.costs.collectives import all_reduce, alone
from pipeplan.costs.teams.signatures import (
    gradient_layout,
    held_layout,
    layouts,
    made_layout,
    read_layout,
    redistribution,
    returned_layout,
    shards_of,
    signatures,
    summed_weights,
)
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits
from pipeplan_formulations.common.sentinels import UNLIMITED
from pipeplan_formulations.sharding import Edge, Sharding, frontier
from pipeplan_formulations.sharding.instance import LARGEST

PARTS = 1024
"""Bytes are compared in these parts of a layer's."""
WORTH = 2**20
"""Most saved bytes that weigh as much as a nanosecond, where signatures for given shards are chosen."""
COORDINATES = ("forward", "backward", "input_gradient", "weight_gradient", "update", "summed", "parameters", "saved")
"""What the coordinates of a problem are: nanoseconds of the four passes, of the update and of sums behind it, bytes
that stay, bytes per micro-batch."""
PASSES = COORDINATES[:4]
PICOSECONDS = 10**12

Layouts = Sequence[tuple[int, int]]
"""Pairs of the layout of a tensor and that of its gradient."""


def combined(*rows: tuple[str, ...]) -> NDArray[np.int64]:
    """Return the matrix of a projection to sums of these coordinates."""
    return np.array([[int(name in row) for name in COORDINATES] for row in rows], np.int64)


FASTEST = combined(
    *(("forward", "backward"), ("saved",), ("forward",), ("input_gradient",), ("weight_gradient",), ("summed",))
)
"""What is least in the choice for given shards: time of a micro-batch; of equal choices, saved bytes, then passes."""
COMPARED = combined(("forward", "backward"), ("summed",), ("parameters",), ("saved",))
"""What choices are compared by."""


@dataclass(frozen=True)
class TeamProblem:
    """The choice of signatures for one layer on a kind of device at a micro-batch size.

    Attributes
    ----------
    graph : OperatorGraph
    cost : LayerCost
        The layer on one device.
    parameters : int
        Bytes of its parameters, as the model counts them.
    kind : DeviceKind
    rates : tuple of float or None
        Operations per second and bytes per second of the kind; None where these are not known, and operations alone
        share out the time.
    micro_batch : int
    team : int
    link : Link
        Between the members.
    """

    graph: OperatorGraph
    cost: LayerCost
    parameters: int
    kind: DeviceKind
    rates: tuple[float, float] | None
    micro_batch: int
    team: int
    link: Link
    _found: dict[Shards, dict[str, int]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def loops(self) -> tuple[tuple[str, ...], ...]:
        """The signatures of each operator."""
        return tuple(signatures(each, self.team) for each in self.graph.operators)

    @cached_property
    def tensors(self) -> tuple[tuple[str, tuple[tuple[int, int], ...]], ...]:
        """Each tensor that operators read or make, and the layouts of it and its gradient."""
        names = [INPUT] if any(INPUT in each.reads for each in self.graph.operators) else []
        names += [each.name for each in self.graph.operators]
        return tuple((name, layouts(self.graph, self.team, name)) for name in names)

    def sharding(self, fixed: Mapping[str, int | None]) -> Sharding:
        """The problem without the signatures that split weights along other axes than ``fixed`` has, None for whole."""
        operators = self.graph.operators
        costs = [self._operator(each, loops, fixed) for each, loops in zip(operators, self.loops, strict=True)]
        costs += [self._tensor(name, rows) for name, rows in self.tensors]
        return Sharding(tuple(costs), self._edges)

    def shards(self, choice: tuple[int, ...]) -> Shards:
        """The weights that a choice splits."""
        found: dict[str, int] = {}
        for each, loops, k in zip(self.graph.operators, self.loops, choice, strict=False):
            found |= shards_of(each, loops[k])
        return tuple(found.items())

    def member(self, shards: Shards) -> LayerCost:
        """The cost of the layer on each member if exactly these weights are split: the fastest choice of the rest."""
        of = self._fastest(shards)
        return LayerCost(
            **{name: of[name] + self._constant(name) for name in PASSES},
            saved=of["saved"],
            output=self.cost.output,
            workspace=self.cost.workspace,
            update=of["update"] + of["summed"],
        )

    def figures(self, shards: Shards) -> tuple[int, int, int, int]:
        """Nanoseconds of a micro-batch and of sums; `PARTS` of parameters and saved bytes, with these shards."""
        of = self._fastest(shards)
        wholes = {"parameters": self.parameters, "saved": self.cost.saved}
        parameters, saved = (round(PARTS * of[name] / max(whole, 1)) for name, whole in wholes.items())
        return of["forward"] + of["backward"], of["summed"], parameters, saved

    def undominated(self, fixed: Mapping[str, int | None]) -> Iterator[Shards]:
        """Yield the shards of all choices that no other one dominates in what `figures` has."""
        problem = self.sharding(fixed)
        rows = [row for row in COMPARED if any(problem.project(row[None]).largest)]
        points = frontier(problem.project(np.array(rows or COMPARED[:1])), Clock(Limits()))
        for point in range(len(points.points)):
            yield self.shards(points.choice(point))

    def _fastest(self, shards: Shards) -> dict[str, int]:
        if shards not in self._found:
            self._found[shards] = self._find(shards)
        return self._found[shards]

    def _find(self, shards: Shards) -> dict[str, int]:
        axes = dict(shards)
        problem = self.sharding({weight.name: axes.get(weight.name) for weight in self.graph.weights})
        points = frontier(problem.project(_in_order(problem)), Clock(Limits()))
        costs = problem.evaluate(points.choice(0))
        assert costs is not None
        return dict(zip(COORDINATES, costs, strict=True))

    @property
    def shared_axes(self) -> Iterator[dict[str, int | None]]:
        """The choices of axes of the weights that the layer shares with others."""
        weights = [weight for weight in self.graph.weights if weight.shared]
        for axes in product(*((None, *range(len(weight.loops))) for weight in weights)):
            yield {weight.name: axis for weight, axis in zip(weights, axes, strict=True)}

    def _constant(self, name: str) -> int:
        """Nanoseconds of a pass that do not depend on how it is split."""
        passes = 2 if name == "backward" and self.cost.input_gradient and self.cost.weight_gradient else 1
        whole: int = getattr(self.cost, name)
        return min(whole, passes * self.kind.overhead) if self._wholes[name] else whole

    @cached_property
    def _wholes(self) -> dict[str, int]:
        """For each pass the sum over whole operators, by which it is shared out."""
        return {name: sum(self._estimate(each, "", name) for each in self.graph.operators) for name in PASSES}

    def _estimate(self, operator: Operator, loop: str, name: str) -> int:
        """Roofline of a pass of an operator, in picoseconds; without rates its operations."""
        if name == "backward":
            return self._estimate(operator, loop, "input_gradient") + self._estimate(operator, loop, "weight_gradient")
        share = self.team if loop else 1
        flops = int(getattr(operator, f"{name}_flops")) * self.micro_batch
        if self.rates is None:
            return flops * 1000 // share
        if name == "weight_gradient" and not operator.weights:
            return 0
        peak, bandwidth = self.rates
        moved = sum(weight.size // (self.team if loop in weight.loops else 1) for weight in operator.weights)
        tensors = {**{source: self._sizes[source] for source in operator.reads}, operator.name: operator.output}
        for tensor, size in tensors.items():
            axes = operator.reads.get(tensor, operator.makes)
            moved += self.micro_batch * size // (share if loop in axes else 1)
        return round(PICOSECONDS * max(flops / (share * peak), moved / bandwidth))

    @cached_property
    def _sizes(self) -> dict[str, int]:
        """Bytes of every tensor for one sample."""
        return {INPUT: self.graph.input} | {each.name: each.output for each in self.graph.operators}

    def _operator(
        self, operator: Operator, loops: tuple[str, ...], fixed: Mapping[str, int | None]
    ) -> NDArray[np.int64]:
        rows = []
        for loop in loops:
            shards = shards_of(operator, loop)
            fits = all(
                fixed.get(each.name, shards.get(each.name)) == shards.get(each.name) for each in operator.weights
            )
            rows.append(self._signature(operator, loop) if fits else [UNLIMITED] * len(COORDINATES))
        return np.array(rows, np.int64)

    def _signature(self, operator: Operator, loop: str) -> list[int]:
        passes = [
            _share(
                getattr(self.cost, name) - self._constant(name),
                self._estimate(operator, loop, name),
                self._wholes[name],
            )
            for name in PASSES
        ]
        own = sum(
            weight.size // (self.team if loop in weight.loops else 1)
            for weight in operator.weights
            if weight in self._counted
        )
        update = _share(self.cost.update, own, self.parameters)
        size = summed_weights(operator, loop)
        summed = alone(all_reduce(self.team, self.link), size) if size else 0
        return [*passes, update, summed, own, 0]

    @cached_property
    def _counted(self) -> tuple[Weight, ...]:
        """The weights that make up the layer's parameters."""
        return self.graph.counted(self.parameters)

    def _tensor(self, name: str, rows: tuple[tuple[int, int], ...]) -> NDArray[np.int64]:
        """A tensor costs what is kept of it until the backward."""
        kept = {each.name: each.output for each in self.graph.operators if each.kept}
        total, own = sum(kept.values()), kept.get(name, 0)
        saved = [_share(self.cost.saved, own // self.team if held >= 0 else own, total) for held, _ in rows]
        if not total and name == self.graph.operators[-1].name:
            saved = [self.cost.saved for _ in rows]
        return np.array([[0] * (len(COORDINATES) - 1) + [each] for each in saved], np.int64)

    @cached_property
    def _edges(self) -> tuple[Edge, ...]:
        """Redistributions, which do not depend on what is fixed."""
        found = []
        index = {name: len(self.graph.operators) + i for i, (name, _) in enumerate(self.tensors)}
        rows = dict(self.tensors)
        for v, (each, loops) in enumerate(zip(self.graph.operators, self.loops, strict=True)):
            made = [(made_layout(each, loop), gradient_layout(each, loop)) for loop in loops]
            size, output = each.output * self.micro_batch, v == len(self.loops) - 1
            table = self._table(made, rows[each.name], size)
            for k, loop in enumerate(loops):
                for t, (held, _) in enumerate(rows[each.name]):
                    if held != held_layout(each, loop) and not output:
                        table[k, t] = UNLIMITED
            found.append(Edge(v, index[each.name], table))
            for source in each.reads:
                read = [(read_layout(each, loop, source), returned_layout(each, loop, source)) for loop in loops]
                size = self._sizes[source] * self.micro_batch
                found.append(Edge(index[source], v, self._table(rows[source], read, size)))
        return tuple(found)

    def _table(self, sources: Layouts, targets: Layouts, size: int) -> NDArray[np.int64]:
        """Redistributions of a tensor forward, and of its gradient backward."""
        table = np.zeros((len(sources), len(targets), len(COORDINATES)), np.int64)
        for s, (held, wanted) in enumerate(sources):
            for t, (needed, returned) in enumerate(targets):
                forward = redistribution(held, needed, size, self.team, self.link)
                backward = redistribution(returned, wanted, size, self.team, self.link)
                if forward is None or backward is None:
                    table[s, t] = UNLIMITED
                else:
                    table[s, t, :3] = forward, backward, backward
        return table


def _in_order(problem: Sharding) -> NDArray[np.int64]:
    """Return one row of weights by which choices compare as by the rows of `FASTEST` in order, as far as 61 bits go."""
    most = [int(each) for each in problem.project(FASTEST).largest]
    row, largest = FASTEST[0], most[0]
    for number, (other, bound) in enumerate(zip(FASTEST[1:], most[1:], strict=True)):
        factor = bound + 1 if number else min(bound + 1, WORTH)
        if largest * factor + bound >= LARGEST:
            break
        row, largest = factor * row + other, factor * largest + bound
    return np.array([row])


def _share(whole: int, part: int, total: int) -> int:
    """Return the part of a whole that falls to ``part`` of ``total``, rounded up; all 0 where the total is."""
    return -(-whole * part // total) if total else 0
