"""The frontier: plans as steps of time against memory, devices or price, and below them the proven bound."""

from collections.abc import Iterator

from pipeplan.analysis.frontier import Frontier
from pipeplan.core.units import format_bytes, format_time
from pipeplan.report.page.chart import BLUE, PATH, Trace, chart, label, scaled, unit_for
from pipeplan.report.page.markup import listing, table
from pipeplan.report.page.skeleton import Section
from pipeplan.report.plot.frontier import BEYOND, BYTES, LABELS, TIMES, bound_line, height_at


def frontier(found: Frontier, name: str = "frontier") -> Section:
    """Chart and table of all points."""
    unit, factor = unit_for(found.points[0].value, TIMES)
    cost_unit, cost_factor = unit_for(found.points[-1].cost, BYTES) if found.over == "memory" else ("", 1)
    axis = f"memory of the fullest device ({cost_unit})" if found.over == "memory" else LABELS[found.over]
    costs = [point.cost for point in found.points]
    span = (costs[-1] - costs[0]) or costs[-1] or 1
    edges = costs[0] - BEYOND * span, costs[-1] + BEYOND * span
    nothing = found.nothing_below
    shaded = "; left of the dotted line it is proved that nothing fits" if nothing else ""
    drawn = chart(
        f"{name}-chart",
        f"{found.objective.figure.capitalize()} against {found.over}: each dot is a plan, the best known up to the "
        f"next; the lower line is the proven bound{shaded}.",
        list(_traces(found, edges[1], factor, cost_factor)),
        height=420,
        xaxis={"title": {"text": axis}, "range": scaled(edges, cost_factor), "zeroline": False},
        yaxis={"title": {"text": f"{found.objective.figure} ({unit})"}, "zeroline": False},
        shapes=[
            {"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "paper", "line": {"width": 1.5, "dash": "dot"}}
            for x in scaled(costs[:1] * nothing, cost_factor)
        ],
    )
    return Section(
        name,
        "The frontier",
        listing(_in_words(found)) + drawn + table(found.table(), found.headline),
    )


def _in_words(found: Frontier) -> Iterator[str]:
    """Yield the ends of the frontier as sentences."""
    ends = {"Fastest": found.points[-1], "Cheapest": found.points[0]}
    for word, point in list(ends.items())[: len(found.points)]:
        cost = format_bytes(int(point.cost)) if found.over == "memory" else f"{point.cost:g}"
        how = point.plan.headline.partition(": ")[2]
        yield f"{word}: {format_time(point.value)} at {found.over} {cost}, with {how} (gap {point.gap:.2%})."
    yield from found.end()


def _traces(found: Frontier, right: float, factor: float, cost_factor: float) -> Iterator[Trace]:
    costs, times = [point.cost for point in found.points], [point.value for point in found.points]
    edges, lows = bound_line(found, costs[0], right)
    merged = sorted({*costs, right, *edges})
    line = {"type": "scatter", "x": scaled(merged, cost_factor)}
    yield {
        **line,
        "name": "proven bound",
        "mode": "lines",
        "y": scaled([height_at(x, edges, lows) for x in merged], factor),
        "line": {"shape": "hv", "color": PATH, "width": 2, "dash": "dash"},
        "hovertemplate": "bound %{y}<extra></extra>",
    }
    yield {
        **line,
        "mode": "lines",
        "y": scaled([height_at(x, costs, times) for x in merged], factor),
        "line": {"shape": "hv", "color": BLUE, "width": 2},
        "fill": "tonexty",
        "fillcolor": "rgba(59,125,216,0.18)",
        "hoverinfo": "skip",
    }
    yield {
        "type": "scatter",
        "name": "plan, proved best" if found.complete else "plan",
        "mode": "markers",
        "x": scaled(costs, cost_factor),
        "y": scaled(times, factor),
        "marker": {"color": BLUE, "size": 9},
        "hovertext": [label(f"{format_time(point.value)}: {point.plan.headline}") for point in found.points],
        "hovertemplate": "%{hovertext}<extra></extra>",
    }
