"""Pages: their figures are the answer's, they load nothing, and everybody can read them."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from helpers.explained import setting_of
from helpers.instances import equal_devices, fat_head
from helpers.pages import KINDS, PLAN, TIMELINE, Read, answer, pages, points, thousand
from helpers.pipelines import line
from pipeplan.analysis.explain import explain_plan
from pipeplan.analysis.sweep.experiment import Search
from pipeplan.analysis.sweep.record import Figures, Record
from pipeplan.cli.main import main
from pipeplan.core.job import Job
from pipeplan.core.schedule import Kind
from pipeplan.core.timeline import Span
from pipeplan.core.units import format_time
from pipeplan.io.cluster_file import write_cluster
from pipeplan.io.model_file import write_model
from pipeplan.report.page import chart
from pipeplan.report.page.pages import (
    plans_page,
    solve_page,
)
from pipeplan.report.page.sections import time_line
from pipeplan.report.page.sections.answer import of_plan
from pipeplan.report.page.sections.memory import PARTS
from pipeplan.report.page.sections.time_line import time_lines
from pipeplan.report.page.skeleton import Page
from pipeplan.report.plot.boxes import shaded
from pipeplan.report.plot.colours import STYLES
from pipeplan.schedules import one_forward_one_backward

pytest.importorskip("plotly")
HOSTILE = "</script><script>alert(1)</script><img src=x onerror='alert(2)'>&amp;"


@cache
def read(name: str) -> Read:
    """A page of this kind as a browser takes it, without the text of the library."""
    whole = pages()[name].as_html()
    return Read(whole.replace(chart.library(), "library"))


def _sum(traces: list[dict], name: str) -> float:  # type: ignore[type-arg]
    return sum(sum(trace["x"]) for trace in traces if trace.get("name") == name)


def test_the_figures_of_an_answer_are_its_own() -> None:
    """Time, bound and gap are those of the result; the first sentence is its plan, on its model and cluster."""
    result, page = answer(), read("solve")
    facts = page.facts("answer")
    assert facts["step time"] == format_time(result.value)
    assert facts["proven bound"] == format_time(result.bound)
    assert facts["gap"] == f"{result.gap:.2%}"
    assert facts["samples/s"] == result.throughput.cells()["samples/s"]
    words = page.section("answer").text
    assert "Run chain on 3 x unit as 3 stages" in words and "batch 8" in words


def test_boxes_fill_the_time_of_their_kind() -> None:
    """Boxes of each kind last as long as the time line's actions of it, and begin where these do."""
    traces, layout = read("report").charts()["time-line-0"]
    assert layout["xaxis"]["range"] == [0, TIMELINE.makespan]
    for kind in (Kind.FORWARD, Kind.BACKWARD, Kind.REDUCE, Kind.UPDATE):
        spans = [span for span in TIMELINE.spans if span.action.kind is kind and span.end > span.start]
        (trace,) = [trace for trace in traces if trace["name"] == STYLES[kind].label]
        assert Counter(zip(trace["base"], trace["x"], trace["y"], strict=True)) == Counter(
            (span.start, span.end - span.start, span.device) for span in spans
        )


def test_the_critical_path_is_drawn_from_end_to_end() -> None:
    """Its line passes through every action of the path, from the start of the step to its end."""
    traces, _ = read("report").charts()["time-line-0"]
    drawn = [trace for trace in traces if trace["name"] == "critical path"]
    spans = [item for item in TIMELINE.critical if isinstance(item, Span)]
    for trace in drawn:
        assert trace["x"] == [time for span in spans for time in (span.start, span.end)]
        assert [round(y) for y in trace["y"][::2]] == [span.device for span in spans]
        assert (trace["x"][0], trace["x"][-1]) == (0, TIMELINE.makespan)


def test_memory_bars_are_the_plans_peaks() -> None:
    """The bars of each device sum to its peak, those of each purpose to the plan's bytes; limits are the cluster's."""
    plan, (traces, _) = answer().plan, read("solve").charts()["memory-chart"]
    bars = [trace for trace in traces if trace["name"] in PARTS]
    for n, stage in enumerate(plan.stages):
        assert sum(trace["x"][n] for trace in bars) == stage.memory.total
    for part in PARTS:
        assert _sum(bars, part) == sum(getattr(stage.memory, part) for stage in plan.stages)
    caption = next(one.text for one in read("solve").section("memory").inside if one.tag == "figcaption")
    fullest = max(stage.memory.total for stage in plan.stages)
    assert f"{fullest / 1000:.1%}" in caption


def test_bars_of_methods_are_their_times_and_the_line_is_the_bound() -> None:
    """Each heuristic with a plan has a bar as long as its time; the dashed line stands at the proven bound."""
    result, (traces, layout) = answer(), read("solve").charts()["comparison-chart"]
    names = layout["yaxis"]["ticktext"]
    bars = {
        names[y]: x for trace in traces if trace["type"] == "bar" for x, y in zip(trace["x"], trace["y"], strict=True)
    }
    fits = {name: row.value / 1000 for name, row in result.baselines.items() if row.value}
    assert layout["xaxis"]["title"]["text"] == "step time (µs)"
    assert bars == {"pipeplan": result.value / 1000, **fits}
    (line_,) = [trace for trace in traces if trace["name"] == "proven bound"]
    assert line_["x"] == [result.bound / 1000] * 2


