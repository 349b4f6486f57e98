"""V-shaped schedules that repeat a building block, one micro-batch's times, every six units (Qi et al., NeurIPS 2024).

::

    time         0  1  2  3  4  5  6  7     2 devices, all strides 1, no gaps; of one micro-batch the near and
    device 0     f        F  I        i     the far forward (f, F), the far and the near input gradient (I, i);
    device 1        f  F        I  i        the next micro-batch's actions follow six units later

A *stride* is the number of units that a wave of actions takes from device to device: near forwards down, far forwards
up, far gradients down, near gradients up. A device keeps a micro-batch's two chunks for about p times the sum of all
strides, so small strides hold few activations, and leave no slack. Where a wave turns, a *gap* of some units may be
needed so that no two actions overlap on a device. In the steady state f, F, I and i then take four of each device's six
units, and two are left for W.

`weights_in_gaps` puts each W where it delays least: in a gap, or before a forward that needs its memory. It may also
run another action early in the remaining gaps.

::

    f f . F I . i …         a device's order without W, in unit times
    f f . F I W i …         the device would wait for i: run the oldest available W
    f f . F I W f i …       a forward is next, and the device's memory is full: run the oldest W before it
    f f f F I W i …         no W is available, but the next f may run, and everything up to its position still fits

The last rule fills both ends of a step, where fewer activations are held than in its middle. An early action on one
device may delay others, so lists are made with and without this rule.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from typing import NamedTuple

from pipeplan.core.schedule import Action, Kind
from pipeplan.schedules.placed import Order

PERIOD = 6
"""F, I and W of two stages, one unit each."""


class Strides(NamedTuple):
    """Units per device of each wave."""

    near_forward: int
    far_forward: int
    far_gradient: int
    near_gradient: int


@dataclass(frozen=True)
class BuildingBlock:
    """Start units of micro-batch 0's near forward, far forward, far and near input gradient on each device."""

    starts: tuple[tuple[int, int, int, int], ...]

    @property
    def repeats(self) -> bool:
        """Whether no two actions overlap on a device if a micro-batch begins every `PERIOD`."""
        return all(len({start % PERIOD for start in starts}) == len(starts) for starts in self.starts)

    @cached_property
    def most(self) -> int:
        """Largest number of stage activations on a device if each W takes one of the two remaining units."""
        return max(map(_most, self.starts))

    def order(self, device: int, micro_batches: int) -> list[Action]:
        """Return a device's forwards and input gradients in order of start.

        The starts respect all dependencies, so the orders do not deadlock.
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
    """Return the block that holds the fewest activations; among those, one with the smallest gaps."""
    gaps = sorted(product(range(PERIOD), repeat=3), key=sum)
    blocks = [_block(devices, strides, each) for each in gaps]
    return min((block for block in blocks if block.repeats), key=lambda block: block.most)


def repeated(block: BuildingBlock, micro_batches: int) -> Iterator[Order]:
    """Return each device's actions: the repeated block, with W and early actions in its gaps (`weights_in_gaps`)."""
    orders = [block.order(device, micro_batches) for device in range(len(block.starts))]
    return map(tuple, weights_in_gaps(orders, block.most))


def _block(devices: int, strides: Strides, gaps: Sequence[int]) -> BuildingBlock:
    """Build a block in which each wave begins a gap after the end of the previous one."""
    down, up = range(devices), range(devices)[::-1]
    begin = 0
    waves: list[list[int]] = []
    for stride, gap in zip(strides, (*gaps, 0), strict=True):
        waves.append([begin + stride * step for step in (up if len(waves) % 2 else down)])
        begin = max(waves[-1]) + 1 + gap
    near, far, far_gradient, near_gradient = waves
    return BuildingBlock(tuple(zip(near, far, far_gradient, near_gradient, strict=True)))


