"""A frontier as an object, as text, JSON and CSV."""

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from pipeplan.analysis.frontier.points import Floor, Point
from pipeplan.core.searched import Searched
from pipeplan.core.units import format_bytes, format_time
from pipeplan.costs.sources import Costs

Over = Literal["memory", "devices", "price"]
AXES: tuple[Over, ...] = get_args(Over)


@dataclass(frozen=True)
class Frontier:
    """Plans of which none is both as cheap and as fast as another one.

    Attributes
    ----------
    model, cluster : str
    over : {'memory', 'devices', 'price'}
    batch : int
    points : tuple of Point
        Cheapest first, times falling.
    floors : tuple of Floor
        What is proved: from each cost on, no plan is faster than its bound.
    complete : bool
        Whether every point is optimal and no point is missing: each limit was asked for, and each answer proved.
    asked : int
        Questions solved.
    searched, costs
        The space over which bounds hold, on the whole cluster, and what the times are.
    """

    model: str
    cluster: str
    over: Over
    batch: int
    points: tuple[Point, ...]
    floors: tuple[Floor, ...]
    complete: bool
    asked: int
    searched: Searched
    costs: Costs

    def __str__(self) -> str:
        verdict = "complete and proved" if self.complete else "as far as asked for and proved"
        title = f"{self.model} on {self.cluster}: step time against {self.over}, {len(self.points)} points, {verdict}"
        rows = [self._heading(), *map(self._row, self.points)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        table = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n".join([title, *table, *self._end(), f"costs: {self.costs.in_words()}", *self.searched.lines()])

    def as_json(self) -> dict[str, object]:
        """Plain data; times in seconds, memory in bytes."""
        return {
            "model": self.model,
            "cluster": self.cluster,
            "over": self.over,
            "batch": self.batch,
            "complete": self.complete,
            "asked": self.asked,
            "points": [_point_json(point) for point in self.points],
            "floors": [
                {"cost": floor.cost, "bound_s": None if floor.bound is None else floor.bound / 1e9}
                for floor in self.floors
            ],
            "costs": self.costs.as_json(),
            "searched": self.searched.as_json(),
        }

    def as_csv(self) -> str:
        """One row a point, under a row of names."""
        text = io.StringIO()
        rows = [_flat(point) for point in self.points]
        writer = csv.DictWriter(text, fieldnames=list(_FIELDS), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()

    def _heading(self) -> tuple[str, ...]:
        cost = ("price/h", "per 1000 samples") if self.over == "price" else ()
        return (
            *cost,
            "memory",
            "devices",
            *(() if self.over == "memory" else ("of",)),
            "step time",
            "bound",
            "gap",
            "stages",
            "micro-batches",
            "schedule",
        )

    def _row(self, point: Point) -> tuple[str, ...]:
        cost: tuple[str, ...] = ()
        if self.over == "price":
            samples = point.cost * point.value / 3.6e12 / self.batch * 1000
            cost = (f"{point.cost:g}", f"{samples:.4g}")
        plan = point.plan
        return (
            *cost,
            format_bytes(point.memory),
            str(point.devices),
            *(() if self.over == "memory" else (available(point),)),
            format_time(point.value),
            format_time(point.bound),
            f"{point.gap:.2%}",
            str(len(plan.stages)),
            f"{plan.micro_batches} x {plan.micro_batch}",
            plan.schedule.family,
        )

    @property
    def nothing_below(self) -> bool:
        """Whether it is proved that nothing fits for less than the cheapest point costs."""
        below = [floor.bound for floor in self.floors if floor.cost < self.points[0].cost]
        return bool(below) and all(bound is None for bound in below)

    def _end(self) -> Iterable[str]:
        """What lies below the cheapest point."""
        if self.nothing_below:
            cheapest = self.points[0].cost
            shown = f"{format_bytes(int(cheapest))} a device" if self.over == "memory" else f"{cheapest:g}"
            yield f"with less than {shown} nothing that is searched fits, proved"


_FIELDS = ("cost", "memory_bytes", "devices", "step_time_s", "bound_s", "gap", "stages", "micro_batch", "micro_batches",
           "schedule", "available")  # fmt: skip


def available(point: Point) -> str:
    """``'4 v100 + 2 p100'``: the devices that the plan was chosen for."""
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


def _point_json(point: Point) -> dict[str, object]:
    from pipeplan.io.plan_file import plan_data

    return _flat(point) | {"plan": plan_data(point.plan)}
