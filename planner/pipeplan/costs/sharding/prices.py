"""Prices of an operator under a strategy by itself: its passes, its weights, and what these send.

Redistributions of what it reads and makes are in `problem`.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from pipeplan.core.operators import SAMPLE, Operator, Weight
from pipeplan.core.strategies import UNSPLIT, WHOLE, Placements, Strategy
from pipeplan.costs.collectives import all_reduce, alone
from pipeplan.costs.sharding.attention import split_attention
from pipeplan.costs.sharding.coordinates import COORDINATES
from pipeplan.costs.sharding.rooflines import Rooflines
from pipeplan.costs.sharding.shapes import Mesh
from pipeplan.costs.sharding.strategies import ungathered
from pipeplan_formulations.common.sentinels import UNLIMITED

FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = (
    np.array([int(name in row) for name in COORDINATES], np.int64)
    for row in (("forward",), ("backward", "input_gradient"), ("backward", "weight_gradient"))
)
"""The coordinates to which times of these passes are added."""
SUMMED = np.array([int(name == "summed") for name in COORDINATES], np.int64)
GATHERED = -3
"""Entry of the placements of a weight that is split along an axis and gathered for every pass."""


def strategy_costs(
    rooflines: Rooflines, operator: Operator, strategy: Strategy, mesh: Mesh, copies: bool = True
) -> NDArray[np.int64]:
    """Return passes, update, sums once per step and bytes of weights, in the coordinates of a team's problem.

    ``copies``: sum gradients also of weights that count for an earlier layer (see `tied_costs`).
    """
    parts: dict[str, int] = {}
    for n, entry in zip(mesh.sizes, strategy, strict=True):
        if entry.loop != UNSPLIT:
            parts[entry.loop] = parts.get(entry.loop, 1) * n
    own = sum(
        weight.size // weight_parts(weight, strategy, mesh.sizes)
        for weight in operator.weights
        if weight in rooflines.counted
    )
    attention = split_attention(rooflines, operator, strategy, mesh.sizes)
    passes = rooflines.passes(operator, parts, 1 if attention is None else attention.by_keys)
    if attention is not None:
        passes = attention.passes(passes, mesh)
    gathered = weight_exchange(operator, strategy, mesh, True)
    kept = [weight for weight in operator.weights if copies or weight in rooflines.counted]
    summed = weight_exchange(replace(operator, weights=tuple(kept)), strategy, mesh, False)
    row = np.array([*passes, rooflines.update(own), summed, own, 0], np.int64)
    row += gathered * (FORWARD + INPUT_GRADIENT + WEIGHT_GRADIENT)
    return row + _loss_exchange(rooflines, operator, strategy, mesh) * FORWARD


def weight_parts(weight: Weight, strategy: Strategy, sizes: tuple[int, ...]) -> int:
    """Return into how many parts a weight is split."""
    return prod(
        n
        for n, entry in zip(sizes, strategy, strict=True)
        if entry.loop != UNSPLIT and (entry.loop in weight.loops or entry.gathers)
    )


def weight_exchange(operator: Operator, strategy: Strategy, mesh: Mesh, gathers: bool) -> int:
    """Return the nanoseconds of collectives on weights, along the axes that gather them, or that sum their gradients.

    Weights are gathered along one axis after the other, in the best order.
    """
    return _exchange(exchanged(operator, strategy, mesh.sizes, gathers), mesh, gathers)


def gather_order(operator: Operator, strategy: Strategy, mesh: Mesh) -> tuple[int, ...]:
    """Return the axes along which an operator's weights are gathered, one after the other."""
    return _in_order(exchanged(operator, strategy, mesh.sizes, True), mesh, True)[1]


