"""Problem: sums of gradients on one link, of which a layer's next forward waits for that layer's own.

Layers are 0 … n − 1 in forward order. A backward goes from the last one to the first, so the gradients of layer j are
ready at r_j, not later than those of the layers before it. Their sum takes p_j on the link, and behind it the forward
of layers j … n − 1 takes q_j::

    backward   │ 2 │ 1 │ 0 │                     r_2 ≤ r_1 ≤ r_0
    link           ├2┤ 1 ├─0─┤1┤──2──┤           layer 1 interrupts 2, and 0 interrupts 1
    forward                  │ 0 │ 1 │ │ 2 │     q_0 ≥ q_1 ≥ q_2

If the link may be interrupted, the forward ends at

    T* = max over j of  r_j + Σ_{l ≤ j} p_l + q_j                                         (`Sums.end`)

at the earliest, and it does so if the link always works on the front layer that is ready (docs/bounds/priority.md has
the proof). This is 1 | r_j, pmtn | max (C_j + q_j) with agreeing heads and tails. If of layer l a share x_l is left
out, p_l shrinks by s_l x_l, where s_l is what the link would save without all that may be lost of the layer.

Chunks that may not be interrupted take at least T* as well, and at most one chunk longer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from pipeplan_formulations.common.report import BeyondIntegersError
from pipeplan_formulations.common.sentinels import UNLIMITED

Array = NDArray[np.int64]
Order = tuple[int, ...]
"""The layer of each chunk, in the order in which they leave; the chunks of a layer keep theirs."""
BUDGETS_BELOW, OF_A_LAYER = Fraction(1, 2), Fraction(49, 100)
"""What may be lost of all gradients is below the first share, of one layer no more than the second."""


@dataclass(frozen=True, slots=True)
class Losses:
    """What is left out of each layer's sum, and what it is worth.

    Attributes
    ----------
    shares : tuple of Fraction
        x of each layer.
    prices : tuple of float
        For each layer, by how much T grows per unit by which its sum takes longer: 0 of layers that do not bind, 1 of
        those ahead of all that do. Duals of the linear programme.
    worth : float
        By how much T falls for each byte more that may be lost.
    """

    shares: tuple[Fraction, ...]
    prices: tuple[float, ...]
    worth: float = 0.0


def _check_layers(rows: Sequence[Array], what: str) -> None:
    """Refuse layers that are not ready and needed in turn, or whose times are no times."""
    ready, tails, times = rows
    if not len(ready) or {row.shape for row in rows} != {(len(ready),)}:
        raise ValueError(f"{what} have one row of ready times, of times and of tails, of at least one layer each")
    if (np.diff(ready) > 0).any() or (np.diff(tails) > 0).any():
        raise ValueError("front layers are ready last and needed first: ready times and tails never grow")
    if min(row.min() for row in rows) < 0:
        raise ValueError("times are not negative")
    if int(ready.max()) + int(tails.max()) + sum(times.tolist()) >= UNLIMITED:
        raise BeyondIntegersError("the times of sums are so large that they exceed 64-bit integers")


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums that may be interrupted, and what of them may be lost.

    Attributes
    ----------
    ready, times, tails : array of int, shape (n,)
        r, p and q of each layer, in forward order.
    saved : array of int, shape (n,), optional
        s of each layer, at most p; none by default.
    sizes : array of int, shape (n,), optional
        Bytes of each layer's gradients; needed where something may be lost.
    budget : Fraction
        Share of all bytes that may be lost, in [0, 1/2). Of one layer at most twice this share may be, or `OF_A_LAYER`.

    Raises
    ------
    ValueError
        If arrays have unlike lengths, ready times or tails grow, numbers are negative, or the budget is out of range.
    BeyondIntegersError
        If times may exceed 64-bit integers.
    """

    ready: Array
    times: Array
    tails: Array
    saved: Array | None = None
    sizes: Array | None = None
    budget: Fraction = Fraction(0)

    def __post_init__(self) -> None:
        _check_layers((self.ready, self.tails, self.times), "sums")
        if not 0 <= self.budget < BUDGETS_BELOW:
            own, below = float(self.budget), float(BUDGETS_BELOW)
            raise ValueError(f"a share of {own:g} may not be lost: it is at least 0 and below {below:g}")
        if self.budget and (self.saved is None or self.sizes is None):
            raise ValueError("where something may be lost, say what that saves and how many bytes there are")
        for row, most in ((self.saved, self.times), (self.sizes, None)):
            if row is not None and (row.shape != self.times.shape or row.min() < 0):
                raise ValueError("what is saved, and bytes, are numbers of each layer that are not negative")
            if row is not None and most is not None and (row > most).any():
                raise ValueError("a layer without all that may be lost saves no more than its sum takes")

    @property
    def layers(self) -> int:
        """The number n."""
        return len(self.times)

    @property
    def most(self) -> Fraction:
        """The largest share of one layer that may be lost."""
        return min(2 * self.budget, OF_A_LAYER)

    @property
    def may_lose(self) -> Fraction:
        """Bytes that may be lost."""
        return Fraction(0) if self.sizes is None else self.budget * int(self.sizes.sum())

    def left(self, shares: Sequence[Fraction]) -> Array:
        """Return the time of each layer's sum without these shares, rounded up."""
        if self.saved is None:
            return self.times
        taken = [int(saved * share) for saved, share in zip(self.saved.tolist(), shares, strict=True)]
        return self.times - np.array(taken, np.int64)

    def paths(self, times: Array) -> Array:
        """Return r_j + Σ_{l ≤ j} p_l + q_j of each layer for these times of sums; the largest is T."""
        found: Array = self.ready + np.cumsum(times) + self.tails
        return found

    def end(self, times: Array) -> int:
        """Return T for these times of sums."""
        return int(self.paths(times).max())

    def evaluate(self, losses: Losses) -> int | None:
        """Return T; None if more is lost than may be."""
        if len(losses.shares) != self.layers or not all(0 <= share <= self.most for share in losses.shares):
            return None
        sizes = [0] * self.layers if self.sizes is None else self.sizes.tolist()
        if sum(size * share for size, share in zip(sizes, losses.shares, strict=True)) > self.may_lose:
            return None
        return self.end(self.left(losses.shares))


