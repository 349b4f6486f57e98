"""Strategies: how an operator is split along each axis of a mesh.

An entry of a strategy names a loop of the operator, or none. For a linear map of rows from K inputs to N outputs on a
mesh of three axes::

    axis    entry                     input    weight              output
    w       rows, weights gathered     rows     split, gathered     rows
    i       outputs (columns)          whole    split               outputs
    o       inputs (rows of a matrix)  inputs   split               a part of a sum

This is 3-D tensor parallelism if the input arrives in rows along axis i, and sums are scattered to rows along axis o.
"""

from collections.abc import Sequence
from itertools import product
from math import prod

from pipeplan.core.operators import TOKEN, Operator, Weight
from pipeplan.core.strategies import BY_HEADS, UNSPLIT, WHOLE, AxisStrategy, Placements, Strategy
from pipeplan.costs.sharding.attention import attends, attention_strategies
from pipeplan.costs.sharding.placements import gradient_placement, made_placement, read_placement, returned_placement


def strategies(
    operator: Operator, sizes: Sequence[int], gathers: bool = True, tokens: bool = True
) -> tuple[Strategy, ...]:
    """Return an operator's strategies on axes of these sizes: the parts of each loop are divided by all that split it.

    ``gathers``: also those that gather weights; ``tokens``: also those with the loop `TOKEN`.
    """
    fits = (loop for loop, parts in operator.loops.items() if any(parts % n == 0 for n in sizes))
    loops = [UNSPLIT, *(loop for loop in fits if tokens or loop != TOKEN)]
    entries = [*map(AxisStrategy, loops), *(attention_strategies(operator) if TOKEN in loops else ())]
    if gathers and operator.weights:
        entries += [AxisStrategy(loop, True) for loop in loops if loop in operator.makes and _gathers(operator, loop)]
    return tuple(strategy for strategy in product(entries, repeat=len(sizes)) if divides(operator, strategy, sizes))


def _gathers(operator: Operator, loop: str) -> bool:
    return any(loop not in weight.loops for weight in operator.weights)


def divides(operator: Operator, strategy: Strategy, sizes: Sequence[int]) -> bool:
    """Return whether axes of these sizes divide the loops that they split, and weights that are gathered.

    And whether attention can run by the strategy.
    """
    return (
        not any(
            parts % prod(n for n, entry in zip(sizes, strategy, strict=True) if entry.loop == loop)
            for loop, parts in operator.loops.items()
        )
        and attends(operator, strategy, sizes)
        and all(gathered_along(operator, weight, strategy, sizes) is not None for weight in operator.weights)
    )


def gathered_along(
    operator: Operator, weight: Weight, strategy: Strategy, sizes: Sequence[int]
) -> dict[int, int] | None:
    """Return for each axis along which a weight is gathered the dimension in which it is kept; None if it cannot be."""
    left = [
        operator.loops.get(loop, 1)
        // prod(n for n, entry in zip(sizes, strategy, strict=True) if entry.loop == loop != UNSPLIT)
        for loop in weight.loops
    ]
    found = {}
    for axis, (n, entry) in enumerate(zip(sizes, strategy, strict=True)):
        if entry.gathers and entry.loop not in weight.loops:
            fits = [k for k, loop in enumerate(weight.loops) if left[k] % n == 0 and loop not in operator.groups]
            if not fits:
                return None
            found[axis] = fits[0]
            left[fits[0]] //= n
    return found


def ungathered(strategy: Strategy) -> Strategy:
    """Return a strategy under which weights that it gathers are whole, as an operator has them."""
    return tuple(entry._replace(gathers=False) for entry in strategy)


def needed(operator: Operator, strategy: Strategy, source: str, is_mask: bool = False) -> Placements:
    """Return the placements in which an operator needs what it reads of ``source``.

    ``is_mask``: whether that has no gradient. Attention by heads needs the rows of a mask for all tokens that it has.
    """
    return tuple(
        WHOLE if is_mask and entry.by == BY_HEADS else read_placement(operator, entry.loop, source)
        for entry in strategy
    )


def made(operator: Operator, strategy: Strategy) -> Placements:
    """Return the placements of what an operator makes."""
    return tuple(made_placement(operator, entry.loop) for entry in strategy)


def gradient(operator: Operator, strategy: Strategy) -> Placements:
    """Return the placements in which an operator needs the gradient of what it makes."""
    return tuple(gradient_placement(operator, entry.loop) for entry in strategy)


def returned(operator: Operator, strategy: Strategy, source: str) -> Placements:
    """Return the placements of the gradient that an operator returns for what it reads of ``source``."""
    return tuple(returned_placement(operator, entry.loop, source) for entry in strategy)


def share(placements: Placements, sizes: Sequence[int]) -> int:
    """Return the number of parts into which placements split a tensor."""
    return prod(n for n, placement in zip(sizes, placements, strict=True) if placement != WHOLE and placement >= 0)
