"""Numbers that each device receives for a linear map on a mesh, forward, backward and once per step.

All follow from the strategies of the map and the redistributions of its tensors; `named` has those that have names.

A summation or broadcast of blocks one after another (SUMMA, van de Geijn and Watts, 1997) sends as much as a gather or
scatter in a ring if it is pipelined. With trees, each of n blocks takes log2 n messages one after the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from functools import partial
from math import ceil, log2, prod

from pipeplan.core.operators import INPUT, Operator, Weight
from pipeplan.core.strategies import WHOLE, Placements, Strategy
from pipeplan.costs.sharding.exchanges import Exchange, exchange
from pipeplan.costs.sharding.lower_bound import least_received
from pipeplan.costs.sharding.redistributions import Redistributions
from pipeplan.costs.sharding.strategies import gradient, made, needed, returned, share

ROW, IN, OUT = "row", "in", "out"
"""The loops of a linear map."""


class Algorithm(StrEnum):
    """How blocks get to all devices along an axis."""

    RING = "ring"
    TREE = "tree"


@dataclass(frozen=True)
class LinearMap:
    """A linear map of ``rows`` rows, from ``inputs`` to ``outputs`` features."""

    rows: int
    inputs: int
    outputs: int

    @property
    def operator(self) -> Operator:
        """The map as an operator, whose sizes are numbers and not bytes."""
        loops = {ROW: self.rows, IN: self.inputs, OUT: self.outputs}
        weights = (Weight("weight", (OUT, IN), self.inputs * self.outputs),)
        size = self.rows * self.outputs
        return Operator("linear", "linear", loops, {INPUT: (ROW, IN)}, (ROW, OUT), size, weights=weights)


@dataclass(frozen=True)
class Volume:
    """What one device receives and keeps for a linear map, in numbers.

    Attributes
    ----------
    forward, backward : Fraction
        Received in each pass of a micro-batch.
    step : Fraction
        Received once per step, for the weight's gradient.
    weight : Fraction
        The device's part of the weight.
    kept : Fraction
        Numbers of the input that are kept for the backward.
    least : float
        Lower bound on ``forward``, for devices that hold so much of input, weight and output (`least_received`).
    """

    forward: Fraction
    backward: Fraction
    step: Fraction
    weight: Fraction
    kept: Fraction
    least: float

    @property
    def total(self) -> Fraction:
        """Received forward and backward."""
        return self.forward + self.backward

    @property
    def recomputed(self) -> Fraction:
        """Received if the forward is run again before the backward."""
        return self.total + self.forward

    @property
    def over_least(self) -> float:
        """``forward`` over the lower bound; infinite where that is 0."""
        return float(self.forward) / self.least if self.least else float("inf")


def volume(
    linear: LinearMap,
    strategy: Strategy,
    sizes: Sequence[int],
    arrives: Placements,
    leaves: Placements,
    keep: bool = True,
    algorithm: Algorithm = Algorithm.RING,
    twice: bool = False,
) -> Volume:
    """Return what a device receives for a linear map.

    Parameters
    ----------
    linear : LinearMap
    strategy : Strategy
        Along each axis of the mesh.
    sizes : sequence of int
        Devices along each axis.
    arrives, leaves : Placements
        In which the input is held, and the output will be; their gradients are held alike.
    keep : bool
        Whether gathered inputs and weights are kept for the backward, or gathered again.
    algorithm : Algorithm
    twice : bool
        Whether the gradient of the output is moved for each of the two products that need it, and not once.

    Raises
    ------
    ValueError
        If a tensor cannot get the placements that it must have.
    """
    operator, sizes = linear.operator, tuple(sizes)
    lengths = {IN: (linear.rows, linear.inputs), OUT: (linear.rows, linear.outputs)}
    moves = {
        axis: Redistributions(sizes, own, partial(received, prod(own), sizes, algorithm), Fraction(0))
        for axis, own in lengths.items()
    }

    def moved(axis: str, source: Placements, target: Placements) -> Fraction:
        found = moves[axis].cost(source, target)
        if found is None:
            raise ValueError(
                f"a tensor of {lengths[axis]} in the placements {source} cannot get the placements {target}"
            )
        return found

    reads, whole = needed(operator, strategy, INPUT), gathered_weight(linear, strategy, sizes, algorithm)
    gathers = moved(IN, arrives, reads) + whole
    back = moved(OUT, leaves, gradient(operator, strategy)) * (2 if twice else 1)
    back += moved(IN, returned(operator, strategy, INPUT), arrives) + whole
    copies = prod(n for n, entry in zip(sizes, strategy, strict=True) if entry.loop == ROW and not entry.gathers)
    parts = prod(n for n, entry in zip(sizes, strategy, strict=True) if entry.loop in (IN, OUT) or entry.gathers)
    weight = Fraction(linear.inputs * linear.outputs, parts)
    held = weight + sum(
        Fraction(prod(lengths[axis]), share(row, sizes)) for axis, row in ((IN, arrives), (OUT, leaves))
    )
    return Volume(
        gathers + moved(OUT, made(operator, strategy), leaves),
        back if keep else back + gathers,
        2 * weight * (copies - 1) / copies,
        weight,
        Fraction(linear.rows * linear.inputs, share(reads if keep else arrives, sizes)),
        least_received(linear.rows, linear.inputs, linear.outputs, prod(sizes), float(held)),
    )


def gathered_weight(linear: LinearMap, strategy: Strategy, sizes: Sequence[int], algorithm: Algorithm) -> Fraction:
    """Return the numbers that a device receives to gather the weight, or to scatter the sums of its gradient.

    The innermost of the axes is gathered first.
    """
    gathering = tuple(n for n, entry in zip(sizes, strategy, strict=True) if entry.gathers)
    split = prod(n for n, entry in zip(sizes, strategy, strict=True) if entry.loop in (IN, OUT))
    size = linear.inputs * linear.outputs
    return sum(
        (
            received(size, gathering, algorithm, axis, 0, WHOLE, split * prod(gathering[:axis]))
            for axis in range(len(gathering))
        ),
        Fraction(0),
    )


def received(
    size: int, sizes: tuple[int, ...], algorithm: Algorithm, axis: int, source: int, target: int, others: int
) -> Fraction:
    """Return the numbers that a device receives one after the other in a collective on ``size`` numbers in all."""
    n, kind = sizes[axis], exchange(source, target)
    block = Fraction(size, others * n)
    if kind is None:
        return Fraction(0)
    if kind is Exchange.TURN:
        return block / n * (n - 1)
    one_way = block * (n - 1 if algorithm is Algorithm.RING else n * ceil(log2(n)))
    return 2 * one_way if kind is Exchange.SUM else one_way