def _most(starts: tuple[int, int, int, int]) -> int:
    """Return the least peak of held activations, over both assignments of the two W to the two remaining units."""
    near, far, far_gradient, near_gradient = starts
    first, second = set(range(PERIOD)) - {start % PERIOD for start in starts}
    late = near_gradient + PERIOD  # from this unit on, the number of held activations is periodic
    counts = []
    for far_unit, near_unit in ((first, second), (second, first)):
        # lifetimes (from, to) of the two chunks of a micro-batch
        kept = ((near, _next(near_gradient, near_unit)), (far, _next(far_gradient, far_unit)))
        counts.append(
            max(sum((late + t - a) // PERIOD - (late + t - b) // PERIOD for a, b in kept) for t in range(PERIOD))
        )
    return min(counts)


def _next(gradient: int, unit: int) -> int:
    """Return the end of the W that takes the first unit ≡ ``unit`` (mod `PERIOD`) after an input gradient."""
    return gradient + 1 + (unit - gradient - 1) % PERIOD + 1


def weights_in_gaps(orders: Sequence[Sequence[Action]], most: int) -> list[list[Action]]:
    """Complete orders of forwards and input gradients with W, with or without early actions, whichever is shorter.

    Parameters
    ----------
    orders : sequence of sequence of Action
        One per device.
    most : int
        Stage activations that each device may hold. If every forward comes after fewer than ``most`` forwards without
        their I, and the orders run to the end without W, then they do so with W.

    Raises
    ------
    ValueError
        If the orders deadlock.
    """
    return min((_UnitSimulation(orders, most, early) for early in (False, True)), key=_UnitSimulation.run).written


class _UnitSimulation:
    """Simulation of all devices in unit times, which inserts W into their orders."""

    def __init__(self, orders: Sequence[Sequence[Action]], most: int, early: bool) -> None:
        self.most, self.early = most, early
        self.todo = [deque(order) for order in orders]
        self.rows = [{(action.kind, action.stage) for action in order} for order in orders]
        self.last_stage = max((action.stage for order in orders for action in order), default=0)
        self.weights: list[deque[Action]] = [deque() for _ in orders]
        self.held = [0] * len(orders)
        self.written: list[list[Action]] = [[] for _ in orders]
        self.done: set[Action] = set()

    def run(self) -> int:
        """Simulate to the end and return the number of units."""
        units = 0
        while any(self.todo) or any(self.weights):
            if not self._step():
                raise ValueError(f"with {self.most} stage activations per device these orders deadlock")
            units += 1
        return units

    def _step(self) -> int:
        """Run the next unit and return the number of devices that ran an action."""
        chosen = [(device, action) for device in range(len(self.todo)) if (action := self._choose(device))]
        for device, action in chosen:
            self.written[device].append(action)
            if action.kind is Kind.FORWARD:
                self.held[device] += 1
            elif action.kind is Kind.INPUT_GRADIENT:
                self.weights[device].append(action._replace(kind=Kind.WEIGHT_GRADIENT))
            else:
                self.held[device] -= 1
        self.done.update(action for _, action in chosen)
        return len(chosen)

    def _choose(self, device: int) -> Action | None:
        todo = self.todo[device]
        if todo and self._may(device, todo[0]):
            return todo.popleft()
        if self.weights[device]:
            return self.weights[device].popleft()
        return self._early_action(device) if self.early else None

    def _early_action(self, device: int) -> Action | None:
        """Take the first action that may run, if it is an input gradient or leaves memory for all forwards it passes.

        No W is available here, so the I of every held activation is still to come.
        """
        held, room = self.held[device] + 1, True
        passed: set[tuple[Kind, int]] = set()
        for place, action in enumerate(self.todo[device]):
            forward = action.kind is Kind.FORWARD
            if self._may(device, action) and (room or not forward):
                del self.todo[device][place]
                return action
            held += 1 if forward else -1
            room = room and held <= self.most
            passed.add((action.kind, action.stage))
            if passed == self.rows[device]:  # all later actions wait for a passed one
                return None
        return None

    def _may(self, device: int, action: Action) -> bool:
        if action.kind is Kind.FORWARD:
            first = action.stage == 0 or action._replace(stage=action.stage - 1) in self.done
            return first and self.held[device] < self.most
        forward = action._replace(kind=Kind.FORWARD)
        behind = action._replace(stage=action.stage + 1)
        return forward in self.done and (action.stage == self.last_stage or behind in self.done)
