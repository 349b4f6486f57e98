"""Parts of a chain partition instance: ties of layers that share weights, link resources, and path cuts.

::

    layers    0 │ 1 2 │ 3 4 5        a tie of layers 0 and 4: shared weights belong to layer 0. Stage 2 holds a copy.
              h         c            Both stages, home (h) and copy (c), add up the gradients of the two

    stage 0   d0 d1 d2        link 0: d0 d1 d2 ──card──▶ d4        the card of node 0 carries tensors of both links,
    stage 1   d3 │ d4         link 1: d3       ──card──▶ d5        one after the other
    stage 2      │ d5 d6
            node 0 │ node 1
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pipeplan_formulations.common.layer_tables import Array, Flags
from pipeplan_formulations.partition.terms import Number


@dataclass(frozen=True, slots=True)
class Tie:
    """Layers with shared weights, and the cost of having them on different stages; on one stage they cost nothing.

    The shared weights are part of the first layer's numbers. A stage that holds others of the layers, but not the
    first, has a copy.

    Attributes
    ----------
    layers : tuple of int
        At least two, ascending.
    resident, update, reduce : tuple of int
        One entry per stage: bytes of a copy there, nanoseconds of its optimiser step, and nanoseconds to add its
        gradients to the others'.
    home : tuple of int
        One entry per stage: nanoseconds of that sum on the stage of the first layer, if another stage has a copy, in
        addition to the layer's entry in `ChainPartition.reduce`.

    Raises
    ------
    ValueError
        If the layers are not in order, a number is negative, or the rows differ in length.
    """

    layers: tuple[int, ...]
    resident: tuple[int, ...]
    update: tuple[int, ...]
    reduce: tuple[int, ...]
    home: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.layers) < 2 or self.layers[0] < 0 or any(a >= b for a, b in pairwise(self.layers)):
            raise ValueError(f"a tie joins two layers or more, in ascending order, not {self.layers}")
        rows = (self.resident, self.update, self.reduce, self.home)
        if len({len(row) for row in rows}) > 1:
            raise ValueError(f"a tie has one number a stage; its rows have {', '.join(str(len(row)) for row in rows)}")
        if any(number < 0 for row in rows for number in row):
            raise ValueError(f"a tie costs bytes and time; some of these are negative: {rows}")

    def has_copy(self, a: Array, b: Array) -> Flags:
        """True if a stage on the layers a … b − 1 has a copy."""
        return has_copy(self.layers, a, b)

    def is_home(self, a: Array, b: Array) -> Flags:
        """True if a stage on the layers a … b − 1 has the first of the layers, and another stage a copy."""
        return is_home(self.layers, a, b)


def has_copy(layers: tuple[int, ...], a: Array | int, b: Array | int) -> Flags:
    """True if the layers a … b − 1 include some of ``layers``, which ascend, but not the first of them."""
    some = [np.less_equal(a, layer) & np.greater(b, layer) for layer in layers]
    result: Flags = np.logical_or.reduce(some[1:]) & np.logical_not(some[0])
    return result


def is_home(layers: tuple[int, ...], a: Array | int, b: Array | int) -> Flags:
    """True if the layers a … b − 1 include the first of ``layers``, which ascend, but not all of them."""
    first, last = layers[0], layers[-1]
    result: Flags = np.less_equal(a, first) & np.greater(b, first) & np.less_equal(b, last)
    return result


@dataclass(frozen=True)
class LinkResource:
    """A link or network card, which carries the transfers of a link, and perhaps of the next one, one at a time.

    Attributes
    ----------
    link : int
        s.
    busy : array of int, shape (n − 1,)
        V: for each cut, the time per step that the transfers of link s in one direction keep it busy.
    beyond : array of int, shape (n − 1,), optional
        V' of link s + 1 in the same direction; not if tensors stream.
    back : bool
        True for gradients, false for activations.
    """

    link: int
    busy: Array
    beyond: Array | None = None
    back: bool = False

    @property
    def stage(self) -> int:
        """The stage whose span determines e: the one between two links; for one link its sender, s or s + 1."""
        return self.link + (self.beyond is not None or self.back)


@dataclass(frozen=True, slots=True)
class PathCut:
    """Coefficients of one path cut.

    ``forward``, ``backward``, ``update`` and ``reduce`` have one entry per stage (an empty ``reduce`` stands for
    zeros), ``send`` and ``send_back`` one per link. ``surplus`` lists links, each with a time per cut: the time beyond
    f or g that the path's transfers over the link take, because they use slower resources.

    Raises
    ------
    ValueError
        If a coefficient is negative: they count the actions on a path.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    update: tuple[int, ...]
    send: tuple[int, ...]
    send_back: tuple[int, ...]
    constant: int = 0
    reduce: tuple[int, ...] = ()
    surplus: tuple[tuple[int, tuple[int, ...]], ...] = ()

    def __post_init__(self) -> None:
        for name in ("forward", "backward", "update", "send", "send_back", "reduce"):
            if any(coefficient < 0 for coefficient in getattr(self, name)):
                raise ValueError(f"a path counts actions; {name} has a negative coefficient: {getattr(self, name)}")
        for link, row in self.surplus:
            if any(time < 0 for time in row):
                raise ValueError(f"a link resource of link {link} is faster than the fastest one: {row}")

    @property
    def sizes(self) -> tuple[int, ...]:
        """Lengths of the rows: forward, backward, update, reduce, send, send_back."""
        rows = (self.forward, self.backward, self.update, self.reduce or self.update, self.send, self.send_back)
        return tuple(len(row) for row in rows)

    @property
    def largest(self) -> int:
        """The largest coefficient."""
        return max(0, *self.forward, *self.backward, *self.update, *self.reduce, *self.send, *self.send_back)

    @property
    def most_surplus(self) -> int:
        """An upper bound on the total surplus of any partition."""
        return sum(max(row, default=0) for _, row in self.surplus)

    def length(
        self,
        forward: Number,
        backward: Number,
        update: Number,
        reduce: Number,
        send: Number,
        send_back: Number,
        chosen: Callable[[int, tuple[int, ...]], Number] | None = None,
    ) -> Number:
        """Right side of a path cut for these times, each a sequence with one entry per stage or link.

        ``chosen(link, row)``: the entry of the row for the cut at which the link lies.
        """
        total = self.constant
        for link, row in self.surplus:
            assert chosen is not None, "a path over unlike resources depends on where its links lie"
            total = total + chosen(link, row)
        rows = (self.forward, self.backward, self.update, self.send, self.send_back)
        times = (forward, backward, update, send, send_back)
        pairs = [*zip(rows, times, strict=True), *([(self.reduce, reduce)] if self.reduce else [])]
        for counts, entries in pairs:
            for coefficient, time in zip(counts, entries, strict=True):
                if coefficient:
                    total = total + coefficient * time
        return total
