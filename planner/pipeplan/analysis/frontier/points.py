"""Points of a frontier, and which of them no other one beats."""

from collections.abc import Iterable
from dataclasses import dataclass

from pipeplan.analysis.frontier.answers import Answer
from pipeplan.core.plan import Plan


@dataclass(frozen=True)
class Point:
    """A plan and what it costs.

    Attributes
    ----------
    cost : float
        On the axis of the frontier: bytes of the fullest device, number of devices, or price per hour.
    value, bound : int
        Nanoseconds: the plan's step time; no plan of this cost or less takes less than ``bound``.
    plan : Plan
    memory, devices : int
        What the plan needs: bytes of its fullest device, devices that it runs on.
    counts : tuple of (str, int)
        The devices that were there to plan for, by kind.
    """

    cost: float
    value: int
    bound: int
    plan: Plan
    memory: int
    devices: int
    counts: tuple[tuple[str, int], ...]

    @property
    def gap(self) -> float:
        """(value − bound) / value."""
        return (self.value - self.bound) / self.value if self.value else 0.0


@dataclass(frozen=True, slots=True)
class Floor:
    """From ``cost`` on, up to the next floor, no plan takes less than ``bound`` nanoseconds; None: there is no plan."""

    cost: float
    bound: int | None


def point(cost: float, answer: Answer, bound: int, plan: Plan, counts: tuple[tuple[str, int], ...]) -> Point:
    """The point of an answer, with the best bound known for its cost."""
    return Point(cost, answer.value, min(bound, answer.value), plan, memory_of(plan), len(plan.ranks), counts)


def not_dominated(points: Iterable[Point]) -> tuple[Point, ...]:
    """Those that no cheaper or equally cheap point beats or equals, cheapest first, so that times fall strictly."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda point: (point.cost, point.value)):
        if not kept or point.value < kept[-1].value:
            kept.append(point)
    return tuple(kept)


def memory_of(plan: Plan) -> int:
    """Bytes that the plan needs on its fullest device."""
    return max(stage.memory.total for stage in plan.stages)
