"""Numbers that each product of a model receives in a choice, over the least that any algorithm receives.

A product is an operator with one matrix as its weight that multiplies rows by it. Counted are the numbers that a device
receives forward: its input, moved from the placements in which it is held; its weight, where that is gathered; and
parts of sums of its output.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isqrt
from typing import NamedTuple

from pipeplan.core.operators import Operator, Weight
from pipeplan.core.strategies import Placements, Signature
from pipeplan.costs.sharding.lower_bound import least_received
from pipeplan.costs.sharding.prices import weight_parts
from pipeplan.costs.sharding.problem import MeshProblem
from pipeplan.costs.sharding.redistributions import Redistributions, times
from pipeplan.costs.sharding.strategies import made, needed, share, ungathered
from pipeplan.costs.sharding.volumes import Algorithm, received


class Product(NamedTuple):
    """A product of ``rows`` rows by a matrix of ``inputs`` × ``outputs``, in a choice.

    Attributes
    ----------
    name : str
    rows, inputs, outputs : int
    received : float
        Numbers that a device receives forward.
    least : float
        Lower bound on them for what devices hold before and after (`least_received`).
    """

    name: str
    rows: int
    inputs: int
    outputs: int
    received: float
    least: float

    @property
    def over_least(self) -> float | None:
        """``received`` over the lower bound; None if both are 0, infinite if that is."""
        if not self.least:
            return float("inf") if self.received else None
        return self.received / self.least


def products(problem: MeshProblem, choice: Sequence[int], item: int) -> tuple[Product, ...]:
    """Return the products of a choice, in order; ``item``: bytes of a number of their tensors."""
    return tuple(_products(problem, problem.signatures_of(choice), item))


def _products(problem: MeshProblem, signatures: dict[str, Signature], item: int) -> Iterator[Product]:
    sizes = problem.mesh.sizes
    for each in problem.graph.operators:
        found = _lengths(problem, each, item)
        if found is None:
            continue
        (rows, inputs, outputs), [source], [weight] = found, each.reads, _matrices(each)
        strategy, held = signatures[each.name]
        arrives = signatures[source].held if source in signatures else needed(each, strategy, source)
        matrix = Fraction(weight.size, item)
        kept = matrix / weight_parts(weight, strategy, sizes)
        plain = ungathered(strategy)
        numbers = matrix / weight_parts(weight, plain, sizes) - kept
        numbers += _moved(problem, source, arrives, needed(each, strategy, source), item)
        numbers += _moved(problem, each.name, made(each, strategy), held, item)
        holds = kept + Fraction(rows * inputs, share(arrives, sizes)) + Fraction(rows * outputs, share(held, sizes))
        least = least_received(rows, inputs, outputs, problem.mesh.team, float(holds))
        yield Product(each.name, rows, inputs, outputs, float(numbers), least)


def _matrices(operator: Operator) -> list[Weight]:
    return [weight for weight in operator.weights if len(weight.loops) > 1]


def _lengths(problem: MeshProblem, operator: Operator, item: int) -> tuple[int, int, int] | None:
    """Rows, inputs and outputs of a product; None if the operator is none.

    Of the three matrices' numbers n k, m k and m n each length follows, and the multiplications are m n k.
    """
    matrices = _matrices(operator)
    if len(matrices) != 1 or len(operator.reads) != 1 or not operator.forward_flops:
        return None
    [source] = operator.reads
    x, y, w = (n // item for n in (problem.tensors[source].size, operator.output, matrices[0].size))
    cubed = isqrt(x * y * w)
    if not cubed or cubed * cubed != x * y * w or operator.forward_flops != 2 * cubed:
        return None
    return cubed // w, cubed // y, cubed // x


@dataclass(frozen=True, order=True)
class _PathCost:
    """Nanoseconds of a redistribution, and numbers that a device receives."""

    time: int
    numbers: Fraction

    def __add__(self, other: "_PathCost") -> "_PathCost":
        return _PathCost(self.time + other.time, self.numbers + other.numbers)


def _moved(problem: MeshProblem, name: str, source: Placements, target: Placements, item: int) -> Fraction:
    """Numbers that a device receives on the fastest path of a tensor from placements to others."""
    tensor, mesh = problem.tensors[name], problem.mesh
    clock = times(tensor.size, mesh.sizes, mesh.links, tensor.parts, mesh.sharing)

    def price(axis: int, entry: int, other: int, others: int) -> _PathCost:
        numbers = received(tensor.size // item, mesh.sizes, Algorithm.RING, axis, entry, other, others)
        return _PathCost(clock.price(axis, entry, other, others), numbers)

    def redistributions() -> Redistributions[_PathCost]:
        return Redistributions(mesh.sizes, tensor.parts, price, _PathCost(0, Fraction(0)))

    found = problem.once(("numbers", tensor.size, tensor.parts, item), redistributions).cost(source, target)
    assert found is not None, "a choice of a plan is possible"
    return found.numbers
