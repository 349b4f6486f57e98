"""Linear maps under the forms of tensor parallelism that have names, as strategies and placements on a mesh.

::

    form                  axes       strategy                      input arrives       output leaves
    columns               P          outputs                   whole               outputs
    rows                  P          inputs                    inputs              whole
    data parallel         P          rows                      rows                rows
    2-D                   q, q       rows gathered, outputs    rows, inputs        rows, outputs
    2.5-D                 d, q, q    rows, then as 2-D
    3-D                   w, i, o    rows gathered,            rows, rows,         rows, outputs,
                                     outputs, inputs           inputs              rows

"Rows gathered": along this axis a device has a part of the rows and of the weight, and gathers the weight. Of 3-D maps
behind each other every second one has the roles of i and o swapped, and its input arrives as the output before leaves.

`NAMED_STRATEGIES` has those that a user may ask for by name: then products of matrices have no other strategies.
"""

from collections.abc import Iterable, Iterator
from itertools import combinations, product
from typing import NamedTuple

from pipeplan.core.errors import InputError
from pipeplan.core.operators import Operator, Weight
from pipeplan.core.strategies import NAMED_STRATEGIES, WHOLE, AxisStrategy, Placements, Signature, Strategy
from pipeplan.costs.sharding.volumes import IN, OUT, ROW, Algorithm, LinearMap, Volume, volume

FEATURES = 1
"""The dimension of a tensor that is not its rows, 0."""


class Form(NamedTuple):
    """How a linear map is split: devices along each axis, its strategy, and the placements of input and output."""

    sizes: tuple[int, ...]
    strategy: Strategy
    arrives: Placements
    leaves: Placements

    def volume(
        self, linear: LinearMap, keep: bool = True, algorithm: Algorithm = Algorithm.RING, twice: bool = False
    ) -> Volume:
        """Return what a device receives; see `volume`."""
        return volume(linear, self.strategy, self.sizes, self.arrives, self.leaves, keep, algorithm, twice)


def columns(devices: int) -> Form:
    """Return the first of Megatron's pair: outputs are split."""
    return Form((devices,), (AxisStrategy(OUT),), (WHOLE,), (FEATURES,))


def rows(devices: int) -> Form:
    """Return the second of Megatron's pair: inputs are split, and parts of sums are added up."""
    return Form((devices,), (AxisStrategy(IN),), (FEATURES,), (WHOLE,))


def data_parallel(devices: int) -> Form:
    """Return the form in which each device has some rows and all of the weight."""
    return Form((devices,), (AxisStrategy(ROW),), (0,), (0,))


def two_dimensional(side: int) -> Form:
    """Return the form on ``side`` x ``side`` devices, with blocks of input, weight and output on each."""
    return Form((side, side), (AxisStrategy(ROW, True), AxisStrategy(OUT)), (0, FEATURES), (0, FEATURES))


def two_and_a_half_dimensional(copies: int, side: int) -> Form:
    """Return the form on so many squares, each with some of the rows and a copy of the weight."""
    strategy = AxisStrategy(ROW), AxisStrategy(ROW, True), AxisStrategy(OUT)
    return Form((copies, side, side), strategy, (0, 0, FEATURES), (0, 0, FEATURES))


def three_dimensional(sizes: tuple[int, int, int], swapped: bool = False) -> Form:
    """Return the form on axes w, i and o of these sizes; ``swapped``: the roles of i and o."""
    if swapped:
        return Form(
            sizes, (AxisStrategy(ROW, True), AxisStrategy(IN), AxisStrategy(OUT)), (0, FEATURES, 0), (0, 0, FEATURES)
        )
    return Form(
        sizes, (AxisStrategy(ROW, True), AxisStrategy(OUT), AxisStrategy(IN)), (0, 0, FEATURES), (0, FEATURES, 0)
    )


