"""Weight gradients put where they cost least: in gaps, or where a forward needs the memory that they hold.

::

    f f . F I . i …         a device's order without W, played with unit times
    f f . F I W i …         it would wait for i: the oldest W that is there
    f f . F I W f i …       a forward stands there, and the device is full: the oldest W, ahead of it
"""

from collections import deque
from collections.abc import Sequence

from pipeplan.schedule import Action, Kind


def weights_in_gaps(orders: Sequence[Sequence[Action]], most: int) -> list[list[Action]]:
    """Orders of forwards and input gradients, completed with W.

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
    game = _Game(orders, most)
    while any(game.todo) or any(game.weights):
        if not game.step():
            raise ValueError(f"with {most} stage activations a device these orders wait for each other for ever")
    return game.written


class _Game:
    """All devices, one unit of time after the other."""

    def __init__(self, orders: Sequence[Sequence[Action]], most: int) -> None:
        self.most = most
        self.todo = [deque(order) for order in orders]
        self.last_stage = max((action.stage for order in orders for action in order), default=0)
        self.weights: list[deque[Action]] = [deque() for _ in orders]
        self.held = [0] * len(orders)
        self.written: list[list[Action]] = [[] for _ in orders]
        self.done: set[Action] = set()

    def step(self) -> int:
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
        if self.todo[device]:
            action = self.todo[device][0]
            has_room = action.kind is not Kind.FORWARD or self.held[device] < self.most
            if has_room and self._ready(action):
                return self.todo[device].popleft()
        return self.weights[device].popleft() if self.weights[device] else None

    def _ready(self, action: Action) -> bool:
        if action.kind is Kind.FORWARD:
            return action.stage == 0 or action._replace(stage=action.stage - 1) in self.done
        forward = action._replace(kind=Kind.FORWARD)
        behind = action._replace(stage=action.stage + 1)
        return forward in self.done and (action.stage == self.last_stage or behind in self.done)
