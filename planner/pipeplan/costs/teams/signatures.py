"""Signatures of operators on a team: the loop that each is split along, and the layouts that follow.

A tensor is whole on every member, split along one of its axes, or on each member a part of a sum. With the loops of an
operator (`pipeplan.core.operators`) a signature fixes the layout of all its tensors, and of their gradients::

    linear map                    reads    weight   makes    gradient of     returned for
    [token, h] -> [token, f]                                 the output      the input
    whole                         whole    whole    whole    whole           whole
    split along f (columns)       whole    axis 0   axis 1   axis 1          a part of a sum
    split along h (rows)          axis 1   axis 1   a part   whole           axis 1
    split along the tokens        axis 0   whole    axis 0   axis 0          axis 0

A weight without the loop is whole, and the members sum its gradient once per step.

Where tensors between layers are split along tokens, so is most of what is not split otherwise: operators with the loop
`TOKEN` work on parts, parts of a sum are added up to such a part, and what needs all tokens gathers them once for all
that read the tensor. They are not kept: a weight gradient gathers them again.

Products of matrices and attention run on parts of the tokens where a plan says so (context parallelism). Weights are
then whole. Attention needs the keys and values of all tokens, in one of three ways::

    TOKEN   each member gathers keys and values, and has its own queries
    RING    keys and values go round block by block while each member attends to the block before (`costs.teams.ring`)
    TURNED  members exchange tokens for heads, have some heads of all tokens, and exchange these again
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from pipeplan.core.cluster import Link
from pipeplan.core.operators import BY_HEADS, BY_RING, TOKEN, Operator, OperatorGraph, Shards
from pipeplan.core.words import PARTIAL, UNSPLIT, WHOLE
from pipeplan.costs.collectives import all_reduce, alone
from pipeplan.costs.teams.ring import BUFFERS

RING, TURNED = "token by ring", "token by head"
"""Signatures of attention on parts of the tokens: keys and values go round, or tokens are exchanged for heads."""
ON_TOKENS = TOKEN, RING, TURNED
"""Signatures of products and attention on parts of the tokens."""


class Ends(NamedTuple):
    """Whether a layer's input and its output are split along tokens: of several, the `stream`."""

    input: bool = False
    output: bool = False


WHOLE_ENDS = Ends()


def ends_of(sequence: tuple[bool, ...], layer: int) -> Ends:
    """Return the ends of a layer; ``sequence`` says which layers' outputs are split, none if it is empty."""
    return Ends(layer > 0 and sequence[layer - 1], sequence[layer]) if sequence else WHOLE_ENDS


class Layout(NamedTuple):
    """Layout of a tensor, and that in which its gradient is summed up.

    ``gathered``: how often all of a tensor that is split along tokens is gathered in a micro-batch: not, in the forward
    only, or in the backward again.
    """

    held: int
    gradient: int
    gathered: int = 0


class Moves(NamedTuple):
    """Changes of layout, each from one to another: of a tensor, of its gradient, and of the tensor in the backward.

    The last are for weight gradients.
    """

    forward: tuple[tuple[int, int], ...] = ()
    gradient: tuple[tuple[int, int], ...] = ()
    again: tuple[tuple[int, int], ...] = ()


class Exchange(StrEnum):
    """Collectives that change the layout of a tensor."""

    SUM = "all-reduce"
    GATHER = "all-gather"
    SCATTER = "reduce-scatter"
    TURN = "all-to-all"
    SHIFT = "send-recv"


def signatures(operator: Operator, team: int, tokens: bool = False, context: bool = True) -> tuple[str, ...]:
    """Return the loops along which a team can split an operator, after `UNSPLIT`.

    ``tokens``: also along `TOKEN`; ``context``: also products and attention.
    """
    tokens = tokens and (context or not operator.by_plan)
    loops = tuple(loop for loop, parts in operator.loops.items() if parts % team == 0 and (tokens or loop != TOKEN))
    if operator.attention is None or TOKEN not in loops:
        return UNSPLIT, *loops
    return UNSPLIT, *loops, RING, *(TURNED for _ in range(operator.attention.heads % team == 0))


def by_tokens(operator: Operator, loop: str) -> dict[str, int]:
    """Return the entry of `Shards` for a product or attention on parts of the tokens."""
    if not operator.by_plan or loop not in ON_TOKENS:
        return {}
    return {operator.name: {RING: BY_RING, TURNED: BY_HEADS}.get(loop, operator.makes.index(TOKEN))}


def applicable(graph: OperatorGraph, shards: Shards, ends: Ends) -> Shards:
    """Return what a layer with these ends splits: without parts of the tokens no operator runs on such parts."""
    named = {each.name for each in graph.operators if each.by_plan and not any(ends)}
    return tuple((name, axis) for name, axis in shards if name not in named)