def test_what_binds_is_what_explain_says() -> None:
    """Bars are the falls that `explain` finds, and its lines stand below them."""
    found, page = explain_plan(answer().plan), read("solve")
    (bars,), _ = page.charts()["binds-chart"]
    expected = sorted((one.fall for one in (*found.groups, *found.sensitivities)), reverse=True)
    assert bars["x"] == [round(100 * fall, 3) for fall in expected if fall >= 0.0005]
    assert all(line in page.section("binds").text for line in found.binding())


def test_points_of_a_frontier_are_its_plans() -> None:
    """Dots stand at the cost and time of each point."""
    found = points()
    traces, _ = read("frontier").charts()["frontier-chart"]
    (dots,) = [trace for trace in traces if trace["mode"] == "markers"]
    assert list(zip(dots["x"], dots["y"], strict=True)) == [(point.cost, point.value / 1000) for point in found.points]


def test_measured_stands_beside_predicted() -> None:
    """The run's median, its difference to the plan, and each step's time and loss are shown."""
    page = read("run")
    facts = page.facts("run")
    assert (facts["measured"], facts["predicted"]) == (format_time(90), format_time(PLAN.step_time))
    assert facts["difference"] == f"{90 / PLAN.step_time - 1:+.1%}"
    traces, _ = page.charts()["steps"]
    assert traces[0]["x"] == [80, 90, 100] and traces[1]["x"] == [PLAN.step_time] * 2


