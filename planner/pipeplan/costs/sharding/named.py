"""Linear maps under the forms of tensor parallelism that have names, as words and layouts on a mesh.

::

    form                  axes       word                      input arrives       output leaves
    columns               P          outputs                   whole               outputs
    rows                  P          inputs                    inputs              whole
    data parallel         P          rows                      rows                rows
    2-D                   q, q       rows gathered, outputs    rows, inputs        rows, outputs
    2.5-D                 d, q, q    rows, then as 2-D
    3-D                   w, i, o    rows gathered,            rows, rows,         rows, outputs,
                                     outputs, inputs           inputs              rows

"Rows gathered": along this axis a device has a part of the rows and of the weight, and gathers the weight. Of 3-D maps
behind each other every second one has the roles of i and o swapped, and its input arrives as the output before leaves.
"""

from typing import NamedTuple

from pipeplan.core.words import WHOLE, Layout, Letter, Word
from pipeplan.costs.sharding.volumes import IN, OUT, ROW, Algorithm, LinearMap, Volume, volume

FEATURES = 1
"""The dimension of a tensor that is not its rows, 0."""


class Form(NamedTuple):
    """How a linear map is split: devices along each axis, its word, and the layouts of input and output."""

    sizes: tuple[int, ...]
    word: Word
    arrives: Layout
    leaves: Layout

    def volume(
        self, linear: LinearMap, keep: bool = True, algorithm: Algorithm = Algorithm.RING, twice: bool = False
    ) -> Volume:
        """Return what a device receives; see `volume`."""
        return volume(linear, self.word, self.sizes, self.arrives, self.leaves, keep, algorithm, twice)


def columns(devices: int) -> Form:
    """Return the first of Megatron's pair: outputs are split."""
    return Form((devices,), (Letter(OUT),), (WHOLE,), (FEATURES,))


def rows(devices: int) -> Form:
    """Return the second of Megatron's pair: inputs are split, and parts of sums are added up."""
    return Form((devices,), (Letter(IN),), (FEATURES,), (WHOLE,))


def data_parallel(devices: int) -> Form:
    """Return the form in which each device has some rows and all of the weight."""
    return Form((devices,), (Letter(ROW),), (0,), (0,))


def two_dimensional(side: int) -> Form:
    """Return the form on ``side`` x ``side`` devices, with blocks of input, weight and output on each."""
    return Form((side, side), (Letter(ROW, True), Letter(OUT)), (0, FEATURES), (0, FEATURES))


def two_and_a_half_dimensional(copies: int, side: int) -> Form:
    """Return the form on so many squares, each with some of the rows and a copy of the weight."""
    word = Letter(ROW), Letter(ROW, True), Letter(OUT)
    return Form((copies, side, side), word, (0, 0, FEATURES), (0, 0, FEATURES))


def three_dimensional(sizes: tuple[int, int, int], swapped: bool = False) -> Form:
    """Return the form on axes w, i and o of these sizes; ``swapped``: the roles of i and o."""
    if swapped:
        return Form(sizes, (Letter(ROW, True), Letter(IN), Letter(OUT)), (0, FEATURES, 0), (0, 0, FEATURES))
    return Form(sizes, (Letter(ROW, True), Letter(OUT), Letter(IN)), (0, 0, FEATURES), (0, FEATURES, 0))
