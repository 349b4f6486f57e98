"""`Frontier`: its non-dominated points and lower bounds, as an object, text, JSON and CSV."""

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pipeplan.analysis.frontier.answers import Answer
from pipeplan.core.job import Objective
from pipeplan.core.plan import Plan
from pipeplan.core.searched import Searched
from pipeplan.core.tabular import Table, Tabular, Unit
from pipeplan.core.throughput import Throughput
from pipeplan.core.units import format_bytes
from pipeplan.core.wording import counted, replicas_of
from pipeplan.costs.sources import Costs
from pipeplan.simulate import memory_of_ranks


@dataclass(frozen=True)
class Point:
    """A plan and its cost on the axis of the frontier.

    Attributes
    ----------
    cost : float
        On the axis of the frontier: bytes of the fullest device, number of devices, or price per hour.
    value, bound : int
        Nanoseconds: the plan's step time; no plan of this cost or less takes less than ``bound``.
    plan : Plan
    memory, devices : int
        Needs of the plan: bytes of its fullest device, number of devices that it runs on.
    counts : tuple of (str, int)
        The available devices, by kind.
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
    """Lower bound on the step time, in nanoseconds, from ``cost`` up to the next floor; None: there is no plan."""

    cost: float
    bound: int | None


def point(cost: float, answer: Answer, bound: int, plan: Plan, counts: tuple[tuple[str, int], ...]) -> Point:
    """The point of an answer, with the best bound known for its cost."""
    used = {device: stage.team for stage in plan.stages for device in stage.devices}
    return Point(cost, answer.value, min(bound, answer.value), plan, memory_of(plan), sum(used.values()), counts)


def not_dominated(points: Iterable[Point]) -> tuple[Point, ...]:
    """Non-dominated points, cheapest first, so that times fall strictly."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda point: (point.cost, point.value)):
        if not kept or point.value < kept[-1].value:
            kept.append(point)
    return tuple(kept)


def memory_of(plan: Plan) -> int:
    """Bytes that the plan needs on its fullest device."""
    return max(memory_of_ranks(plan))


Over = Literal["memory", "devices", "price"]
AXES: tuple[Over, ...] = get_args(Over)


