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
"""

from pipeplan.core.cluster import Link
from pipeplan.core.operators import TOKEN, Operator, OperatorGraph
from pipeplan.costs.collectives import all_reduce, alone

WHOLE, PARTIAL = -1, -2
"""Layouts of a tensor that is not split; others are the number of the axis along which it is split."""
UNSPLIT = ""
"""The signature of an operator that every member runs as a whole."""


def signatures(operator: Operator, team: int, *, tokens: bool = False) -> tuple[str, ...]:
    """Return the loops along which a team can split an operator, after `UNSPLIT`; ``tokens``: with that over tokens."""
    loops = (loop for loop, parts in operator.loops.items() if parts % team == 0)
    return UNSPLIT, *(loop for loop in loops if tokens or loop != TOKEN)


def read_layout(operator: Operator, loop: str, source: str) -> int:
    """Return the layout in which an operator needs what it reads of ``source``."""
    return _layout(operator.reads[source], loop)


def made_layout(operator: Operator, loop: str) -> int:
    """Return the layout of what an operator makes."""
    return PARTIAL if loop and loop not in operator.makes else _layout(operator.makes, loop)


def gradient_layout(operator: Operator, loop: str) -> int:
    """Return the layout in which an operator needs the gradient of what it makes."""
    return _layout(operator.makes, loop)


def returned_layout(operator: Operator, loop: str, source: str) -> int:
    """Return the layout of the gradient that an operator returns for what it reads of ``source``."""
    return PARTIAL if loop and loop not in operator.reads[source] else _layout(operator.reads[source], loop)


def shards_of(operator: Operator, loop: str) -> dict[str, int]:
    """Return the weights of an operator that are split, and the axis of each."""
    return {weight.name: weight.loops.index(loop) for weight in operator.weights if loop in weight.loops}


def summed_weights(operator: Operator, loop: str) -> int:
    """Return the bytes of weights whose gradients the members sum once per step."""
    summed = bool(loop) and loop in operator.makes
    return sum(weight.size for weight in operator.weights if summed and loop not in weight.loops)


def _layout(axes: tuple[str, ...], loop: str) -> int:
    return axes.index(loop) if loop and loop in axes else WHOLE


def redistribution(source: int, target: int, size: int, team: int, link: Link) -> int | None:
    """Return the nanoseconds in which a tensor of ``size`` bytes in all gets another layout; None if it cannot.

    A sum is an all-reduce, or a reduce-scatter where the target is split; what is split is gathered; from one axis to
    another each member sends every other one its part. Members drop parts of what is whole.
    """
    if source == target or (source == WHOLE and target >= 0):
        return 0
    if target == PARTIAL:
        return None
    if not size:
        return 0
    ring = all_reduce(team, link)
    if source == PARTIAL and target == WHOLE:
        return alone(ring, size)
    if source == PARTIAL or target == WHOLE:
        return alone(ring.one_way, size)
    part = link.in_collectives.occupancy(-(-size // team**2))
    return (team - 1) * (link.latency + part)


def held_layout(operator: Operator, loop: str) -> int:
    """Return the layout in which what an operator makes is held: as it is made, parts of a sum added up at once."""
    made = made_layout(operator, loop)
    return WHOLE if made == PARTIAL else made


def layouts(graph: OperatorGraph, team: int, name: str) -> tuple[tuple[int, int], ...]:
    """Return the layouts in which a tensor may be held, each with those in which its gradient may be summed up.

    ``name`` is that of the operator that makes it, or of the layer's input. The input and the output of a layer are
    whole, and so are their gradients.
    """
    readers = [each for each in graph.operators if name in each.reads]
    maker = next((each for each in graph.operators if each.name == name), None)
    if maker is None or not readers:
        return ((WHOLE, WHOLE),)
    loops = signatures(maker, team)
    returned = {WHOLE, *(gradient_layout(maker, loop) for loop in loops)}
    returned |= {returned_layout(each, loop, name) for each in readers for loop in signatures(each, team)}
    held = {held_layout(maker, loop) for loop in loops}
    return tuple((own, gradient) for own in sorted(held) for gradient in sorted(returned))
