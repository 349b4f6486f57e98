"""Weight gradients put where they cost least, in gaps or where a forward needs the memory that they hold; and whether
something else is ahead of its turn, in gaps that are left.

::

    f f . F I . i …         a device's order without W, played with unit times
    f f . F I W i …         it would wait for i: the oldest W that is there
    f f . F I W f i …       a forward stands there, and the device is full: the oldest W, ahead of it
    f f f F I W i …         no W is there yet, but the next f may run, and everything up to its turn still has room

The last of these fills the ends of a step, where less is held than in its middle; but who is early on one device may be
in the way of others, so that lists are made both ways.
"""

from collections import deque
from collections.abc import Sequence

from pipeplan.core.schedule import Action, Kind


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
    return min((_Game(orders, most, early) for early in (False, True)), key=_Game.play).written


class _Game:
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