def exchanged(
    operator: Operator, strategy: Strategy, sizes: tuple[int, ...], gathers: bool
) -> list[tuple[int, frozenset[int]]]:
    """Return for each weight the bytes that are gathered, or whose gradients are summed, and along which axes."""
    held = ungathered(strategy) if gathers else strategy
    return [
        (weight.size // weight_parts(weight, held, sizes), exchanged_axes(operator, weight, strategy, gathers))
        for weight in operator.weights
    ]


def exchanged_axes(operator: Operator, weight: Weight, strategy: Strategy, gathers: bool) -> frozenset[int]:
    """Return the axes along which a weight is gathered, or along which devices have parts of its gradient."""
    return frozenset(
        axis
        for axis, entry in enumerate(strategy)
        if entry.gathers == gathers
        and entry.loop != UNSPLIT
        and entry.loop in operator.makes
        and entry.loop not in weight.loops
    )


def sum_order(size: int, axes: frozenset[int], mesh: Mesh) -> tuple[int, ...]:
    """Return the order of axes in which gradients of ``size`` bytes are summed: scattered along all but the last."""
    return _in_order([(size, axes)], mesh, False)[1]


def _exchange(weights: Sequence[tuple[int, frozenset[int]]], mesh: Mesh, gathers: bool) -> int:
    """Nanoseconds to gather weights of these bytes along these axes, or to sum their gradients.

    Gradients are scattered along one axis after the other, in the best order, and gathered backward. Along the last
    axis sums are an all-reduce.
    """
    return _in_order(weights, mesh, gathers)[0]


def _in_order(weights: Sequence[tuple[int, frozenset[int]]], mesh: Mesh, gathers: bool) -> tuple[int, tuple[int, ...]]:
    every = frozenset[int]().union(*(axes for _, axes in weights))

    def took(axis: int, before: frozenset[int]) -> int:
        """Nanoseconds along one axis, with parts along others before it."""
        size = sum(own // prod(mesh.sizes[k] for k in before & axes) for own, axes in weights if axis in axes)
        if not size:
            return 0
        ring = all_reduce(mesh.sizes[axis], mesh.links[axis])
        if gathers:
            return alone(ring.one_way, size)
        return alone(ring, size) if len(before) == len(every) - 1 else 2 * alone(ring.one_way, size)

    def least(before: frozenset[int]) -> tuple[int, tuple[int, ...]]:
        """Nanoseconds along all other axes, and their order."""
        found = []
        for axis in sorted(every - before):
            rest, order = least(before | {axis})
            found.append((took(axis, before) + rest, (axis, *order)))
        return min(found, default=(0, ()))

    return least(frozenset())


def _loss_exchange(rooflines: Rooflines, operator: Operator, strategy: Strategy, mesh: Mesh) -> int:
    """Nanoseconds in which devices sum two numbers for each row of logits, along the axes that split the classes."""
    loss = rooflines.graph.loss
    if loss is None or operator.name != rooflines.graph.loss_name:
        return 0
    axes = class_axes(strategy)
    rows = loss.rows * rooflines.micro_batch
    rows //= prod(n for axis, (n, entry) in enumerate(zip(mesh.sizes, strategy, strict=True))
                  if entry.loop != UNSPLIT and axis not in axes)  # fmt: skip
    return sum(2 * alone(all_reduce(mesh.sizes[axis], mesh.links[axis]), rows) for axis in axes) if rows else 0


def class_axes(strategy: Strategy) -> tuple[int, ...]:
    """Return the axes along which an operator of a loss splits the classes: the loop that is not of samples."""
    return tuple(axis for axis, entry in enumerate(strategy) if entry.loop not in (UNSPLIT, SAMPLE))


def weight_placement(weight: Weight, strategy: Strategy) -> Placements:
    """Return for each axis of the mesh the dimension of a weight that it splits, `WHOLE`, or `GATHERED`."""
    return tuple(
        GATHERED
        if entry.gathers and entry.loop not in weight.loops
        else weight.loops.index(entry.loop)
        if entry.loop in weight.loops
        else WHOLE
        for entry in strategy
    )


def tied_costs(
    weight: Weight, copy: Weight, uses: Sequence[tuple[Operator, Strategy]], mesh: Mesh
) -> NDArray[np.int64]:
    """Return what it costs beside two operators that they share a weight; `UNLIMITED` if it would lie in two ways.

    Its gradient is summed once, along all axes along which one of them has parts of it. The first one pays for its own
    axes, the second for none.
    """
    (first, one), (second, two) = uses
    if weight_placement(weight, one) != weight_placement(copy, two):
        return np.full(len(COORDINATES), UNLIMITED)
    size, axes = weight.size // weight_parts(weight, one, mesh.sizes), exchanged_axes(first, weight, one, False)
    both = axes | exchanged_axes(second, copy, two, False)
    more = _exchange([(size, both)], mesh, False) - _exchange([(size, axes)], mesh, False)
    return max(more, 0) * SUMMED
