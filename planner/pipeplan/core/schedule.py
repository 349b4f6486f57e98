"""`Schedule`: a list of actions for each device, and the actions.

::

    stage 1   .  0F0 ...          device 0:  0F0 0F1 0B0 0F2 0B1 0B2 0U
                                  device 1:  1F0 1B0 1F1 1B1 1F2 1B2 1U      (one forward, one backward)

Schedule families and solvers produce schedules. The simulator computes their times, the validator checks them, and the
executor runs them.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from itertools import chain
from typing import NamedTuple, overload

from pipeplan.core.errors import InputError
from pipeplan.core.figures import shown, whole
from pipeplan.core.parts import each_a, printable, switch
from pipeplan_formulations.common.dependencies import OF_MICRO_BATCHES, Part


class Kind(StrEnum):
    """Kind of an action: forward, backward (joined or split), reduction, update, gather.

    A gather of parameters precedes a device's list; it is not in it.

    Examples
    --------
    >>> pipeplan.Kind("F") is pipeplan.Kind.FORWARD
    True
    """

    FORWARD = "F"
    BACKWARD = "B"
    INPUT_GRADIENT = "I"
    WEIGHT_GRADIENT = "W"
    REDUCE = "R"
    UPDATE = "U"
    GATHER = "G"

    __hash__ = str.__hash__  # an Enum has its own, slower and at odds with str.__eq__

    @property
    def per_micro_batch(self) -> bool:
        """False for the reduction, the update and the gather, which run once per step."""
        return self in _PARTS

    @property
    def part(self) -> Part:
        """Kind by which dependencies are stated: a joined backward is an input gradient to other stages."""
        return _PARTS[self]


_PARTS: Mapping[Kind, Part] = {
    Kind.FORWARD: "F",
    Kind.BACKWARD: "I",
    Kind.INPUT_GRADIENT: "I",
    Kind.WEIGHT_GRADIENT: "W",
}
_ACTION = re.compile(r"(\d+)([FBIWRU])(\d+)?(?:\.(\d+))?")


class Action(NamedTuple):
    """One action of a device: ``2F5`` is the forward of micro-batch 5 on stage 2, ``2F5.1`` of its token slice 1.

    Attributes
    ----------
    kind : Kind
    stage, micro_batch : int
        Of a reduction, an update and a gather it is the batch, where lists run through several (`Schedule.batches`).
    slice : int
        Token slice of the micro-batch.

    Examples
    --------
    >>> action = pipeplan.Action(pipeplan.Kind.FORWARD, 2, 5)
    >>> print(action)
    2F5
    """

    kind: Kind
    stage: int
    micro_batch: int = 0
    slice: int = 0

    def __str__(self) -> str:
        if not self.kind.per_micro_batch:
            return f"{self.stage}{self.kind}{self.micro_batch or ''}"
        suffix = f".{self.slice}" if self.slice else ""
        return f"{self.stage}{self.kind}{self.micro_batch}{suffix}"

    @classmethod
    def parse(cls, text: str) -> "Action":
        """Parse the text of an action, as ``str`` writes it."""
        match = _ACTION.fullmatch(text.strip()) if isinstance(text, str) else None
        if match is None or (match[3] is None and Kind(match[2]).per_micro_batch):
            raise InputError(f"{shown(text)} is not an action; write stage, kind and micro-batch, like 2F5, or 2U")
        return cls(Kind(match[2]), int(match[1]), int(match[3] or 0), int(match[4] or 0))


class LikeLists(Sequence[tuple[Action, ...]]):
    """The lists of replicas that are alike but for the numbers of their micro-batches, each made when it is read.

    ::

        lists t of the first lane, m = 0, 1 …          device g t + j of g lanes: the same with micro-batches g m + j

    Thousands of replicas have millions of actions, and what is known of one lane holds for all of them
    (`core.validate.lanes`).

    Parameters
    ----------
    first : iterable of tuple of Action
        The lists of one lane, its micro-batches counted from 0.
    lanes : int
        How many there are.
    """

    def __init__(self, first: Iterable[tuple[Action, ...]], lanes: int) -> None:
        self.first, self.lanes = tuple(first), lanes
        self._made: dict[int, tuple[Action, ...]] = {}

    def __len__(self) -> int:
        return len(self.first) * self.lanes

    @overload
    def __getitem__(self, number: int) -> tuple[Action, ...]: ...

    @overload
    def __getitem__(self, number: slice) -> tuple[tuple[Action, ...], ...]: ...

    def __getitem__(self, number: int | slice) -> tuple[Action, ...] | tuple[tuple[Action, ...], ...]:
        if isinstance(number, slice):
            return tuple(self[each] for each in range(len(self))[number])
        device = range(len(self))[number]
        if device not in self._made:
            self._made[device] = self._list(*divmod(device, self.lanes))
        return self._made[device]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, LikeLists) and other.lanes == self.lanes:
            return self.first == other.first
        return tuple(self) == (tuple(other) if isinstance(other, LikeLists) else other)

    def __hash__(self) -> int:
        return hash(tuple(self))  # as that of the lists

    def __repr__(self) -> str:
        return f"LikeLists({self.first!r}, {self.lanes})"

    def _list(self, number: int, lane: int) -> tuple[Action, ...]:
        """The list of a device in a lane, which runs the micro-batches lane, lane + lanes, …"""
        if not self.first[number]:
            return ()
        kinds, stages, numbers, slices = zip(*self.first[number], strict=True)
        later = [m * self.lanes + lane if kind.per_micro_batch else m for kind, m in zip(kinds, numbers, strict=True)]
        return tuple(map(Action, kinds, stages, later, slices))


def like_lists(first: Iterable[tuple[Action, ...]], lanes: int) -> Sequence[tuple[Action, ...]]:
    """Return the lists of so many like lanes: `LikeLists`, or plain ones of a single lane."""
    return LikeLists(first, lanes) if lanes > 1 else tuple(first)


@dataclass(frozen=True)
class Schedule:
    """The order of actions on every device.

    Attributes
    ----------
    family : str
        Name of its generator (``'gpipe'``, ``'1f1b-so'`` …).
    orders : sequence of tuple of Action
        One tuple per device; equal to a tuple of them.
    two_lanes : bool
        A device runs forwards on one lane and, concurrently, all other actions on a second one, each lane in list
        order (BaPipe's FBP). A runtime with one lane may run the list unchanged.

    Examples
    --------
    >>> result = pipeplan.solve("vgg-16", "4-v100-nvlink", batch=64, depths=2, replicas=1, schedules="gpipe")
    >>> len(result.plan.schedule.orders), str(result.plan.schedule.orders[1][0])
    (2, '1F0')
    """

    family: str
    orders: Sequence[tuple[Action, ...]]
    two_lanes: bool = False

    def check_parts(self) -> None:
        """Refuse orders that are no sequences of actions.

        Raises
        ------
        InputError
            With the first thing that is none.
        """
        printable(self.family, "the family of a schedule")
        switch(self.two_lanes, "two_lanes of a schedule")
        each_a(self.orders, Sequence, "orders of a schedule")
        for device, order in enumerate(self.orders):
            each_a(order, Action, f"the order of device {device}")
            for action in order:
                if not isinstance(action.kind, Kind):
                    raise InputError(f"the order of device {device}: {shown(action.kind)} is no kind of action")
                for value in action[1:]:
                    whole(value, f"stage, micro-batch and slice of an action of device {device}")

    @property
    def lanes(self) -> int:
        """Number of lanes that are known to be alike: ``orders`` are `LikeLists`."""
        return self.orders.lanes if isinstance(self.orders, LikeLists) else 1

    @property
    def first_lists(self) -> Sequence[tuple[Action, ...]]:
        """The lists of the first of these lanes, its micro-batches counted from 0."""
        return self.orders.first if isinstance(self.orders, LikeLists) else self.orders

    @cached_property
    def stages(self) -> int:
        """Number of stages that appear."""
        return 1 + max((action.stage for action in chain(*self.first_lists)), default=-1)

    @cached_property
    def micro_batches(self) -> int:
        """Number of micro-batches that appear."""
        each = (action.micro_batch for action in chain(*self.first_lists) if action.kind.per_micro_batch)
        return self.lanes * (1 + max(each, default=-1))

    @cached_property
    def batches(self) -> int:
        """Number of batches through which the lists run without a flush; sums of gradients run beside those of several.

        Each has as many micro-batches.
        """
        each = (action.micro_batch for action in chain(*self.first_lists) if not action.kind.per_micro_batch)
        return 1 + max(each, default=0)

    @property
    def slices(self) -> int:
        """Token slices of each micro-batch."""
        return 1 + max((action.slice for action in chain(*self.first_lists)), default=0)

    def stages_with(self, kind: Kind) -> frozenset[int]:
        """Stages that have an action of this kind."""
        return frozenset(action.stage for action in chain(*self.first_lists) if action.kind is kind)

    def actions(self) -> Iterator[Action]:
        """Yield every action, device by device."""
        return chain.from_iterable(self.orders)

    @property
    def homes(self) -> tuple[tuple[int, ...], ...]:
        """Devices in whose lists each stage appears, ascending."""
        found: list[list[int]] = [[] for _ in range(self.stages)]
        for number, order in enumerate(self.first_lists):
            for stage in {action.stage for action in order}:
                found[stage] += range(number * self.lanes, (number + 1) * self.lanes)
        return tuple(map(tuple, found))

    def each_list(self, change: Callable[[tuple[Action, ...]], tuple[Action, ...]]) -> "Schedule":
        """Return the schedule with a change of each list that does not depend on the numbers of micro-batches."""
        return replace(self, orders=like_lists(map(change, self.first_lists), self.lanes))

    def as_text(self) -> tuple[str, ...]:
        """Return one line of actions per device, for files and messages."""
        return tuple(" ".join(map(str, order)) for order in self.orders)

    @classmethod
    def from_text(cls, family: str, lines: Iterable[str], two_lanes: bool = False) -> "Schedule":
        """Parse the lines that `as_text` writes."""
        try:
            lines = tuple(lines)
        except TypeError as error:
            raise InputError(f"lines of a schedule are texts, not {shown(lines)}") from error
        each_a(lines, str, "lines of a schedule")
        return cls(family, tuple(tuple(map(Action.parse, line.split())) for line in lines), two_lanes)


def find_readers(actions: Iterable[Action]) -> dict[Action, Action]:
    """Map each action to the action on another stage that reads its tensor, where both are given."""
    cells = {(a.kind.part, a.stage, a.micro_batch, a.slice): a for a in actions if a.kind.per_micro_batch}
    found = {}
    for (kind, stage, micro_batch, part), reader in cells.items():
        for other, away, slices in OF_MICRO_BATCHES[kind]:
            maker = cells.get((other, stage + away, micro_batch, part + slices))
            if away and maker is not None:
                found[maker] = reader
    return found
