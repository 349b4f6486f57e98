"""Deadlock detection: replay all action lists without times; actions left at the end wait in a cycle.

::

    device 0   0F0  0F1  ▏0B0           run up to the bar; 0B0 waits for 1B0,
    device 1   1F0  ▏1B1  1B0           which comes after 1B1, which waits for 1F1 …
"""

from collections import Counter
from collections.abc import Container, Iterator, Sequence

from pipeplan.core.schedule import Action, Kind, Schedule

_BACKWARDS = (Kind.BACKWARD, Kind.INPUT_GRADIENT)


def backwards_too_early(schedule: Schedule) -> Iterator[str]:
    """Yield backwards that come before an action they need in their own device's list."""
    for device, order in enumerate(schedule.orders):
        place: dict[Action, int] = {}
        for position, action in enumerate(order):
            place.setdefault(action, position)
        for action, position in place.items():
            needed = Kind.INPUT_GRADIENT if action.kind is Kind.WEIGHT_GRADIENT else Kind.FORWARD
            if _is_backward(action):
                first = Action(needed, *action[1:])
                if place.get(first, -1) > position:
                    yield f"{action} stands ahead of {first} in device {device}'s list; exchange them"


def deadlocks(schedule: Schedule, tied: Sequence[Sequence[int]] = (), sharded: bool = False) -> Iterator[str]:
    """Yield one line for every device that cannot finish its list; see `pipeplan.core.validate.validate_order`."""
    replay = _Replay(schedule, tied, sharded)
    replay.run()
    for device, order in enumerate(schedule.orders):
        if replay.position[device] < len(order):
            action = order[replay.position[device]]
            yield f"device {device} waits at {action} for {replay.missing(device)}, which waits in turn; move it ahead"


class _Replay:
    """Replay of a schedule's lists: the position of every device, and the actions that are done."""

    def __init__(self, schedule: Schedule, tied: Sequence[Sequence[int]], sharded: bool) -> None:
        self.orders = schedule.orders
        self.position = [0] * len(schedule.orders)
        self.last_stage = schedule.stages - 1
        self.last_slice = schedule.slices - 1
        self.done: set[Action] = set()
        self.backwards_left = Counter(
            (device, action.stage)
            for device, order in enumerate(self.orders)
            for action in order
            if _is_backward(action)
        )
        # The devices of each reduction and update (one per replica), and the ones that begin together.
        self.homes: dict[Action, list[int]] = {}
        for device, order in enumerate(self.orders):
            for action in order:
                if not action.kind.per_micro_batch:
                    self.homes.setdefault(action, []).append(device)
        self.reduces = {
            (device, each) for each in self.homes if each.kind is Kind.REDUCE for device in self.homes[each]
        }
        self.ended: set[tuple[int, Action]] = set()
        group_of = {stage: group for group in tied for stage in group}
        self.together: dict[Action, list[tuple[int, Action]]] = {}
        for action in self.homes:
            if action.kind is Kind.REDUCE or sharded:
                alone = (action.stage,)
                stages = group_of.get(action.stage, alone) if action.kind is Kind.REDUCE else alone
                own = [action._replace(stage=stage) for stage in stages]
                self.together[action] = [(device, each) for each in own for device in self.homes.get(each, ())]
        # How many of these have come, from the first one on: none of them leaves before all have.
        self.come = dict.fromkeys(self.together, 0)

    def run(self) -> None:
        """Advance every device as far as possible, until none can move."""
        moved = True
        while moved:
            moved = False
            for device, order in enumerate(self.orders):
                while self.position[device] < len(order) and self.ready(device, order[self.position[device]]):
                    action = order[self.position[device]]
                    if not action.kind.per_micro_batch:
                        self.ended.add((device, action))
                    self.done.add(action)
                    self.backwards_left[device, action.stage] -= _is_backward(action)
                    self.position[device] += 1
                    moved = True

    def ready(self, device: int, action: Action) -> bool:
        """Return whether a device's next action may run: nothing is missing."""
        kind, stage, m, part = action
        done: Container[object] = self.done  # a plain tuple equals an action, and is made in less time
        if kind is Kind.FORWARD:
            here = not part or (kind, stage, m, part - 1) in done
            return here and (not stage or (kind, stage - 1, m, part) in done)
        if kind in _BACKWARDS and not part and not self.last_slice:
            behind = stage == self.last_stage or any((each, stage + 1, m, 0) in done for each in _BACKWARDS)
            return behind and (Kind.FORWARD, stage, m, 0) in done
        return not self.missing(device)

    def missing(self, device: int) -> str:
        """Describe what a device's next action still waits for; empty if it may run."""
        action = self.orders[device][self.position[device]]
        if not action.kind.per_micro_batch:
            return self._missing_here(device, action) or self._missing_there(action)
        for alternatives in self._needs(action):
            if not any(each in self.done for each in alternatives):
                return " or ".join(map(str, alternatives))
        return ""

    def _missing_here(self, device: int, action: Action) -> str:
        """Describe what a reduction or update still waits for on its own device."""
        left = self.backwards_left[device, action.stage]
        if left:
            return f"{left} more backward actions of stage {action.stage}"
        reduction = action._replace(kind=Kind.REDUCE)
        waits = action.kind is Kind.UPDATE and (device, reduction) in self.reduces
        return str(reduction) if waits and (device, reduction) not in self.ended else ""

    def _missing_there(self, action: Action) -> str:
        """Describe the first of those that begin a collective action together and that has not come yet."""
        every = self.together.get(action, [])
        count = self.come.get(action, 0)
        while count < len(every) and self._has_come(*every[count]):
            count += 1
        self.come[action] = count
        if count == len(every):
            return ""
        where, other = every[count]
        return f"{other} on device {where}"

    def _has_come(self, device: int, action: Action) -> bool:
        """Return whether a device has reached or run a collective action."""
        order, position = self.orders[device], self.position[device]
        stands_there = position < len(order) and order[position] == action
        return (device, action) in self.ended or (stands_there and not self._missing_here(device, action))

    def _needs(self, action: Action) -> Iterator[list[Action]]:
        """Yield groups of alternative actions; one action of each group must have run."""
        kind, stage, m, part = action
        if kind is Kind.FORWARD:
            if stage > 0:
                yield [Action(kind, stage - 1, m, part)]
            if part > 0:
                yield [Action(kind, stage, m, part - 1)]
        elif kind is Kind.WEIGHT_GRADIENT:
            yield [Action(Kind.INPUT_GRADIENT, stage, m, part)]
        else:
            yield [Action(Kind.FORWARD, stage, m, part)]
            if stage < self.last_stage:
                yield [Action(each, stage + 1, m, part) for each in _BACKWARDS]
            if part < self.last_slice:
                yield [Action(each, stage, m, part + 1) for each in _BACKWARDS]


def _is_backward(action: Action) -> bool:
    """Return whether the action is part of a backward."""
    return action.kind in _BACKWARDS or action.kind is Kind.WEIGHT_GRADIENT
