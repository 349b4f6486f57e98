"""Memory of each device at its peak, by purpose, against its limit; devices that are alike share a row."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields

from pipeplan.core.plan import MemoryParts, Plan
from pipeplan.core.tabular import Table, Unit
from pipeplan.core.timeline import Timeline
from pipeplan.core.units import format_bytes
from pipeplan.core.wording import device_names
from pipeplan.costs.chain import UNLIMITED
from pipeplan.report.page.chart import PATH, PATTERNS, SEVERAL, Trace, chart, fill, rows, scaled, unit_for
from pipeplan.report.page.markup import table
from pipeplan.report.page.skeleton import Section
from pipeplan.report.plot.frontier import BYTES
from pipeplan.report.plot.memory import NEAR

PARTS = tuple(field.name for field in fields(MemoryParts))
"""Purposes of memory, in the order in which they are stacked."""


@dataclass(frozen=True, slots=True)
class Held:
    """Devices that hold the same: their names, their stages, bytes by purpose, and the limit, None without one."""

    devices: str
    stages: str
    parts: MemoryParts
    limit: int | None


def held(plan: Plan, timeline: Timeline) -> list[Held]:
    """Return what the devices of a plan hold at their peaks, like ones together."""
    alike: dict[tuple[tuple[int, ...], MemoryParts, int], list[int]] = defaultdict(list)
    for rank, device in enumerate(plan.ranks):
        stages = tuple(plan.pipeline.stages_on[rank])
        parts = [plan.stages[s].memory for s in stages]
        own = parts[0] if len(parts) == 1 else _together(parts, timeline.peaks[rank])
        alike[stages, own, plan.pipeline.limits[rank]].append(device)
    return [
        Held(
            device_names(devices, plan.letter, most=3),
            ", ".join(map(str, stages)),
            parts,
            None if limit == UNLIMITED else limit,
        )
        for (stages, parts, limit), devices in alike.items()
    ]


def _together(parts: Sequence[MemoryParts], peak: int) -> MemoryParts:
    """Return the bytes of several stages on one device at its peak, which not all of them reach at once."""
    largest = {name: max((getattr(one, name) for one in parts), default=0) for name in ("workspace", "runtime")}
    static = {
        name: sum(getattr(one, name) for one in parts) for name in ("weights", "gradients", "optimizer", "frozen")
    }
    rest = peak - sum(largest.values()) - sum(static.values())
    return MemoryParts(**static, **largest, activations=max(rest, 0))


def memory(plan: Plan, timeline: Timeline, name: str = "memory") -> Section:
    """Bars of what devices hold, a mark for each limit, and the same as a table."""
    found = held(plan, timeline)
    largest = max(row.parts.total for row in found)
    near = [row.limit for row in found if row.limit is not None and row.limit <= NEAR * largest]
    unit, factor = unit_for(max([largest, *near]), BYTES)
    height = 85 + min(28 * len(found), 1000)
    names = [f"{row.devices} · stage{'s' * (',' in row.stages)} {row.stages}" for row in found]
    drawn = chart(
        f"{name}-chart",
        f"Memory of each device at its peak. {_limit_words(found, near)}",
        [*_bars(found, unit, factor), *_limits(found, near, factor)],
        height=height,
        barmode="stack",
        xaxis={
            "title": {"text": f"memory ({unit})"},
            "range": [0, 1.03 * (max([largest, *near]) or 1) / factor],
            "zeroline": False,
        },
        yaxis=rows(names, height - 85),
    )
    return Section(name, "Memory", drawn + table(_table(found), "Memory of each device at its peak, by purpose"))


def _limit_words(found: Sequence[Held], near: Sequence[int]) -> str:
    limits = [row.limit for row in found if row.limit is not None]
    if not limits:
        return "No device has a stated limit."
    over = [row for row in found if row.limit is not None and row.parts.total > row.limit]
    if over:
        lacks = "; ".join(f"{row.devices} lacks {format_bytes(row.parts.total - (row.limit or 0))}" for row in over[:8])
        return f"Above its limit, which is marked: {lacks}."
    marked = "Each limit is marked" if near else f"The limit of {format_bytes(min(limits))} lies far to the right"
    fullest = max(found, key=lambda row: row.parts.total / row.limit if row.limit else 0.0)
    share = fullest.parts.total / (fullest.limit or 1)
    return f"{marked}; the fullest, {fullest.devices}, holds {share:.1%} of its own."


def _bars(found: Sequence[Held], unit: str, factor: float) -> Iterator[Trace]:
    for part, colour, pattern in zip(PARTS, SEVERAL, PATTERNS, strict=True):
        sizes = [getattr(row.parts, part) for row in found]
        if any(sizes):
            yield {
                "type": "bar",
                "orientation": "h",
                "name": part,
                "y": list(range(len(found))),
                "x": scaled(sizes, factor),
                "width": 0.7,
                "marker": fill(colour, pattern),
                "hovertemplate": f"{part}: %{{x}} {unit}<extra></extra>",
            }


def _limits(found: Sequence[Held], near: Sequence[int], factor: float) -> Iterator[Trace]:
    """A line across the row of each device whose limit is not far beyond the largest peak."""
    marked = [(n, row.limit) for n, row in enumerate(found) if row.limit in near and row.limit is not None]
    if marked:
        yield {
            "type": "scatter",
            "mode": "lines",
            "name": "limit",
            "x": [x for _, limit in marked for x in (*scaled([limit, limit], factor), None)],
            "y": [y for n, _ in marked for y in (n - 0.48, n + 0.48, None)],
            "line": {"color": PATH, "width": 3},
            "hovertemplate": "limit<extra></extra>",
        }


def _table(found: Sequence[Held]) -> Table:
    columns: dict[str, Unit] = {"devices": "", "stage": "", "peak": "bytes", "limit": "bytes", "of it": "share"}
    columns |= dict.fromkeys(PARTS, "bytes")
    return Table(
        columns,
        tuple(
            (
                row.devices,
                row.stages,
                row.parts.total,
                row.limit,
                row.parts.total / row.limit if row.limit else None,
                *astuple(row.parts),
            )
            for row in found
        ),
    )
