"""By how much each action of a perturbed step takes longer or shorter.

A factor is log-normal with mean 1 and standard deviation c, the relative spread: exp(σ z − σ² / 2) with z standard
normal and σ² = ln(1 + c²). What a device computes takes its own factor times the device's, drawn once a step:

::

    F, B, I, W, U on device d      spread factor  ×  factor of d in this step
    transfers, R                   spread factor                                  (wires are nobody's device)

Factors belong to the n-th piece of work of a sort on a device, not to a plan. So all plans meet the same disturbances
as far as they can (common random numbers), and differences between them need fewer samples than the times themselves.
Samples 2 k and 2 k + 1 are a pair, with z and −z (antithetic variates): what takes longer in one takes less in the
other, so that the pair's mean varies little.
"""

from math import log, sqrt

import numpy as np
from numpy.typing import NDArray

from pipeplan.core.schedule import Kind

Floats = NDArray[np.float64]

BLOCK = 100
"""Samples that are drawn, and worked on, together: an even number."""

_SORTS = {kind: number for number, kind in enumerate(Kind)}
_DEVICE, _WAY = len(_SORTS), len(_SORTS) + 1
"""Each sort of factor has random numbers of its own."""


class Factors:
    """The factors of one block of `BLOCK` samples.

    Parameters
    ----------
    spread, device_spread : float
    seed : int
    block : int
        Number of the block; its factors do not depend on how many blocks there are.

    Attributes
    ----------
    size : int
        Number of samples.
    """

    size = BLOCK

    def __init__(self, spread: float, device_spread: float, seed: int, block: int) -> None:
        self._spread, self._device_spread = spread, device_spread
        self._seed, self._block = seed % 2**64, block

    def of_device(self, device: int) -> Floats:
        """How much slower the device is in each step, shape (BLOCK,)."""
        factors: Floats = self._draw(self._device_spread, 1, _DEVICE, device, 0)[0]
        return factors

    def of_actions(self, device: int, kind: Kind, count: int) -> Floats:
        """Of the first ``count`` actions of a kind on a device, shape (count, BLOCK), the device's own left out."""
        return self._draw(self._spread, count, _SORTS[kind], device, 0)

    def of_transfers(self, source: int, target: int, count: int) -> Floats:
        """Of the first ``count`` tensors from one device to another, shape (count, BLOCK)."""
        return self._draw(self._spread, count, _WAY, source, target)

    def _draw(self, spread: float, count: int, sort: int, a: int, b: int) -> Floats:
        if not spread:
            return np.ones((count, BLOCK))
        sigma = sqrt(log(1 + spread**2))
        stream = np.random.SeedSequence(self._seed, spawn_key=(self._block, sort, a, b))
        factors: Floats = np.repeat(np.random.default_rng(stream).standard_normal((count, BLOCK // 2)), 2, axis=1)
        factors[:, 1::2] *= -1
        factors *= sigma
        factors -= sigma**2 / 2
        np.exp(factors, out=factors)
        return factors
