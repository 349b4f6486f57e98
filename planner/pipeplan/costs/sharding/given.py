"""Strategies of a layer on one axis, of which only parts are given: those of weights, and what runs on tokens.

Plans of teams may say of a layer which weights are split, along which axes, whether its ends are split along tokens,
and what else runs on parts of these (`pipeplan.core.plan.Plan.shards`, ``sequence``, ``context``, ``vocabulary``). Of
all strategies that agree with that those are taken which need least time for a micro-batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pipeplan.core.cluster import DeviceKind, Link
from pipeplan.core.grouped_axis import GroupedAxis, ShardAxis, axis_and_groups
from pipeplan.core.model import LayerCost
from pipeplan.core.operators import SAMPLE, TOKEN, Operator, OperatorGraph
from pipeplan.core.strategies import BY_KEYS, UNSPLIT, LayerStrategies, Strategy
from pipeplan.costs.sharding.coordinates import FASTEST, WORTH, in_order
from pipeplan.costs.sharding.placements import stream
from pipeplan.costs.sharding.problem import MeshProblem
from pipeplan.costs.sharding.rooflines import PASSES, Rooflines
from pipeplan.costs.sharding.shapes import Mesh
from pipeplan.costs.sharding.signatures import with_fitting_ends
from pipeplan_formulations.common.clock import no_limit
from pipeplan_formulations.sharding import least_choice

USUAL = DeviceKind("usual"), (1e14, 1e12)
"""A device, its operations and bytes per second, by which strategies are compared where nothing was measured."""


@dataclass(frozen=True)
class GivenSplit:
    """What devices along one axis split of a layer.

    Attributes
    ----------
    weights : mapping of str to int or GroupedAxis
        By names in the layer; others are whole.
    products : frozenset of str
        Whole matrices whose products run on parts of the tokens.
    attention : mapping of int to str
        How attention on parts of the tokens gets keys, by its number in the layer.
    input, output : bool
        Whether what the layer reads and makes is split along tokens.
    loss : bool
        Whether the loss is split along the classes.
    """

    weights: Mapping[str, ShardAxis] = field(default_factory=dict)
    products: frozenset[str] = frozenset()
    attention: Mapping[int, str] = field(default_factory=dict)
    input: bool = False
    output: bool = False
    loss: bool = False

    def loop(self, operator: Operator, devices: int) -> str | None:
        """Return the loop along which the given weights of an operator are split.

        It is `UNSPLIT` if none is split; None if no loop splits exactly these like that.
        """
        loops = {_loop(operator, weight.loops, self.weights.get(weight.name)) for weight in operator.weights}
        loops = loops or {UNSPLIT}
        if loops - {UNSPLIT} and UNSPLIT in loops:  # whole ones beside those that are split
            named = loops - {UNSPLIT}
            whole = [weight for weight in operator.weights if weight.name not in self.weights]
            loops = {None} if any(named & {*weight.loops} for weight in whole) else named
        loop = loops.pop() if len(loops) == 1 else None
        return None if loop and operator.loops.get(loop, 1) % devices else loop

    def splits(self, graph: OperatorGraph, devices: int) -> frozenset[str]:
        """Return the given weights that operators split."""
        return frozenset(
            weight.name
            for each in graph.operators
            for weight in each.weights
            if weight.name in self.weights and self.loop(each, devices)
        )

    def allows(self, operator: Operator, strategy: Strategy, graph: OperatorGraph, devices: int) -> bool:
        """Return whether an operator may run by a strategy: what is given of it is so, and no other weight is split."""
        (entry,) = strategy
        loop, by_tokens = entry.loop, entry.loop == TOKEN
        if entry.gathers or loop == SAMPLE:
            return False
        if operator.name in graph.loss_names:
            return self.loss == (loop != UNSPLIT)
        if operator.attention is not None:
            every = [each.name for each in graph.operators if each.attention is not None]
            by = self.attention.get(every.index(operator.name))
            return (entry.by or BY_KEYS) == by if by_tokens else by is None
        given = self.loop(operator, devices)
        if given:
            return loop == given
        named = any(weight.name in self.products for weight in operator.weights)
        return not any(loop in weight.loops for weight in operator.weights) and (
            not operator.product or named == by_tokens
        )


def given_strategies(
    graph: OperatorGraph, given: GivenSplit, devices: int, rooflines: Rooflines, link: Link
) -> LayerStrategies | None:
    """Return the strategies of a layer that agree with what is given, of least time; None if there are none.

    Ends that are cut where operators cannot be (`with_fitting_ends`) are whole inside. Given weights that no loop of
    their operator splits like that (`GivenSplit.splits`) are whole in the strategies.

    Parameters
    ----------
    graph : OperatorGraph
        With an axis of samples, where tensors have one.
    """
    ends = [_along_tokens(graph, names) for names in (tuple(graph.inputs), graph.outputs)]
    asked = given.input, given.output
    if any(is_split and end is None for is_split, end in zip(asked, ends, strict=True)):
        return None
    before, after = ((end,) if one and end is not None else () for one, end in zip(asked, ends, strict=True))
    inside = with_fitting_ends(graph, LayerStrategies(input=before, output=after), (devices,))
    problem = MeshProblem(
        rooflines,
        Mesh((devices,), (link,)),
        inside.input,
        inside.output,
        tokens=any(asked),
        gathers=False,
        keeps=False,
        scatters=any(asked),
        allows=lambda operator, strategy: given.allows(operator, strategy, graph, devices),
    )
    if not all(problem.signatures):
        return None
    found = least_choice(problem.sharding.project(in_order(problem.sharding, FASTEST, WORTH)), no_limit())
    return None if found is None else replace(problem.layer_strategies(found), input=before, output=after)


def usual_rooflines(graph: OperatorGraph, micro_batch: int) -> Rooflines:
    """Return what the operators of a layer take on a usual device."""
    kind, rates = USUAL
    own = Rooflines(graph, LayerCost(0, 0, 0, 0, 0, 0), graph.parameters, kind, rates, micro_batch)
    kept = sum(each.output for each in graph.operators if each.kept) * micro_batch
    forward, backward, input_gradient, weight_gradient = (own.alone(name) for name in PASSES)
    return replace(own, cost=LayerCost(forward, backward, input_gradient, weight_gradient, kept, 0))


def _loop(operator: Operator, loops: tuple[str, ...], along: ShardAxis | None) -> str | None:
    """The loop of a weight's axis; `UNSPLIT` for none, None if no loop of the operator is split like that."""
    if along is None:
        return UNSPLIT
    axis, _ = axis_and_groups(along)
    loop = loops[axis]
    groups = operator.groups.get(loop)
    return loop if loop in operator.loops and along == (GroupedAxis(axis, groups) if groups else axis) else None


def _along_tokens(graph: OperatorGraph, names: tuple[str, ...]) -> int | None:
    """The axis of the tokens of what a layer reads, or makes; None if there is none."""
    name = stream(graph, names)
    rows = {each.reads[name] for each in graph.operators if name in each.reads}
    rows |= {each.makes for each in graph.operators if each.name == name}
    axes = {row.index(TOKEN) for row in rows if TOKEN in row}
    return axes.pop() if len(axes) == 1 else None
