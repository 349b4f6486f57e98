"""The page on costs: every figure is read from its text and compared with the planner's."""

import re
from dataclasses import asdict
from fractions import Fraction
from functools import cache
from math import ceil, floor
from typing import Any

import pytest
import yaml

from helpers.shared_data import ROOT
from pipeplan import Cluster, Job, Model, Result, solve
from pipeplan.core.cluster import Overlap
from pipeplan.core.job import OPTIMIZER_STATE
from pipeplan.core.timeline import Span, TransferSpan
from pipeplan.costs.layers import ITEM_SIZE, layer_costs, optimizer_bytes
from pipeplan.io.cluster_file import cluster_from_data
from pipeplan.io.job_file import job_from_data
from pipeplan.io.model_file import model_from_data
from pipeplan.schedules import FAMILIES
from pipeplan.search.space.device_groups import Mode, arrange, device_classes
from pipeplan.search.space.in_flight import InFlightBox
from pipeplan_formulations.common.report import Status

PAGE = (ROOT / "docs" / "costs.md").read_text(encoding="utf-8")
EXAMPLES = 1, 2, 3, 4, 5, 6
Row = tuple[str, ...]


def section(start: str, end: str = "\n## ") -> str:
    """The page's text from a heading to the next."""
    assert PAGE.count(start) == 1, start
    return PAGE.split(start)[1].split(end)[0]


def data(text: str) -> list[Any]:
    """The YAML blocks of a text."""
    return [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]


def table(text: str, head: str) -> list[Row]:
    """The rows of all tables of a text that have this heading."""
    rows: list[Row] = []
    inside = False
    for line in text.splitlines():
        cells = tuple(cell.strip() for cell in line.strip().strip("|").split("|"))
        if not line.startswith("|"):
            inside = False
        elif inside and not set(line) <= set("|- "):
            rows.append(cells)
        inside = inside or line.strip("| ").startswith(head)
    assert rows, head
    return rows


def number(text: str) -> int:
    """``1,290 ns`` is 1290."""
    match = re.fullmatch(r"([0-9,]+)(?: (?:ns|B))?", text)
    assert match is not None, text
    return int(match[1].replace(",", ""))


def computed(how: str) -> Fraction:
    """Exact value of a formula of the page."""
    text = how.replace("⌈", "ceil(").replace("⌊", "floor(").replace("⌉", ")").replace("⌋", ")")
    text = text.replace("×", "*").replace("−", "-").replace("^", "**")
    assert re.fullmatch(r"(ceil|floor|round|max|min|[0-9.,*/+() -])+", text), how
    exact = re.sub(r"[0-9]+(\.[0-9]+)?", lambda match: f"F('{match[0]}')", text)
    names = {"F": Fraction, "ceil": ceil, "floor": floor, "round": round, "max": max, "min": min}
    return Fraction(eval(exact, {"__builtins__": {}}, names))


def questions(example: int) -> tuple[Model, Cluster, Job]:
    """Model, cluster and job of an example."""
    model, cluster, job = data(section(f"\n## Example {example}:"))
    return model_from_data(model, "model"), cluster_from_data(cluster, "cluster"), job_from_data(job, "job")


@cache
def answer(example: int) -> Result:
    """Result of `solve` for an example."""
    model, cluster, job = questions(example)
    return solve(model, cluster, job=job, time_limit=60)


def layer_figures(example: int) -> dict[str, int]:
    """Every figure of every layer, by kind, layer and name."""
    model, cluster, job = questions(example)
    found = {}
    for name, kind in cluster.kinds.items():
        costs = layer_costs(model, kind, answer(example).plan.micro_batch, optimizer=job.optimizer)
        for layer, cost in zip(model.names, costs, strict=True):
            found |= {f"{name} {layer} {field}": value for field, value in asdict(cost).items()}
    return found


def plan_figures(example: int) -> dict[str, int]:
    """The plan's own figures, by the names that the page gives them."""
    plan = answer(example).plan
    found = {"step time": plan.step_time}
    for s, (priced, stage) in enumerate(zip(plan.pipeline.stages, plan.stages, strict=True)):
        for field in ("forward", "backward", "update", "reduce", "gather", "resident", "held"):
            found[f"stage {s} {field}"] = getattr(priced, field)
        for field in ("weights", "gradients", "optimizer", "activations", "workspace", "runtime"):
            found[f"stage {s} {field}"] = getattr(stage.memory, field)
        found |= {f"stage {s} in flight": stage.in_flight, f"stage {s} memory": stage.memory.total}
    for rank, peak in enumerate(answer(example).timeline.peaks):
        found[f"d{plan.ranks[rank]} peak"] = peak
    for s, ways in enumerate(zip(plan.pipeline.transfers, plan.pipeline.returns, strict=True)):
        same = {(way.size, way.occupancy, way.latency) for row in ways for way in row}
        assert len(same) == 1  # the page gives it once for both directions and all replicas
        found |= zip((f"boundary {s} {field}" for field in ("bytes", "occupancy", "latency")), same.pop(), strict=True)
    return found


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_middle_column_comes_to_the_right_one(example: int) -> None:
    """The arithmetic of the page is right, independently of the planner."""
    for figure, how, result in table(section(f"\n## Example {example}:"), "figure"):
        assert computed(how) == number(result), figure


@pytest.mark.parametrize("example", EXAMPLES)
def test_figures_are_those_of_the_answer(example: int) -> None:
    """Every figure that the planner has under the page's name has the page's value."""
    told = {figure: number(result) for figure, _, result in table(section(f"\n## Example {example}:"), "figure")}
    known = layer_figures(example) | plan_figures(example)
    assert {figure: known[figure] for figure in told if figure in known} == {
        figure: value for figure, value in told.items() if figure in known
    }
    named = re.compile(r"stage \d+ |boundary \d+ |step time|d\d+ peak|(fast|slow|chip) ")
    assert [figure for figure in told if named.match(figure) and figure not in known] == []


