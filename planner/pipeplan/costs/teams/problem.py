"""The operators of a layer on a team as a problem of `pipeplan_formulations.sharding`, in nanoseconds and bytes.

Nodes are operators, each with its signatures, and tensors, each with the layout in which it is held and the one in
which its gradient is summed up: parts of a gradient that several operators return are added up once::

    norm ──▶ (tensor) ──┬──▶ query        a part of a sum comes back from each of the three, and one
                        ├──▶ key          all-reduce adds them up
                        └──▶ value

What operators take, whole and split, is in `rooflines`. If any weight of the layer is split, or its input is along
tokens, each operator takes longer by `DeviceKind.shard_overhead`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product

import numpy as np
from numpy.typing import NDArray

from pipeplan.core.cluster import DeviceKind, Link
from pipeplan.core.model import LayerCost
from pipeplan.core.operators import TOKEN, Operator, OperatorGraph, Shards
from pipeplan.core.words import UNSPLIT, WHOLE
from pipeplan.costs.collectives import all_reduce, alone
from pipeplan.costs.sharding.coordinates import COORDINATES, combined, in_order
from pipeplan.costs.sharding.exchanges import collective, redistribution
from pipeplan.costs.sharding.layouts import gradient_layout, made_layout, read_layout, returned_layout, stream
from pipeplan.costs.sharding.ring import ring_passes
from pipeplan.costs.sharding.rooflines import PASSES, Rooflines
from pipeplan.costs.teams.signatures import (
    RING,
    WHOLE_ENDS,
    Ends,
    Layout,
    Moves,
    applicable,
    axis_loop,
    beside,
    by_tokens,
    crossings,
    follows,
    held_layout,
    layouts,
    shards_of,
    signatures,
    summed_weights,
    tensor_moves,
    token_axis,
)
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits
from pipeplan_formulations.common.sentinels import UNLIMITED
from pipeplan_formulations.sharding import Edge, Sharding, frontier

PARTS = 1024
"""Bytes are compared in these parts of a layer's."""
WORTH = 2**20
"""Most saved bytes that weigh as much as a nanosecond, where signatures for given shards are chosen."""
FASTEST = combined(
    *(("forward", "backward"), ("saved",), ("forward",), ("input_gradient",), ("weight_gradient",), ("summed",))
)
"""What is least in the choice for given shards: time of a micro-batch; of equal choices, saved bytes, then passes."""
COMPARED = combined(("forward", "backward"), ("summed",), ("parameters",), ("saved",))
"""What choices are compared by."""
COMPARED_AGAIN = np.concatenate([COMPARED, COMPARED[:1] + combined(("forward",))])
"""The same where layers may be recomputed: then a backward has the forward in it once more."""


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
    ends : Ends
        Whether what the layer reads and makes is split along tokens; only then are operators.
    split_loss : bool
        Whether the loss may be split along the classes of the logits.
    context : bool
        Whether products and attention may run on parts of the tokens.
    sharing : int
        Members that share the link where each sends to every other one: those of a node, if they lie in several.
    again : bool
        Whether layers may be recomputed.
    """

    graph: OperatorGraph
    cost: LayerCost
    parameters: int
    kind: DeviceKind
    rates: tuple[float, float] | None
    micro_batch: int
    team: int
    link: Link
    ends: Ends = WHOLE_ENDS
    split_loss: bool = True
    context: bool = True
    sharing: int = 1
    again: bool = False
    _found: dict[Shards, dict[str, int]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _members: dict[Shards, LayerCost] = field(default_factory=dict, init=False, repr=False, compare=False)
    _times: dict[tuple[str, int, int, bool], int] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def rooflines(self) -> Rooflines:
        """What the operators take."""
        return Rooflines(self.graph, self.cost, self.parameters, self.kind, self.rates, self.micro_batch)

    @cached_property
    def loops(self) -> tuple[tuple[str, ...], ...]:
        """The signatures of each operator."""
        whole = () if self.split_loss else self.graph.loss_names
        return tuple(
            (UNSPLIT,) if each.name in whole else signatures(each, self.team, any(self.ends), self.context)
            for each in self.graph.operators
        )

    @cached_property
    def tensors(self) -> tuple[tuple[str, tuple[Layout, ...]], ...]:
        """Each tensor that operators read or make, and its layouts."""
        names = [name for name in self.graph.inputs if any(name in each.reads for each in self.graph.operators)]
        names += [each.name for each in self.graph.operators]
        return tuple((name, layouts(self.graph, self.team, name, self.ends, self.context)) for name in names)

    def sharding(self, fixed: Mapping[str, int | None]) -> Sharding:
        """The problem without signatures that split weights, or the loss, along other axes than ``fixed`` has.

        There None is for whole.
        """
        operators = self.graph.operators
        costs = [self._operator(each, loops, fixed) for each, loops in zip(operators, self.loops, strict=True)]
        costs += [self._tensor(name, rows) for name, rows in self.tensors]
        return Sharding(tuple(costs), self._edges)

    def shards(self, choice: tuple[int, ...]) -> Shards:
        """What a choice splits: weights, the loss, and what runs on parts of the tokens because a plan says so."""
        found: dict[str, int] = {}
        for each, loops, k in zip(self.graph.operators, self.loops, choice, strict=False):
            found |= self._shards(each, loops[k])
        return tuple(found.items())

    def member(self, shards: Shards) -> LayerCost:
        """The cost of the layer on each member if exactly this is split, as far as the ends allow.

        Of the rest it is the fastest choice.
        """
        if shards not in self._members:
            self._members[shards] = self._member(applicable(self.graph, shards, self.ends))
        return self._members[shards]

    def _member(self, shards: Shards) -> LayerCost:
        of = self._fastest(shards)
        split = self.graph.loss_name in dict(shards)
        return LayerCost(
            **{name: of[name] + self.rooflines.constant(name) + self._longer(name, shards) for name in PASSES},
            saved=of["saved"],
            output=-(-self.cost.output // self.team) if split else self._output,
            workspace=self.cost.workspace_for(of["saved"]) + self._at_once(shards),
            update=of["update"] + of["summed"],
        )

    def _at_once(self, shards: Shards) -> int:
        """Most bytes that an operator reads whole of what is kept in parts, or that come to attention on tokens."""
        loops, rows = self.in_words(self.chosen(shards)[1])
        found = [0]
        for each, loop in zip(self.graph.operators, loops, strict=True):
            whole = [
                name for name in each.reads if rows[name].held != WHOLE == read_layout(each, axis_loop(loop), name)
            ]
            found.append(beside(each, loop, self.team) * self.micro_batch + sum(map(self.size, whole)))
        return max(found)

    def in_words(self, choice: tuple[int, ...]) -> tuple[list[str], dict[str, Layout]]:
        """The signature of each operator in a choice, and the layouts of each tensor."""
        loops = [own[k] for own, k in zip(self.loops, choice, strict=False)]
        return loops, {name: own[k] for (name, own), k in zip(self.tensors, choice[len(loops) :], strict=True)}

    @property
    def _output(self) -> int:
        """Bytes of a member's outputs; those beside the one that is split along tokens are whole."""
        if not self.ends.output:
            return self.cost.output
        split = stream(self.graph, self.graph.outputs)
        beside = sum(self.rooflines.sizes[name] for name in self.graph.outputs if name != split) * self.micro_batch
        beside = min(beside, self.cost.output)
        return beside - (beside - self.cost.output) // self.team

    @property
    def compared(self) -> NDArray[np.int64]:
        """What choices are compared by."""
        return COMPARED_AGAIN if self.again else COMPARED

    def figures(self, shards: Shards) -> tuple[int, ...]:
        """Nanoseconds of a micro-batch and of sums; `PARTS` of parameters and saved bytes, with these shards.

        Where layers may be recomputed, also nanoseconds of a micro-batch with another forward.
        """
        of = self._fastest(shards)
        wholes = {"parameters": self.parameters, "saved": self.cost.saved}
        parameters, saved = (round(PARTS * of[name] / max(whole, 1)) for name, whole in wholes.items())
        forward, backward = (of[name] + self._longer(name, shards) for name in ("forward", "backward"))
        again = (2 * forward + backward,) if self.again else ()
        return forward + backward, of["summed"], parameters, saved, *again

    def undominated(self, fixed: Mapping[str, int | None]) -> Iterator[Shards]:
        """Yield the shards of all choices that no other one dominates in what `figures` has, and possibly of more."""
        if self.kind.shard_overhead and all(axis is None for axis in fixed.values()):
            yield ()  # whole weights, which may be faster than what dominates them before this overhead
        problem = self.sharding(fixed)
        rows = [row for row in self.compared if any(problem.project(row[None]).largest)]
        points = frontier(problem.project(np.array(rows or COMPARED[:1])), Clock(Limits()))
        for point in range(len(points.points)):
            yield self.shards(points.choice(point))

    def _fastest(self, shards: Shards) -> dict[str, int]:
        if shards not in self._found:
            self._found[shards] = self._find(shards)
        return self._found[shards]

    def _find(self, shards: Shards) -> dict[str, int]:
        problem, choice = self.chosen(shards)
        costs = problem.evaluate(choice) if choice else ()
        assert costs is not None
        return dict(zip(COORDINATES, costs, strict=bool(costs)))

    def possible(self, shards: Shards) -> bool:
        """Whether a layer with these ends has any choice in which exactly this is split, as far as they allow."""
        return bool(self._fastest(applicable(self.graph, shards, self.ends)))

    def chosen(self, shards: Shards) -> tuple[Sharding, tuple[int, ...]]:
        """The problem in which exactly this is split, as far as the ends allow, and its fastest choice; () if none."""
        axes = dict(applicable(self.graph, shards, self.ends))
        names = (*(weight.name for weight in self.graph.weights), self.graph.loss_name)
        names += tuple(each.name for each in self.graph.operators if each.by_plan)
        problem = self.sharding({name: axes.get(name) for name in names})
        found = frontier(problem.project(in_order(problem, FASTEST, WORTH)), Clock(Limits()))
        return problem, found.choice(0) if len(found.points) else ()

    @property
    def shared_axes(self) -> Iterator[dict[str, int | None]]:
        """The choices of axes of the weights that the layer shares with others."""
        weights = [weight for weight in self.graph.weights if weight.shared]
        for axes in product(*((None, *range(len(weight.loops))) for weight in weights)):
            yield {weight.name: axis for weight, axis in zip(weights, axes, strict=True)}

    def _longer(self, name: str, shards: Shards) -> int:
        """Nanoseconds of a pass that its operators take longer because weights, the loss or the input are split."""
        if name == "backward":
            return self._longer("input_gradient", shards) + self._longer("weight_gradient", shards)
        if not (shards or self.ends.input) or not getattr(self.cost, name):
            return 0
        count = sum(name != "weight_gradient" or bool(each.weights) for each in self.graph.operators)
        return count * self.kind.shard_overhead

    def _operator(
        self, operator: Operator, loops: tuple[str, ...], fixed: Mapping[str, int | None]
    ) -> NDArray[np.int64]:
        rows = []
        for loop in loops:
            shards = self._shards(operator, loop)
            names = [weight.name for weight in operator.weights]
            names += [operator.name] * (operator.by_plan or operator.name == self.graph.loss_name)
            fits = all(fixed.get(name, shards.get(name)) == shards.get(name) for name in names)
            rows.append(self._signature(operator, loop) if fits else [UNLIMITED] * len(COORDINATES))
        return np.array(rows, np.int64)

    def _shards(self, operator: Operator, loop: str) -> dict[str, int]:
        """What an operator splits, as an entry of `Shards`: weights, tokens by a plan, and of a loss the logits."""
        found = shards_of(operator, loop) | by_tokens(operator, loop)
        if loop and operator.name == self.graph.loss_name:
            (logits,) = operator.reads
            found[operator.name] = read_layout(operator, loop, logits)
        return found

    def _signature(self, operator: Operator, loop: str) -> list[int]:
        own = sum(
            weight.size // (self.team if loop in weight.loops else 1)
            for weight in operator.weights
            if weight in self.rooflines.counted
        )
        parts = {axis_loop(loop): self.team} if loop else {}
        by_keys = self.team if operator.attention is not None and loop in (TOKEN, RING) else 1
        passes = self.rooflines.passes(operator, parts, by_keys)
        if loop == RING and (attention := operator.attention) is not None:
            has_gradient = operator.name not in self.graph.without_gradient
            shares = [1] + [1 + attention.causal] * (self.team - 1)
            block = -(-attention.keys * self.micro_batch // self.team)
            passes = ring_passes(passes, shares, block, self.link, has_gradient)
            for place, name in enumerate(PASSES[:3]):  # each block but the first is an operator more
                passes[place] += (self.team - 1) * self.kind.shard_overhead * bool(getattr(self.cost, name))
        for kind, back, bytes_ in crossings(operator, loop, operator.name not in self.graph.without_gradient):
            time = collective(kind, bytes_ * self.micro_batch, self.team, self.link, self.sharing)
            for place in (PASSES.index("backward"), PASSES.index("input_gradient")) if back else (0,):
                passes[place] += time
        size = summed_weights(operator, loop)
        ring = all_reduce(self.team, self.link)
        summed = alone(ring, size) if size else 0
        if loop and self.graph.loss is not None and operator.name == self.graph.loss_name:
            rows = self.graph.loss.rows * self.micro_batch
            passes[0] += 2 * alone(ring, rows) if rows else 0
        return [*passes, self.rooflines.update(own), summed, own, 0]

    def _tensor(self, name: str, rows: tuple[Layout, ...]) -> NDArray[np.int64]:
        """A tensor costs what is kept of it until the backward, and its own moves."""
        costs = np.array([self._moving(name, tensor_moves(self.graph, name, row)) for row in rows], np.int64)
        if name not in self.graph.inputs:
            costs[:, -1] = [self.rooflines.saved(name, self.team if row.held >= 0 else 1) for row in rows]
        return costs

    @cached_property
    def _edges(self) -> tuple[Edge, ...]:
        """Redistributions, which do not depend on what is fixed."""
        found = []
        index = {name: len(self.graph.operators) + i for i, (name, _) in enumerate(self.tensors)}
        rows = dict(self.tensors)
        for v, (each, loops) in enumerate(zip(self.graph.operators, self.loops, strict=True)):
            made = [[self.made(each, loop, row) for row in rows[each.name]] for loop in loops]
            found.append(Edge(v, index[each.name], self._table(each.name, made)))
            for source in each.reads:
                read = [[self.read(each, loop, source, row) for loop in loops] for row in rows[source]]
                found.append(Edge(index[source], v, self._table(source, read)))
        return tuple(found)

    def made(self, operator: Operator, loop: str, row: Layout) -> Moves | None:
        """What it takes to hold what an operator makes in a layout, and to give it the gradient in its own."""
        if operator.name not in self.graph.whole and row.held != held_layout(operator, loop, any(self.ends)):
            return None
        axis = axis_loop(loop)
        made, needed = made_layout(operator, axis), gradient_layout(operator, axis)
        return Moves(((made, row.held),), ((row.gradient, needed),))

    def read(self, operator: Operator, loop: str, source: str, row: Layout) -> Moves | None:
        """What it takes an operator to read a tensor, and to return a gradient in the layout of its sum.

        What is kept is the tensor as it is held: weight gradients move it again. All of its tokens are gathered once
        for all readers (see `tensor_moves`), and again in the backward for products and attention. Operators that may
        have parts of the tokens, and split no weight, have them where a tensor that they read has; those that read a
        single one only there. What `follows` the tensor is split like it where it can be.
        Products and attention have parts of the tokens only if the plan says so, and then wherever they are. Operators
        of the loss have parts of the classes only where the logits have, and then all of them. Attention needs tensors
        as they are held, or whole, or of whole ones a part.
        """
        split = axis_loop(loop)
        needed, returned = read_layout(operator, split, source), returned_layout(operator, split, source)
        held, axis = row.held, self._token_axes[source]
        if operator.name in self.graph.loss_names:
            first = operator.name == self.graph.loss_name
            if held != needed and (loop or not first):
                return None
        elif held != WHOLE and follows(operator, loop):
            alike = operator.reads[source][held]
            if alike != loop and alike in signatures(operator, self.team, any(self.ends), context=False):
                return None
        if held == axis != WHOLE and loop != TOKEN and self._follows(operator, loop):
            return None
        if needed == WHOLE and held == axis != WHOLE:
            if row.gathered < (2 if operator.weights or operator.attention else 1):
                return None
            held = WHOLE
        if loop == TOKEN and held == WHOLE != needed and len(operator.reads) == 1 and not operator.by_plan:
            return None
        if operator.attention and held >= 0 <= needed != held:
            return None
        moved = ((held, needed),)
        return Moves(moved, ((returned, row.gradient),), moved if operator.weights else ())

    def _follows(self, operator: Operator, loop: str) -> bool:
        """Whether an operator, which splits no weight, has parts of the tokens wherever what it reads has."""
        return TOKEN in operator.loops and not operator.by_plan and not shards_of(operator, loop)

    @cached_property
    def _token_axes(self) -> dict[str, int]:
        """The axis of the tokens of each tensor; `WHOLE` where tokens are not split."""
        split = any(self.ends)
        return {name: token_axis(self.graph, name) if split else WHOLE for name, _ in self.tensors}

    def _table(self, name: str, rows: list[list[Moves | None]]) -> NDArray[np.int64]:
        return np.array([[self._moving(name, moves) for moves in row] for row in rows], np.int64)

    def _moving(self, name: str, moves: Moves | None) -> list[int]:
        """The costs of moving a tensor in the forward and its gradient in the backward; `UNLIMITED` if none can."""
        if moves is None:
            return [UNLIMITED] * len(COORDINATES)
        forward, back, again = (
            sum(self._moved(name, source, target, gradient) for source, target in own)
            for own, gradient in zip(moves, (False, True, False), strict=True)
        )
        if forward >= UNLIMITED or back >= UNLIMITED:
            return [UNLIMITED] * len(COORDINATES)
        return [forward, back + again, back, again] + [0] * (len(COORDINATES) - 4)

    def size(self, name: str, gradient: bool = False) -> int:
        """Bytes of a tensor for a micro-batch, or of its gradient, which some do not have."""
        return 0 if gradient and name in self.graph.without_gradient else self.rooflines.sizes[name] * self.micro_batch

    def _moved(self, name: str, source: int, target: int, gradient: bool = False) -> int:
        """Nanoseconds from one layout of a tensor, or of its gradient, to another; `UNLIMITED` if there is no way."""
        size = self.size(name, gradient)
        key = name, source, target, bool(size)
        if key not in self._times:
            found = redistribution(source, target, size, self.team, self.link, self.sharing)
            self._times[key] = UNLIMITED if found is None else found
        return self._times[key]