@dataclass(frozen=True, repr=False)
class Frontier(Tabular):
    """Non-dominated plans: none is both as cheap and as fast as another one.

    Attributes
    ----------
    model, cluster : str
    over : {'memory', 'devices', 'price'}
    objective : Objective
    batch : int
    points : tuple of Point
        Cheapest first, times falling.
    floors : tuple of Floor
        The proved lower bounds: from each cost on, no plan is faster than the bound.
    complete : bool
        True if every point is optimal and no point is missing: each limit was solved, and each answer proved.
    asked : int
        Number of problems solved.
    searched, costs
        The space over which bounds hold, on the whole cluster, and the sources of the times.

    Examples
    --------
    >>> found = pipeplan.frontier("vgg-16", "4-v100-nvlink", 64, points=1, depths=2, replicas=1, micro_batches=4)
    >>> found.points[0].value >= found.points[0].bound  # nanoseconds
    True
    """

    model: str
    cluster: str
    over: Over
    objective: Objective
    batch: int
    points: tuple[Point, ...]
    floors: tuple[Floor, ...]
    complete: bool
    asked: int
    searched: Searched
    costs: Costs

    def __str__(self) -> str:
        table = self.table().printed()
        return "\n".join([self.headline, table, *self.end(), *self.costs.lines(), *self.searched.lines()])

    @property
    def headline(self) -> str:
        """What is set against what, and whether all of it is proved."""
        verdict = "complete and proved" if self.complete else "as far as asked for and proved"
        what = f"{self.objective.figure} against {self.over}, {counted(len(self.points), 'point')}, {verdict}"
        return f"{self.model} on {self.cluster}: {what}"

    def as_json(self) -> dict[str, object]:
        """Plain data; times in seconds, memory in bytes."""
        return {
            "model": self.model,
            "cluster": self.cluster,
            "over": self.over,
            "objective": self.objective.value,
            "batch": self.batch,
            "complete": self.complete,
            "asked": self.asked,
            "points": [self._point_json(point) for point in self.points],
            "floors": [
                {"cost": floor.cost, "bound_s": None if floor.bound is None else floor.bound / 1e9}
                for floor in self.floors
            ],
            "costs": self.costs.as_json(),
            "searched": self.searched.as_json(),
        }

    def throughput(self, point: Point) -> Throughput:
        """Samples, tokens and operations per second of a point."""
        return point.plan.yardstick.throughput(self.objective.samples(self.batch), point.value)

    def _point_json(self, point: Point) -> dict[str, object]:
        from pipeplan.io.plan_file import plan_data

        return _flat(point) | {"throughput": self.throughput(point).as_json(), "plan": plan_data(point.plan)}

    def as_csv(self) -> str:
        """One row per point, under a row of column names."""
        text = io.StringIO()
        rows = [_flat(point) | self.throughput(point).as_json() for point in self.points]
        writer = csv.DictWriter(text, fieldnames=[*_FIELDS, *Throughput().as_json()], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()

    def table(self) -> Table:
        """A row per point; columns without any figure are left out."""
        cost, of = (
            ("price/h", "per 1000 samples") if self.over == "price" else (),
            () if self.over == "memory" else ("of",),
        )
        plain: dict[str, Unit] = dict.fromkeys(
            (*Throughput().cells(), "stages", "replicas", "micro-batches", "schedule"), ""
        )
        columns: dict[str, Unit] = dict.fromkeys(cost, "")
        columns |= {"memory": "bytes", "devices": ""}
        columns |= dict.fromkeys(of, "")
        columns |= {self.objective.figure: "ns", "bound": "ns", "gap": "share", **plain}
        rows = [self._row(point) for point in self.points]
        kept = [n for n in range(len(columns)) if not rows or any(row[n] not in ("", None) for row in rows)]
        named = [each for n, each in enumerate(columns.items()) if n in kept]
        shown = tuple(tuple(row[n] for n in kept) for row in rows)
        return Table(
            dict(named), shown, max(len(rows), 1), (*reversed(Throughput().cells()), "bound", "devices", "gap")
        )

    def _row(self, point: Point) -> tuple[Any, ...]:
        plan, cost = point.plan, tuple[Any, ...]()
        if self.over == "price":
            cost = f"{point.cost:.12g}", f"{point.cost * point.value / 3.6e12 / self.batch * 1000:.4g}"
        available_ = () if self.over == "memory" else (available(point),)
        figures = (point.value, point.bound, point.gap, *self.throughput(point).cells().values())
        widths = replicas_of([stage.replicas for stage in plan.stages])
        how = len(plan.stages), widths, f"{plan.micro_batches} x {plan.micro_batch}", plan.schedule.family
        return *cost, point.memory, point.devices, *available_, *figures, *how

    @property
    def nothing_below(self) -> bool:
        """True if it is proved that nothing fits below the cost of the cheapest point."""
        below = [floor.bound for floor in self.floors if floor.cost < self.points[0].cost]
        return bool(below) and all(bound is None for bound in below)

    def end(self) -> Iterable[str]:
        """Line of text about costs below the cheapest point, if nothing fits there."""
        if self.nothing_below:
            cheapest = self.points[0].cost
            shown = f"{format_bytes(int(cheapest))} a device" if self.over == "memory" else f"{cheapest:.12g}"
            yield f"with less than {shown} nothing that is searched fits, proved"


_FIELDS = ("cost", "memory_bytes", "devices", "step_time_s", "bound_s", "gap", "stages", "micro_batch", "micro_batches",
           "schedule", "available")  # fmt: skip


def available(point: Point) -> str:
    """Devices that were available to the plan: ``'4 v100 + 2 p100'``."""
    return " + ".join(f"{count} {kind}" for kind, count in point.counts if count)


def _flat(point: Point) -> dict[str, object]:
    plan = point.plan
    values = (
        point.cost,
        point.memory,
        point.devices,
        point.value / 1e9,
        point.bound / 1e9,
        point.gap,
        len(plan.stages),
        plan.micro_batch,
        plan.micro_batches,
        plan.schedule.family,
        available(point),
    )
    return dict(zip(_FIELDS, values, strict=True))