@pytest.mark.parametrize("example", [1, 2])
def test_an_example_tells_all_of_its_plan(example: int) -> None:
    """No figure of a stage or boundary is left out, and the plan is proved to be the best one."""
    told = {figure for figure, _, _ in table(section(f"\n## Example {example}:"), "figure")}
    assert {figure for figure in plan_figures(example) if "peak" not in figure} <= told
    assert answer(example).status is Status.OPTIMAL


def test_recomputation_makes_the_first_example_fit() -> None:
    """The layer that the page names is recomputed, as the stage exceeds its device's limit without."""
    told = {figure: number(result) for figure, _, result in table(section("\n## Example 1:"), "figure")}
    assert answer(1).plan.stages[0].recompute == ("block.0",)
    assert told["if nothing is recomputed"] > answer(1).plan.pipeline.limits[0] >= told["stage 0 memory"]


@pytest.mark.parametrize("example", [1, 4, 5])
def test_time_lines_are_the_simulated_ones(example: int) -> None:
    """Every action and every transfer starts and ends at the times of the page, by the lists that it shows."""
    text, timeline, plan = section(f"\n## Example {example}:"), answer(example).timeline, answer(example).plan

    def row(span: Span) -> tuple[str, int, int]:
        return f"{span.action} on d{plan.ranks[span.device]}", span.start, span.end

    def sent(tensor: TransferSpan) -> tuple[str, int, int, int]:
        kind = "F" if tensor.source < tensor.target else "B"
        return f"{tensor.source}{kind}{tensor.micro_batch}", tensor.start, tensor.end, tensor.arrival

    actions = [(name, number(begins), number(ends)) for name, begins, _, ends in table(text, "action")]
    assert sorted(actions) == sorted(map(row, timeline.spans))
    streams = plan.pipeline.overlap is Overlap.STREAM
    ready = {name.partition(" ")[0]: begin if streams else end for name, begin, end in actions}
    tensors = [(cells[0], *map(number, cells[1:])) for cells in table(text, "tensor")]
    assert sorted((name, *times) for name, _, *times in tensors) == sorted(map(sent, timeline.transfers))
    assert [ready[name] for name, *_ in tensors] == [told for _, told, *_ in tensors]
    for line in plan.schedule.as_text():
        assert f"`{line}`" in " ".join(text.split())


def test_replicas_load_the_bottleneck_as_the_page_says() -> None:
    """The third example's value is the largest of its loads, on the replicas that the page names."""
    plan = answer(3).plan
    assert [(stage.layers, stage.replicas) for stage in plan.stages] == [(("a",), 2), (("b",), 1)]
    told = {figure: number(result) for figure, _, result in table(section("\n## Example 3:"), "figure")}
    assert answer(3).value == max(told["load of stage 0"], told["load of stage 1"])


def test_devices_lie_where_the_page_packs_and_tiles_them() -> None:
    """Each row of the table of placements equals the result of `arrange` for its replicas."""
    text = section("\n## Devices of a stage\n")
    [cluster] = (cluster_from_data(each, "cluster") for each in data(text))
    for replicas, way, devices, nodes in table(text, "replicas"):
        modes = tuple(Mode(0, int(count)) for count in replicas.split(", "))
        groups = arrange(device_classes(cluster), modes, int(way.removeprefix("tile ")) if "tile" in way else None)
        assert groups is not None
        assert ", ".join(" ".join(f"d{each.index}" for each in group) for group in groups) == devices
        stage_of = {device.index: str(s) for s, group in enumerate(groups) for device in group}
        drawn = [" ".join(stage_of.get(d, ".") for d in range(start, start + 4)) for start in (0, 4)]
        assert ", ".join(f"`{row}`" for row in drawn) == nodes


def test_families_hold_what_the_page_says() -> None:
    """In-flight counts of the example, including the choices of 1F1B with free counts, match the page."""
    text, shape, count = section("\n## Lists of actions\n"), (2, 1, 1), 8
    known = {name: ", ".join(map(str, each.in_flight(shape, count))) for name, each in FAMILIES.items()}
    known["1f1b"] = " or ".join(", ".join(map(str, counts)) for counts in InFlightBox.of(shape, count).counts())
    rows = [row for row in table(text, "family") if len(row) == 2]
    assert {name.strip("`"): told for name, told in rows} == known
    suits = {row[0].strip("`"): row[3] for row in table(text, "family") if len(row) == 4}
    for name, each in FAMILIES.items():
        told = {"none", "copy", "stream"} if suits[name] == "every overlap" else set(suits[name].split(", "))
        assert told == {overlap.value for overlap in each.suits}


def test_the_table_of_optimiser_states_is_right() -> None:
    """Bytes of state for each number of parameters, for every format and optimiser."""
    rows = table(section("\n## Bytes that stay\n"), "bytes per number")
    found = {}
    for formats, size, *states in rows:
        for name in formats.split(", "):
            assert ITEM_SIZE[name] == int(size)
            found |= {(name, optimizer): int(n) for optimizer, n in zip(OPTIMIZER_STATE, states, strict=True)}
    assert set(found) == {(name, optimizer) for name in ITEM_SIZE for optimizer in OPTIMIZER_STATE}
    for (name, optimizer), n in found.items():
        assert optimizer_bytes(1000 * ITEM_SIZE[name], name, optimizer) == 1000 * n


def test_lines_are_short() -> None:
    """No line of the page has more than 100 columns."""
    assert [line for line in PAGE.splitlines() if len(line) > 100] == []
