"""V schedules that repeat one micro-batch's times, the building block, every six units (Qi et al., NeurIPS 2024).

::

    time         0  1  2  3  4  5  6  7     2 devices, all strides 1, no gaps; of one micro-batch the near and
    device 0     f        F  I        i     the far forward (f, F), the far and the near input gradient (I, i);
    device 1        f  F        I  i        the next micro-batch's stand six units later

A *stride* is how many units a wave of actions takes from device to device: near forwards down, far forwards up, far
gradients down, near gradients up. A device keeps a micro-batch's two chunks for about p times the sum of all strides,
so small strides hold little, and leave no slack. Where a wave turns, a *gap* of some units may be needed so that no
device is wanted twice at once; f, F, I and i then take four of each device's six units for ever, and two are left
for W.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from typing import NamedTuple

from pipeplan.core.schedule import Action, Kind
from pipeplan.schedules.gaps import weights_in_gaps
from pipeplan.schedules.placed import Order

PERIOD = 6
"""F, I and W of two stages, one unit each."""


class Strides(NamedTuple):
    """Units from device to device, of each wave."""

    near_forward: int
    far_forward: int
    far_gradient: int
    near_gradient: int


@dataclass(frozen=True)
class BuildingBlock:
    """When each device begins micro-batch 0's near forward, far forward, far and near input gradient."""

    starts: tuple[tuple[int, int, int, int], ...]

    @property
    def repeats(self) -> bool:
        """Whether no device is wanted twice at once if a micro-batch begins every `PERIOD`."""
        return all(len({start % PERIOD for start in starts}) == len(starts) for starts in self.starts)

    @cached_property
    def most(self) -> int:
        """The most stage activations that a device holds if each W takes one of the two units that are left."""
        return max(map(_most, self.starts))

    def order(self, device: int, micro_batches: int) -> list[Action]:
        """A device's forwards and input gradients, as they begin.

        The starts keep whatever an action waits for, so all devices' orders end.
        """
        far = 2 * len(self.starts) - 1 - device
        kinds = (Kind.FORWARD, device), (Kind.FORWARD, far), (Kind.INPUT_GRADIENT, far), (Kind.INPUT_GRADIENT, device)
        begin = {
            Action(kind, stage, m): start + PERIOD * m
            for (kind, stage), start in zip(kinds, self.starts[device], strict=True)
            for m in range(micro_batches)
        }
        return sorted(begin, key=begin.__getitem__)


@lru_cache
def building_block(devices: int, strides: Strides) -> BuildingBlock:
    """The block that holds least; among those, one with the least gaps."""
    gaps = sorted(product(range(PERIOD), repeat=3), key=sum)
    blocks = [_block(devices, strides, each) for each in gaps]
    return min((block for block in blocks if block.repeats), key=lambda block: block.most)


def repeated(block: BuildingBlock, micro_batches: int) -> Iterator[Order]:
    """Each device's actions: those of the block as they begin, W in the gaps, and at both ends of the step what may run
    ahead of its turn (`weights_in_gaps`)."""
    orders = [block.order(device, micro_batches) for device in range(len(block.starts))]
    return map(tuple, weights_in_gaps(orders, block.most))


def _block(devices: int, strides: Strides, gaps: Sequence[int]) -> BuildingBlock:
    """Each wave begins when the one before has ended, and a gap later."""
    down, up = range(devices), range(devices)[::-1]
    begin = 0
    waves: list[list[int]] = []
    for stride, gap in zip(strides, (*gaps, 0), strict=True):
        waves.append([begin + stride * step for step in (up if len(waves) % 2 else down)])
        begin = max(waves[-1]) + 1 + gap
    near, far, far_gradient, near_gradient = waves
    return BuildingBlock(tuple(zip(near, far, far_gradient, near_gradient, strict=True)))


def _most(starts: tuple[int, int, int, int]) -> int:
    """The least that one device can hold at its worst, over both ways to give the two W the units that are left."""
    near, far, far_gradient, near_gradient = starts
    first, second = set(range(PERIOD)) - {start % PERIOD for start in starts}
    late = near_gradient + PERIOD  # from there on every lifetime stands still
    counts = []
    for far_unit, near_unit in ((first, second), (second, first)):
        kept = ((near, _next(near_gradient, near_unit)), (far, _next(far_gradient, far_unit)))
        counts.append(
            max(sum((late + t - a) // PERIOD - (late + t - b) // PERIOD for a, b in kept) for t in range(PERIOD))
        )
    return min(counts)


def _next(gradient: int, unit: int) -> int:
    """The end of the W that takes the first unit of its kind behind an input gradient."""
    return gradient + 1 + (unit - gradient - 1) % PERIOD + 1
