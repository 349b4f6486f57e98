"""Random factors by which actions and transfers of a perturbed step take longer or shorter.

A factor is log-normal with mean 1 and standard deviation c, the relative spread: exp(σ z − σ² / 2) with z standard
normal and σ² = ln(1 + c²). An action's time is multiplied by its own factor and by its device's, drawn once per step:

::

    F, B, I, W, U on device d      spread factor  ×  factor of d in this step
    transfers, R                   spread factor                                  (they belong to no single device)

Factors belong to the n-th action of a kind on a device, not to a plan. All plans therefore use the same perturbations
as far as possible (common random numbers), and differences between them need fewer samples than the times themselves.
Samples 2 k and 2 k + 1 are a pair, with z and −z (antithetic variates): an action that takes longer in one takes less
in the other, so that the pair's mean varies little.
"""

from math import log, sqrt

import numpy as np
from numpy.typing import NDArray

from pipeplan.core.schedule import Kind

Floats = NDArray[np.float64]

BLOCK = 100
"""Samples that are drawn and processed together: an even number."""

_STREAMS = {kind: number for number, kind in enumerate(Kind)}
_DEVICE, _TRANSFER = len(_STREAMS), len(_STREAMS) + 1
"""Numbers of the random streams: one for each kind of action, one for devices, one for transfers."""


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
        """Return the device's own factor in each step, shape (BLOCK,)."""
        factors: Floats = self._draw(self._device_spread, 1, _DEVICE, device, 0)[0]
        return factors

    def of_actions(self, device: int, kind: Kind, count: int) -> Floats:
        """Return factors of the first ``count`` actions of a kind on a device, without the device's own factor.

        The shape is (count, BLOCK).
        """
        return self._draw(self._spread, count, _STREAMS[kind], device, 0)

    def of_transfers(self, source: int, target: int, count: int) -> Floats:
        """Return factors of the first ``count`` tensors from one device to another, shape (count, BLOCK)."""
        return self._draw(self._spread, count, _TRANSFER, source, target)

    def _draw(self, spread: float, count: int, stream: int, a: int, b: int) -> Floats:
        if not spread:
            return np.ones((count, BLOCK))
        sigma = sqrt(log(1 + spread**2))
        seed = np.random.SeedSequence(self._seed, spawn_key=(self._block, stream, a, b))
        # standard normal numbers, each twice in a row; then pairs (z, −z), then exp(σ z − σ² / 2)
        factors: Floats = np.repeat(np.random.default_rng(seed).standard_normal((count, BLOCK // 2)), 2, axis=1)
        factors[:, 1::2] *= -1
        factors *= sigma
        factors -= sigma**2 / 2
        np.exp(factors, out=factors)
        return factors
