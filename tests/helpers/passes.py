"""Random runs of pipelines whose devices have several stages, or whose micro-batches pass in slices.

A *way* is the list of stages that a micro-batch passes, each with its device. Every action begins once its inputs are
there and its device is free; which of the ready actions comes next is drawn, often of those that can begin first.
"""

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True)
class Way:
    """Stages in the order of the model.

    Attributes
    ----------
    device : list of int
        The device of each stage.
    forward, backward : list of list of int
        Time of each stage, for each slice of a micro-batch; one slice if micro-batches pass whole.
    latency : list of int
        Time from each stage to the next one.
    """

    device: list[int]
    forward: list[list[int]]
    backward: list[list[int]]
    latency: list[int]

    @property
    def slices(self) -> int:
        """Slices of a micro-batch."""
        return len(self.forward[0])

    def before(self, action: tuple[str, int, int, int]) -> list[tuple[tuple[str, int, int, int], int]]:
        """The actions that an action waits for, with the time from the end of each; slices go back in reverse."""
        kind, stage, batch, number = action
        if kind == "F":
            found = [(("F", stage, batch, number - 1), 0)] if number else []
            return found + ([(("F", stage - 1, batch, number), self.latency[stage - 1])] if stage else [])
        found = [(("F", stage, batch, number), 0)]
        if number < self.slices - 1:
            found.append((("B", stage, batch, number + 1), 0))
        if stage < len(self.device) - 1:
            found.append((("B", stage + 1, batch, number), self.latency[stage]))
        return found


@dataclass(frozen=True)
class Run:
    """Ends of all actions, the order on each device, and the end of the step.

    Attributes
    ----------
    order : list of list of (kind, stage, micro-batch, slice)
    makespan : int
        The last end of a device's work and of its ending behind.
    """

    order: list[list[tuple[str, int, int, int]]]
    makespan: int


def drawn_run(way: Way, micro_batches: int, endings: list[int], random: Random) -> Run:
    """Run a step in a drawn order; each device's ending follows its last action."""
    left = [
        (kind, stage, batch, number)
        for kind in "FB"
        for stage in range(len(way.device))
        for batch in range(micro_batches)
        for number in range(way.slices)
    ]
    ends: dict[tuple[str, int, int, int], int] = {}
    free, order = [0] * len(endings), [[] for _ in endings]
    hurry, eager = random.choice([0.5, 1.0]), random.random()  # how often the earliest goes first, or a backward

    def start(action: tuple[str, int, int, int]) -> int:
        return max([free[way.device[action[1]]], *(ends[other] + after for other, after in way.before(action))])

    while left:
        ready = [action for action in left if all(other in ends for other, _ in way.before(action))]
        if random.random() < hurry:
            earliest = min(map(start, ready))
            ready = [action for action in ready if start(action) == earliest]
        backwards = [action for action in ready if action[0] == "B"]
        action = random.choice(backwards if backwards and random.random() < eager else ready)
        kind, stage, _, number = action
        times = way.forward if kind == "F" else way.backward
        ends[action] = free[way.device[stage]] = start(action) + times[stage][number]
        order[way.device[stage]].append(action)
        left.remove(action)
    return Run(order, max(end + ending for end, ending in zip(free, endings, strict=True)))
