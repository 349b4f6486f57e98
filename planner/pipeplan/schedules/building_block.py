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

`weights_in_gaps` puts each W where it costs least, in a gap or where a forward needs the memory that it holds; and it
may run something else ahead of its turn, in gaps that are left.

::

    f f . F I . i …         a device's order without W, in unit times
    f f . F I W i …         it would wait for i: the oldest W that is there
    f f . F I W f i …       a forward stands there, and the device is full: the oldest W, ahead of it
    f f f F I W i …         no W is there yet, but the next f may run, and everything up to its turn still has room

The last of these fills the ends of a step, where less is held than in its middle; but who is early on one device may be
in the way of others, so that lists are made both ways.
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


def weights_in_gaps(orders: Sequence[Sequence[Action]], most: int) -> list[list[Action]]:
    """Orders of forwards and input gradients, completed with W: of both ways the one that takes fewer units.

    Parameters
    ----------
    orders : sequence of sequence of Action
        One a device.
    most : int
        The stage activations that each may hold. Where every forward has fewer than ``most`` forwards without their I
        ahead of it, and the orders end without W, then so they do with.

    Raises
    ------
    ValueError
        If the orders do not end.
    """
    return min((_UnitTimes(orders, most, early) for early in (False, True)), key=_UnitTimes.play).written


class _UnitTimes:
    """All devices, one unit of time after the other."""

    def __init__(self, orders: Sequence[Sequence[Action]], most: int, early: bool) -> None:
        self.most, self.early = most, early
        self.todo = [deque(order) for order in orders]
        self.rows = [{(action.kind, action.stage) for action in order} for order in orders]
        self.last_stage = max((action.stage for order in orders for action in order), default=0)
        self.weights: list[deque[Action]] = [deque() for _ in orders]
        self.held = [0] * len(orders)
        self.written: list[list[Action]] = [[] for _ in orders]
        self.done: set[Action] = set()

    def play(self) -> int:
        """To the end; the units that it takes."""
        units = 0
        while any(self.todo) or any(self.weights):
            if not self._step():
                raise ValueError(
                    f"with {self.most} stage activations a device these orders wait for each other for ever"
                )
            units += 1
        return units

    def _step(self) -> int:
        """How many devices did something in the next unit."""
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
        return self._ahead_of_its_turn(device) if self.early else None

    def _ahead_of_its_turn(self, device: int) -> Action | None:
        """The first that may run, if it is an input gradient or leaves room for all forwards that it passes.

        No W is there, so that all that is held has its I to come.
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
            if passed == self.rows[device]:  # what comes later waits for what was passed
                return None
        return None

    def _may(self, device: int, action: Action) -> bool:
        if action.kind is Kind.FORWARD:
            first = action.stage == 0 or action._replace(stage=action.stage - 1) in self.done
            return first and self.held[device] < self.most
        forward = action._replace(kind=Kind.FORWARD)
        behind = action._replace(stage=action.stage + 1)
        return forward in self.done and (action.stage == self.last_stage or behind in self.done)
