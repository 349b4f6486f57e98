"""A page of every kind, and a page as a reader, a screen reader and a browser take it."""

import json
import re
from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import cache
from html.parser import HTMLParser
from typing import Any

import pipeplan
from helpers.explained import lean, setting_of
from helpers.instances import equal_devices, fat_head
from helpers.pipelines import line
from helpers.replicated import replicated_answer
from pipeplan.analysis.compare import compare
from pipeplan.analysis.frontier import Frontier, frontier
from pipeplan.analysis.sweep.experiment import Search
from pipeplan.analysis.sweep.record import Figures, Record
from pipeplan.analysis.sweep.table import table
from pipeplan.core.job import Job
from pipeplan.core.pipeline import Transfer
from pipeplan.core.timeline import Timeline
from pipeplan.report.page.pages import (
    compare_page,
    frontier_page,
    judge_page,
    plans_page,
    run_page,
    solve_page,
    sweep_page,
)
from pipeplan.report.page.sections.measured import Measured
from pipeplan.report.page.skeleton import Page
from pipeplan.schedules import one_forward_one_backward
from pipeplan.search.result import Result
from pipeplan.simulate import simulate

PLAN, _, _ = replicated_answer()
TIMELINE = simulate(PLAN.schedule, PLAN.pipeline)
KINDS = ("solve", "compare", "frontier", "judge", "sweep", "run", "report", "two plans")
VOID = {"meta", "br", "img", "input", "hr", "link"}


@dataclass
class Element:
    """A tag with its attributes and all the text in it."""

    tag: str
    attributes: dict[str, str]
    text: str = ""
    inside: list["Element"] = field(default_factory=list)


class Read(HTMLParser):
    """A page: ``elements`` by tag, and the charts as plotly gets them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: dict[str, list[Element]] = defaultdict(list)
        self._open: list[Element] = []
        self.feed(page)
        self.close()
        assert not self._open, f"never closed: {[one.tag for one in self._open]}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin an element."""
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.elements[tag].append(element)
        for one in self._open:
            one.inside.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_endtag(self, tag: str) -> None:
        """End the innermost element, which must be this one."""
        assert self._open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        """Add text to all open elements."""
        for element in self._open:
            element.text += data

    @property
    def every(self) -> list[Element]:
        """All elements."""
        return [element for group in self.elements.values() for element in group]

    def section(self, name: str) -> Element:
        """The section with this address."""
        return next(one for one in self.elements["section"] if one.attributes["id"] == name)

    def facts(self, name: str) -> dict[str, str]:
        """The large figures of a section."""
        inside = self.section(name).inside
        names, figures = ([one.text for one in inside if one.tag == tag] for tag in ("dt", "dd"))
        return dict(zip(names, figures, strict=True))

    def charts(self) -> dict[str, tuple[list[dict[str, Any]], dict[str, Any]]]:
        """Traces and layout of every chart, by its address."""
        found = {}
        for script in self.elements["script"]:
            begin = re.search(r'Plotly\.newPlot\(\s*"([^"]+)",\s*', script.text[:2000])
            if begin:
                decoder, rest = json.JSONDecoder(), script.text
                traces, at = decoder.raw_decode(rest, begin.end())
                layout, _ = decoder.raw_decode(rest, re.compile(r",\s*").match(rest, at).end())  # type: ignore[union-attr]
                found[begin[1]] = (traces, layout)
        return found


@cache
def answer() -> Result:
    """A pipeline of three stages, under a limit that data parallelism does not meet."""
    return pipeplan.solve(fat_head(), equal_devices(3, memory=1000), job=lean(8), time_limit=5)


@cache
def points() -> Frontier:
    """A frontier of two limits."""
    return frontier(fat_head(), equal_devices(3), lean(8), points=2)


@cache
def pages() -> dict[str, Page]:
    """A page of every kind."""
    model, cluster = fat_head(), equal_devices(3)
    judged = pipeplan.judge(model, equal_devices(3, memory=60), job=lean(8), stages=(3, 3, 3), micro_batches=8)
    measured = Measured(
        90, (80, 90, 100), (1.0, 0.5, 0.25), (5,) * 6, (4,) * 6, Timeline(TIMELINE.spans, (), (), ()), ("a line",)
    )
    search, figures = Search(), Figures(20, (5, 7), "2 stages")
    cell = Record("m", "c", Job(8), search, "", "solved", Figures(10, (4, 6), "1 stage"), {"other": figures}, 9)
    return {
        "solve": solve_page(answer()),
        "compare": compare_page(compare(model, cluster, job=replace(lean(8), schedules=("gpipe", "1f1b-sno")))),
        "frontier": frontier_page(points()),
        "judge": judge_page(judged),
        "sweep": sweep_page("small", table([cell, replace(cell, cluster="d", outcome="failed", answer=Figures())])),
        "run": run_page(PLAN, TIMELINE, measured),
        "report": plans_page({"plan.json": (PLAN, TIMELINE)}),
        "two plans": plans_page({"a.json": (PLAN, TIMELINE), "b.json": (answer().plan, answer().timeline)}),
    }


@cache
def thousand() -> tuple[pipeplan.Plan, Timeline]:
    """Four stages of 250 replicas each, 1,000 micro-batches."""
    base, copies, batches = line(4, 5, 7, occupancy=1), 250, 1000
    placement = tuple(tuple(range(s * copies, (s + 1) * copies)) for s in range(4))
    ways = [
        tuple(tuple(Transfer(1, 1, 0, (f"{way} {s}.{p}",)) for p in range(copies)) for s in range(3))
        for way in ("down", "up")
    ]
    n = 4 * copies
    pipeline = replace(
        base, placement=placement, transfers=ways[0], returns=ways[1], runtime=(0,) * n, limits=(100,) * n
    )
    setting = setting_of(one_forward_one_backward((copies,) * 4, batches, (4, 3, 2, 1)), pipeline)
    return setting.plan, setting.timeline
