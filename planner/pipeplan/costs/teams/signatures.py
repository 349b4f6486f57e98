"""Signatures of operators on a team: the loop that each is split along, and the layouts that follow.

A signature fixes the layout of all tensors of an operator, and of their gradients (`costs.sharding.layouts`).

Where tensors between layers are split along tokens, so is most of what is not split otherwise: operators with the loop
`TOKEN` work on parts, parts of a sum are added up to such a part, and what needs all tokens gathers them once for all
that read the tensor. They are not kept: a weight gradient gathers them again.

Products of matrices and attention run on parts of the tokens where a plan says so (context parallelism). Weights are
then whole. Attention needs the keys and values of all tokens, in one of three ways::

    TOKEN   each member gathers keys and values, and has its own queries
    RING    keys and values go round block by block while each attends to the block before (`costs.sharding.ring`)
    TURNED  members exchange tokens for heads, have some heads of all tokens, and exchange these again
"""

from typing import NamedTuple

from pipeplan.core.operators import BY_HEADS, BY_RING, TOKEN, Operator, OperatorGraph, Shards
from pipeplan.core.words import PARTIAL, UNSPLIT, WHOLE
from pipeplan.costs.sharding.exchanges import Exchange
from pipeplan.costs.sharding.layouts import axis_of, gradient_layout, made_layout, returned_layout, stream
from pipeplan.costs.sharding.ring import BUFFERS

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


def tensor_moves(graph: OperatorGraph, name: str, row: Layout) -> Moves:
    """Return the moves of a tensor by itself: all of its tokens gathered, and of a layer's input its gradient."""
    tokens = ((row.held, WHOLE),)
    back = ((row.gradient, row.held),) if name in graph.inputs else ()
    return Moves(tokens if row.gathered else (), back, tokens if row.gathered > 1 else ())


def held_layout(operator: Operator, loop: str, tokens: bool = False) -> int:
    """Return the layout in which what an operator makes is held: as it is made, parts of a sum added up at once.

    With ``tokens`` they are added up to a part of the tokens.
    """
    made = made_layout(operator, axis_loop(loop))
    if made != PARTIAL:
        return made
    return axis_of(operator.makes, TOKEN) if tokens else WHOLE


def token_axis(graph: OperatorGraph, name: str) -> int:
    """Return the axis of a tensor's tokens; `WHOLE` if it has none, or is not read as one that has.

    ``name`` is that of the operator that makes it, or of the layer's input.
    """
    rows = {each.reads[name] for each in graph.operators if name in each.reads}
    rows |= {each.makes for each in graph.operators if each.name == name}
    axes = {axis_of(row, TOKEN) for row in rows}
    return axes.pop() if len(axes) == 1 else WHOLE


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
        returned_layout(each, axis_loop(loop), name)
        for each in readers
        for loop in signatures(each, team, tokens, context)
    }
    if name in graph.whole and (maker or name in graph.outputs):
        gradients = held | (gradients & {PARTIAL} if held == {WHOLE} else set())
    else:
        gradients |= {WHOLE, *(gradient_layout(maker, axis_loop(loop)) for loop in makes if maker)}
    return tuple(
        Layout(own, gradient, times)
        for own in sorted(held)
        for gradient in sorted(gradients)
        for times in (range(3) if tokens and axis >= 0 and own == axis else (0,))
    )