def follows(operator: Operator, loop: str) -> bool:
    """Return whether an operator with this signature runs on parts wherever what it reads is split so that it can.

    Elementwise operations and attention do: those that read one tensor, and have no weights. Attention that a plan runs
    on parts of the tokens does not: it gathers what is split along another axis, and has no tokens.
    """
    by_plan = operator.attention is not None and loop in ON_TOKENS
    return len(operator.reads) == 1 and not operator.weights and not by_plan


def read_layout(operator: Operator, loop: str, source: str) -> int:
    """Return the layout in which an operator needs what it reads of ``source``."""
    return _layout(operator.reads[source], loop)


def made_layout(operator: Operator, loop: str) -> int:
    """Return the layout of what an operator makes."""
    return PARTIAL if loop and axis_loop(loop) not in operator.makes else _layout(operator.makes, loop)


def gradient_layout(operator: Operator, loop: str) -> int:
    """Return the layout in which an operator needs the gradient of what it makes."""
    return _layout(operator.makes, loop)


def returned_layout(operator: Operator, loop: str, source: str) -> int:
    """Return the layout of the gradient that an operator returns for what it reads of ``source``."""
    axes = operator.reads[source]
    return PARTIAL if loop and axis_loop(loop) not in axes else _layout(axes, loop)


def shards_of(operator: Operator, loop: str) -> dict[str, int]:
    """Return the weights of an operator that are split, and the axis of each."""
    return {weight.name: weight.loops.index(loop) for weight in operator.weights if loop in weight.loops}


def summed_weights(operator: Operator, loop: str) -> int:
    """Return the bytes of weights whose gradients the members sum once per step."""
    summed = bool(loop) and axis_loop(loop) in operator.makes
    return sum(weight.size for weight in operator.weights if summed and loop not in weight.loops)


def axis_loop(loop: str) -> str:
    """Return the loop of the axes along which a signature splits tensors."""
    return TOKEN if loop in ON_TOKENS else loop


def _layout(axes: tuple[str, ...], loop: str) -> int:
    loop = axis_loop(loop)
    return axes.index(loop) if loop and loop in axes else WHOLE


class Crossing(NamedTuple):
    """A collective of attention on parts of the tokens, in the backward if ``back``; bytes of a sample's tensor."""

    kind: Exchange
    back: bool
    size: int


def crossings(operator: Operator, loop: str, has_gradient: bool = True) -> tuple[Crossing, ...]:
    """Return what attention on parts of the tokens exchanges before it runs, and behind it.

    What is kept are the parts, so the backward exchanges operands again, and the output together with its gradient.
    """
    if operator.attention is None or loop not in (TOKEN, TURNED):
        return ()
    queries, keys = operator.attention.queries, operator.attention.keys
    if loop == TOKEN:
        rows = [(Exchange.GATHER, False, keys), (Exchange.GATHER, True, keys), (Exchange.SCATTER, True, keys)]
    else:
        both, made = queries + keys, operator.output
        rows = [(Exchange.TURN, False, size) for size in (both, made)]
        rows += [(Exchange.TURN, True, size) for size in (both, 2 * made, both)]
    return tuple(Crossing(*row) for row in rows if has_gradient or not row[1])


