r"""Exposed collectives: what a stage still has to sum of its gradients when its last backward has ended.

A last backward runs through the layers of a stage from the last to the first. The gradients of a layer can be summed as
soon as it has gone through that layer, one layer after the other on one ring::

    stage of layers a … b − 1 = 0 … 3

    last backward    ━━━━3━━━━│━━2━━│━━━1━━━│━━0━━│
    ready                     3     2       1     0         layer l is ready H(a, l) before the end
    sums                      ▒▒3▒▒▒▒▒▒▒2▒▒▒▒▒▒▒1▒▒▒▒▒▒0▒▒│
                                                  ├── E ──┤

With p the sum of a layer's gradients, and h the part of its last backward that may hide other sums,

    P(a, l) = Σ_{a ≤ i < l} p_i,    H(a, l) = Σ_{a ≤ i < l} h_i,

    E(a, b) = max(0, max over l in [a, b) with P(a, l + 1) > 0 of   base + P(a, l + 1) − H(a, l)).

The base is the part of a sum's time that does not depend on bytes. It counts once, however many sums there are, as
layers a … l need at least one. So E is a lower bound on what is exposed, and exact for one layer. If nothing is hidden
it is P + base. docs/bounds/collectives.md has the properties of E, with proofs.

Replicas that update a share of the parameters each gather them at the begin of the next step, layer by layer, while the
first forward runs. That is the same picture with time reversed: from left to right the layers 0 … 3, from right to left
their gathers. So a first forward cannot begin before E(a, b), with p the gather of a layer and h its forward.
`Collectives` adds this to the exposed sums of the first stage, and in a long run (``period``) to those of each. In a
step others wait for it, or for tensors on the way to them, whichever is longer (`Collectives.waits`).
"""

import numpy as np

from pipeplan_formulations.common.layer_tables import Array, sums_before

Indices = Array | int


class Exposed:
    """E of any spans, on rows of devices.

    With f the first layer from a on that has p > 0,

        E(a, b) = max(0, base + max over l in [f, b) of (P(0, l + 1) − H(0, l)) − (P(0, a) − H(0, a))).

    The maximum over a range is that over two ranges whose lengths are powers of two, which may overlap. These are
    tabulated: n log n numbers per row.

    Parameters
    ----------
    reduce, hides : array of int, shape (..., n)
        p and h of each layer.
    base : array of int, shape (...)

    Attributes
    ----------
    nothing : bool
        True if E is 0 everywhere.
    """

    def __init__(self, reduce: Array, hides: Array, base: Array) -> None:
        self._base, self._summed = base, sums_before(reduce)
        self.nothing = not reduce.any()
        self._hides = bool(hides.any())
        if not self._hides:
            return
        n = reduce.shape[-1]
        hidden = np.broadcast_to(sums_before(hides), self._summed.shape)
        self._ahead = self._summed - hidden
        # f from each boundary on; n if there is none.
        at = np.where(reduce > 0, np.arange(n), n)
        at = np.concatenate([at, np.full_like(at[..., :1], n)], axis=-1)
        self._first = np.minimum.accumulate(at[..., ::-1], axis=-1)[..., ::-1]
        # Exponent of the largest power of two up to each length, and the maxima over that many layers from each on.
        self._power = np.array([max(length, 1).bit_length() - 1 for length in range(n + 1)])
        levels = [self._summed[..., 1:] - hidden[..., :-1]]
        for k in range(int(self._power[n])):
            longer = levels[k].copy()
            longer[..., : -(2**k)] = np.maximum(longer[..., : -(2**k)], levels[k][..., 2**k :])
            levels.append(longer)
        self._most = np.stack(levels, axis=-2)

    def __call__(self, row: tuple[Indices, ...], a: Indices, b: Indices) -> Array:
        """E of layers a … b − 1 on the row with these indices; shapes broadcast."""
        if not self._hides:
            summed: Array = self._summed[(*row, b)] - self._summed[(*row, a)]
            return summed + np.where(summed > 0, self._base[row], 0)
        first = self._first[(*row, a)]
        reduces = first < b
        first = np.where(reduces, first, 0)
        k = self._power[np.where(reduces, b - first, 1)]
        most = np.maximum(self._most[(*row, k, first)], self._most[(*row, k, b - 2**k)])
        return np.where(reduces, np.maximum(self._base[row] + most - self._ahead[(*row, a)], 0), 0)


class InTurn:
    """E of any spans on rows of devices that sum for several stages in turn.

    It is that of some of the sums, or what is left of all if a last backward of each stage hides others, if that is
    more.

    Parameters
    ----------
    some : Exposed
    left : array of int, shape (..., n)
        All sums of each layer, less the backwards that may hide sums.
    """

    def __init__(self, some: Exposed, left: Array) -> None:
        self._some, self._left = some, sums_before(left)

    def __call__(self, row: tuple[Indices, ...], a: Indices, b: Indices) -> Array:
        """E of layers a … b − 1 on the row with these indices; shapes broadcast."""
        found: Array = np.maximum(self._some(row, a, b), self._left[(*row, b)] - self._left[(*row, a)])
        return found


class Collectives:
    """R of any spans, on rows of devices: what their sums leave exposed, and what their gathers do.

    Parameters
    ----------
    sums : Exposed or InTurn
    gathers : Exposed
    everywhere : bool
        Gathers count on every stage, not on the first one only.
    """

    def __init__(self, sums: Exposed | InTurn, gathers: Exposed, everywhere: bool) -> None:
        self._sums, self._gathers, self._everywhere = sums, gathers, everywhere

    def __call__(self, row: tuple[Indices, ...], a: Indices, b: Indices) -> Array:
        """R of layers a … b − 1 on the row with these indices; shapes broadcast."""
        found = self._sums(row, a, b)
        if self._gathers.nothing:
            return found
        gathers = self._gathers(row, a, b)
        return found + (gathers if self._everywhere else np.where(np.equal(a, 0), gathers, 0))

    def waits(self, row: tuple[Indices, ...], a: Indices, b: Indices) -> Array:
        """How long the first forward through these layers waits for gathers that R does not contain."""
        if self._everywhere or self._gathers.nothing:
            return np.zeros(np.broadcast_shapes(np.shape(a), np.shape(b), *map(np.shape, row)), np.int64)
        return np.where(np.equal(a, 0), 0, self._gathers(row, a, b))