@dataclass(frozen=True, eq=False)
class Chunks:
    """Chunks that may not be interrupted, in an order that all ranks keep.

    Attributes
    ----------
    ready, tails : array of int, shape (n,)
        r and q of each layer, in forward order.
    times : tuple of tuple of int
        Of each layer the times of its chunks; none of a layer without a sum.

    Raises
    ------
    ValueError, BeyondIntegersError
        As of `Sums`.
    """

    ready: Array
    tails: Array
    times: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        _check_layers((self.ready, self.tails, self.totals), "chunks")
        if min((time for own in self.times for time in own), default=0) < 0:
            raise ValueError("times are not negative")

    @property
    def totals(self) -> Array:
        """Time of all chunks of each layer, shape (n,)."""
        return np.array([sum(own) for own in self.times], np.int64)

    def lower_bound(self) -> int:
        """Return T*, which no order undercuts."""
        return Sums(self.ready, self.totals, self.tails).end(self.totals)

    def evaluate(self, order: Order) -> int | None:
        """Return when the forward ends; None if the order has not each chunk once."""
        place, clock = [0] * len(self.times), 0
        end = int(self.ready[0] + self.tails[0])
        for layer in order:
            if not 0 <= layer < len(self.times) or place[layer] == len(self.times[layer]):
                return None
            clock = max(clock, int(self.ready[layer])) + self.times[layer][place[layer]]
            place[layer] += 1
            end = max(end, clock + int(self.tails[layer]))
        return end if place == [len(own) for own in self.times] else None