class NamedStrategy(NamedTuple):
    """A named strategy on a mesh.

    Attributes
    ----------
    entries : tuple of str
        What products of matrices may be split by along each axis, as in `NAMED_STRATEGIES`.
    between : tuple of str
        Placements of what passes between layers: along each axis rows (r) or features (f).
    """

    entries: tuple[str, ...]
    between: tuple[str, ...]

    @classmethod
    def of(cls, name: str, entries: str) -> "NamedStrategy":
        """Return one by its entries along the axes, those of one device left out."""
        alike = tuple(sorted({entries, entries.translate(SWAPPED)} if name == "3d" else {entries}))
        leaves = [each.translate(LEFT) for each in alike]
        fewest = min(each.count("f") for each in leaves)
        return cls(alike, tuple(each for each in leaves if each.count("f") == fewest))

    def placements(self, rank: int, tokens: bool) -> Iterator[Placements]:
        """Yield the placements of what passes between layers, of so many dimensions; ``tokens``: rows may be tokens.

        The first dimension is samples, the last one features.
        """
        rows = range(rank - 1) if tokens else range(1)
        for entries in self.between:
            yield from product(*(rows if entry == "r" else (rank - 1,) for entry in entries))


SWAPPED, LEFT = str.maketrans("io", "oi"), str.maketrans("wio", "rrf")


def named_strategies(name: str, axes: int) -> tuple[NamedStrategy, ...]:
    """Return those of a name on meshes of so many axes; of a cube, one axis may have one device."""
    every = NAMED_STRATEGIES[name]
    rows = combinations(every, axes) if len(every) == 3 == axes + 1 and name == "3d" else [every][: axes == len(every)]
    return tuple(dict.fromkeys(NamedStrategy.of(name, "".join(row)) for row in rows))


def shapes_of(name: str, shapes: Iterable[tuple[int, ...]]) -> list[tuple[tuple[int, ...], NamedStrategy]]:
    """Return the shapes with as many axes as a named strategy can split, each with what it is there."""
    shapes_split = [(sizes, named) for sizes in shapes for named in named_strategies(name, len(sizes))]
    most = max((len(sizes) for sizes, _ in shapes_split), default=0)
    return [(sizes, named) for sizes, named in shapes_split if len(sizes) == most]


def on_shape(name: str, sizes: tuple[int, ...]) -> list[tuple[tuple[int, ...], NamedStrategy]]:
    """Return a shape without its axes of one device, and what a named strategy may be there.

    Raises
    ------
    InputError
        If it splits another number of axes.
    """
    entries, kept = NAMED_STRATEGIES[name], tuple(size for size in sizes if size > 1)
    if len(sizes) == len(entries) and len(kept) < len(sizes) and name == "3d" and len(kept) == 2:
        return [(kept, NamedStrategy.of(name, "".join(e for e, n in zip(entries, sizes, strict=True) if n > 1)))]
    if min(sizes) < 2 or not named_strategies(name, len(sizes)):
        rest = ", one of which may have one device" * (name == "3d")
        raise InputError(
            f"mesh {'x'.join(map(str, sizes))}: strategy {name} splits meshes of {len(entries)} axes with 2 devices or "
            f"more{rest}, as in {'x'.join('2' * len(entries))}"
        )
    return [(sizes, named) for named in named_strategies(name, len(sizes))]


def rows_are_samples(sizes: tuple[int, ...], samples: int) -> bool:
    """Return whether the rows that a named strategy splits may all be samples; else they are tokens too."""
    return not any(samples % (sizes[0] * size) for size in sizes[1:])


def matrix_of(operator: Operator) -> Weight | None:
    """Return the weight of a product: it has a loop of what is made, and one that is summed over."""
    two_sided = (weight for weight in operator.weights if len({loop in operator.makes for loop in weight.loops}) == 2)
    return next(two_sided, None)


def follows(operator: Operator, strategy: Strategy, named: NamedStrategy) -> bool:
    """Return whether a product of matrices is split by a named strategy."""
    weight = matrix_of(operator)
    return weight is not None and "".join(_entry(operator, weight, entry) for entry in strategy) in named.entries


def following(operator: Operator, signatures: tuple[Signature, ...], named: NamedStrategy) -> tuple[Signature, ...]:
    """Return the signatures that follow a named strategy; other operators are split along as many axes as possible.

    Sums are added up to parts of the rows, where this is possible.
    """
    following_ones = tuple(signature for signature in signatures if follows(operator, signature.strategy, named))
    if following_ones:
        return tuple(signature for signature in following_ones if WHOLE not in signature.held) or following_ones
    return tuple(signature for signature in signatures if AxisStrategy() not in signature.strategy) or signatures


def _entry(operator: Operator, weight: Weight, entry: AxisStrategy) -> str:
    if entry.loop in weight.loops:
        return "o" if entry.loop in operator.makes else "i"
    return "" if entry.loop not in operator.makes else "w" if entry.gathers else "r"