def beside(operator: Operator, loop: str, team: int) -> int:
    """Return the bytes of a sample that attention on parts of the tokens needs in a backward beside these parts.

    All keys and values with their gradients, some blocks of these, or what is exchanged for heads with its gradients.
    """
    if operator.attention is None or loop not in ON_TOKENS:
        return 0
    queries, keys = operator.attention.queries, operator.attention.keys
    every = {
        TOKEN: 2 * keys,
        RING: -(-BUFFERS * keys // team),
        TURNED: -(-2 * (queries + keys + operator.output) // team),
    }
    return every[loop]


def collective(kind: Exchange, size: int, team: int, link: Link, sharing: int = 1) -> int:
    """Return the nanoseconds of a collective on a tensor of ``size`` bytes in all; none on an empty one.

    ``sharing``: members that send over one card at once where each sends every other one its part; in a ring one does.
    """
    if not size:
        return 0
    if kind is Exchange.TURN:
        part = link.in_collectives.occupancy(sharing * -(-size // team**2))
        return (team - 1) * (link.latency + part)
    ring = all_reduce(team, link)
    return alone(ring if kind is Exchange.SUM else ring.one_way, size)


def exchange(source: int, target: int) -> Exchange | None:
    """Return the collective by which a tensor gets another layout; None if members send nothing.

    A sum is an all-reduce, or a reduce-scatter where the target is split; what is split is gathered; from one axis to
    another each member sends every other one its part. Members drop parts of what is whole, or all but one drop it.
    """
    if source in (target, WHOLE):
        return None
    if source == PARTIAL:
        return Exchange.SUM if target == WHOLE else Exchange.SCATTER
    return Exchange.GATHER if target == WHOLE else Exchange.TURN


def redistribution(source: int, target: int, size: int, team: int, link: Link, sharing: int = 1) -> int | None:
    """Return the nanoseconds in which a tensor of ``size`` bytes in all gets another layout; None if it cannot.

    What is whole becomes a part of a sum without sending: that of one member is the whole, of the others nothing.
    ``sharing``: as in `collective`.
    """
    if target == PARTIAL and source not in (PARTIAL, WHOLE):
        return None
    kind = exchange(source, target)
    return 0 if kind is None else collective(kind, size, team, link, sharing)


def tensor_moves(graph: OperatorGraph, name: str, row: Layout) -> Moves:
    """Return the moves of a tensor by itself: all of its tokens gathered, and of a layer's input its gradient."""
    tokens = ((row.held, WHOLE),)
    back = ((row.gradient, row.held),) if name in graph.inputs else ()
    return Moves(tokens if row.gathered else (), back, tokens if row.gathered > 1 else ())


def held_layout(operator: Operator, loop: str, tokens: bool = False) -> int:
    """Return the layout in which what an operator makes is held: as it is made, parts of a sum added up at once.

    With ``tokens`` they are added up to a part of the tokens.
    """
    made = made_layout(operator, loop)
    if made != PARTIAL:
        return made
    return _layout(operator.makes, TOKEN) if tokens else WHOLE


def token_axis(graph: OperatorGraph, name: str) -> int:
    """Return the axis of a tensor's tokens; `WHOLE` if it has none, or is not read as one that has.

    ``name`` is that of the operator that makes it, or of the layer's input.
    """
    rows = {each.reads[name] for each in graph.operators if name in each.reads}
    rows |= {each.makes for each in graph.operators if each.name == name}
    axes = {_layout(row, TOKEN) for row in rows}
    return axes.pop() if len(axes) == 1 else WHOLE


def stream(graph: OperatorGraph, names: Sequence[str]) -> str:
    """Return which of a layer's inputs or outputs may be split along tokens; empty if none may.

    It is the only one, or the only one with a gradient; masks and positions that pass beside it are whole.
    """
    own = [name for name in names if len(names) == 1 or name not in graph.without_gradient]
    return own[0] if len(own) == 1 else ""


def has_token_parts(graph: OperatorGraph, team: int) -> bool:
    """Return whether there are operators with the loop `TOKEN`, and a team divides the parts of all of them."""
    parts = [each.loops[TOKEN] for each in graph.operators if TOKEN in each.loops]
    return bool(parts) and not any(each % team for each in parts)


def layouts(
    graph: OperatorGraph, team: int, name: str, ends: Ends = WHOLE_ENDS, context: bool = True
) -> tuple[Layout, ...]:
    """Return the layouts in which a tensor may be held, each with those in which its gradient may be summed up.

    ``name`` is that of the operator that makes it, or of an input. Inputs and outputs of a layer are whole
    (`OperatorGraph.whole`), or their `stream` is split along tokens; the gradient of an output has the same layout, or
    that of a whole one is added to parts of a sum.
    """
    tokens, axis = any(ends), token_axis(graph, name)
    readers = [each for each in graph.operators if name in each.reads]
    maker = next((each for each in graph.operators if each.name == name), None)
    makes = signatures(maker, team, tokens, context) if maker else ()
    if name in graph.whole:
        is_input = name in graph.inputs
        is_split = ends.input if is_input else ends.output
        is_split = is_split and name == stream(graph, tuple(graph.inputs) if is_input else graph.outputs)
        held = {axis if is_split else WHOLE}
    else:
        held = {held_layout(maker, loop, tokens) for loop in makes if maker}
    gradients = {
        returned_layout(each, loop, name) for each in readers for loop in signatures(each, team, tokens, context)
    }
    if name in graph.whole and (maker or name in graph.outputs):
        gradients = held | (gradients & {PARTIAL} if held == {WHOLE} else set())
    else:
        gradients |= {WHOLE, *(gradient_layout(maker, loop) for loop in makes if maker)}
    return tuple(
        Layout(own, gradient, times)
        for own in sorted(held)
        for gradient in sorted(gradients)
        for times in (range(3) if tokens and axis >= 0 and own == axis else (0,))
    )