def test_ratios_of_a_sweep_are_its_tables() -> None:
    """A method's bar is its time over the answer's; cells without a plan have none."""
    traces, layout = read("sweep").charts()["ratios-0"]
    assert traces[0]["x"] == [2.0] and len(layout["yaxis"]["ticktext"]) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_loads_nothing(kind: str) -> None:
    """No element names an address outside the page, the style none either, and the browser is told to refuse them."""
    page = read(kind)
    for element in page.every:
        addresses = [
            element.attributes[name] for name in ("src", "href", "srcset", "data") if name in element.attributes
        ]
        assert all(address.startswith("#") for address in addresses), element
        assert element.tag not in ("link", "iframe", "object", "embed", "base")
    assert not re.search(r"url\(|@import", page.elements["style"][0].text)
    policy = [one.attributes["content"] for one in page.elements["meta"] if "http-equiv" in one.attributes]
    assert policy and policy[0].startswith("default-src 'none'") and "http" not in policy[0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_can_be_read_by_everybody(kind: str) -> None:
    """One heading of the page, landmarks, labelled sections and charts, tables with captions and headed columns."""
    page = read(kind)
    assert len(page.elements["h1"]) == len(page.elements["main"]) == len(page.elements["nav"]) == 1
    names = [one.attributes["id"] for one in page.every if "id" in one.attributes]
    assert len(names) == len(set(names))
    for section in page.elements["section"]:
        assert section.attributes["aria-labelledby"] in names
    links = [one.attributes["href"].removeprefix("#") for one in page.elements["a"]]
    assert links == [section.attributes["id"] for section in page.elements["section"]]
    charts = [one for one in page.elements["div"] if one.attributes.get("role") == "img"]
    assert len(charts) == len(page.charts()) and all(len(one.attributes["aria-label"]) > 20 for one in charts)
    for one in page.elements["table"]:
        assert [child.tag for child in one.inside].count("caption") == 1
    assert page.elements["th"] and all(one.attributes["scope"] == "col" for one in page.elements["th"])


def test_names_are_text() -> None:
    """Tags in the names of models, clusters, layers, kinds and files are shown, and never obeyed."""
    stages = tuple(replace(stage, layers=(HOSTILE,)) for stage in PLAN.stages)
    plan = replace(PLAN, model=HOSTILE, cluster=HOSTILE, stages=stages, device_kinds=(HOSTILE,) * 6)
    one, two = plans_page({HOSTILE: (plan, TIMELINE)}), plans_page({HOSTILE: (plan, TIMELINE), "b": (plan, TIMELINE)})
    for page in (one, two):
        found = Read(page.as_html().replace(chart.library(), "library"))
        assert not found.elements["img"]
        assert len(found.elements["script"]) - len(found.charts()) == 2
        assert HOSTILE in found.elements["main"][0].text
        for traces, layout in found.charts().values():
            shown = [*layout["yaxis"].get("ticktext", ()), *(t for trace in traces for t in trace.get("hovertext", ()))]
            assert not any("<" in text for text in shown)


def test_the_same_answer_is_the_same_page() -> None:
    """A page depends on nothing but the answer, so that files can be compared."""
    assert solve_page(answer()).as_html() == pages()["solve"].as_html()


def test_a_thousand_devices_fold() -> None:
    """Like devices share a row, which words say; the critical path stays, and the page below 6 MB."""
    plan, timeline = thousand()
    body = time_lines([("", plan, timeline)]).body
    found = Read(
        Page("t", "l", [time_lines([("", plan, timeline)]), of_plan(plan)]).as_html().replace(chart.library(), "")
    )
    traces, layout = found.charts()["time-line-0"]
    assert len(layout["yaxis"]["ticktext"]) == 4 and layout["yaxis"]["ticktext"][0].endswith("×250")
    assert "1000 devices in 4 rows" in body
    path = next(trace for trace in traces if trace["name"] == "critical path")
    assert path["x"][-1] == layout["xaxis"]["range"][1] and max(path["y"]) < 4
    assert len(body) + len(chart.library()) < 6e6


def test_too_many_actions_leave_rows_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a time line that does not fold, rows at equal distances are drawn, and the caption says so."""
    monkeypatch.setattr(time_line, "MOST", 300)
    setting = setting_of(one_forward_one_backward((1,) * 20, 10, tuple(range(20, 0, -1))), line(20, 5, 7))
    found = Read(
        Page("t", "l", [time_lines([("", setting.plan, setting.timeline)])]).as_html().replace(chart.library(), "")
    )
    traces, _ = found.charts()["time-line-0"]
    assert sum(len(trace["base"]) for trace in traces if "base" in trace) <= 300
    assert re.search(r"One row in \d of 20 is drawn, as there are \d+ actions", found.elements["main"][0].text)


def _contrast(one: str, other: str) -> float:
    """Contrast of two colours by the rules of WCAG 2."""

    def light(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


def test_words_stand_out_in_both_schemes() -> None:
    """Text has a contrast of at least 4.5 to 1 on what it stands on, lines of charts of 3 to 1 on the page."""
    style = Path(chart.__file__).with_name("style.css").read_text()
    schemes = [dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", block)) for block in re.findall(r":root \{([^}]*)\}", style)]
    for scheme in schemes[:2]:
        for ground in (scheme["page"], scheme["card"]):
            assert all(_contrast(scheme[name], ground) >= 4.5 for name in ("ink", "soft", "link"))
        assert _contrast(chart.PATH, scheme["page"]) >= 3
    fills = [*chart.SEVERAL, chart.BLUE, chart.GREY, chart.ORANGE, *(style.fill for style in STYLES.values())]
    assert all(_contrast(chart.INK, shaded(fill, white)) >= 4.5 for fill in fills for white in (0, 0.4))


COMMANDS = {
    "solve": ["model.yaml", "--devices", "2", "--batch", "8", "--time", "5"],
    "judge": ["model.yaml", "--devices", "2", "--batch", "8", "--time", "5", "--stages", "5,4", "--micro-batches", "8"],
    "compare": ["model.yaml", "--devices", "2", "--batch", "8", "--time", "5", "--schedules", "gpipe"],
    "frontier": ["model.yaml", "--devices", "2", "--batch", "8", "--time", "5", "--points", "1"],
    "sweep": ["small.yaml"],
    "run": ["plan.json", "module:function"],
}
SMALL = """
name: small
search: {time: 5, workers: 1}
beside: [data-parallel]
grids: [{models: [model.yaml], clusters: [4-v100-nvlink], jobs: [{batch: 8}]}]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a model, an experiment and a plan."""
    monkeypatch.chdir(tmp_path)
    write_model(fat_head(), tmp_path / "model.yaml")
    (tmp_path / "sweep-out" / "small").mkdir(parents=True)
    (tmp_path / "small.yaml").write_text(SMALL.replace("4-v100-nvlink", str(tmp_path / "cluster.yaml")))
    write_cluster(equal_devices(2), tmp_path / "cluster.yaml")
    answer().plan.save("plan.json")
    yield tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_writes_its_page(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``--report`` writes a page beside the answer, which is printed as ever."""
    cell = Record("m", "c", Job(8), Search(), "", "solved", Figures(10, (4, 6), "1 stage"), {}, 9)
    monkeypatch.setattr("pipeplan.analysis.sweep.run.sweep", lambda *_, **__: [cell])
    if command == "run":
        from pipeplan_executor.train.report import RunReport

        done = RunReport((1.0,), (50,), (7,) * 3, (answer().timeline,))
        monkeypatch.setattr("pipeplan_executor.cli.run.run_plan", lambda *_, **__: done)
    assert main([command, *COMMANDS[command], "--report", "page.html"]) == 0
    assert capsys.readouterr().out
    assert (folder / "page.html").read_text().endswith("</html>\n")


def test_report_writes_a_page_of_plans(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By default beside the plan; what is no plan, no page's name or named twice is refused."""
    assert main(["report", "plan.json"]) == 0
    assert "plan.html" in capsys.readouterr().out and (folder / "plan.html").exists()
    for words in (["model.yaml"], ["plan.json", "-o", "page.pdf"], ["plan.json", "plan.json"]):
        assert main(["report", *words]) == 2
    assert "named twice" in capsys.readouterr().err


def test_plotly_knows_every_property() -> None:
    """Charts are written as plain data; plotly's own classes accept each of them."""
    from plotly.graph_objects import Figure

    for kind in KINDS:
        for traces, layout in read(kind).charts().values():
            Figure({"data": traces, "layout": layout})
