"""Frontiers: shape, bounds, resumption and output."""

import csv
import io
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from helpers.explained import lean
from helpers.instances import equal_devices, fat_head, model_of, two_kinds_of_device
from helpers.operators import perceptrons
from pipeplan.analysis.frontier import answers as answers_module
from pipeplan.analysis.frontier import fewest_devices, frontier
from pipeplan.analysis.frontier.answers import Answer
from pipeplan.analysis.frontier.subsets import MOST, Part, kind_counts, parts, sub_cluster
from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node, Overlap
from pipeplan.core.errors import InfeasibleError, InputError, PipeplanError, UndecidedError
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.search.result import Result
from pipeplan_formulations.common.report import Stop


def test_costs_rise_and_times_fall() -> None:
    """Along a frontier every point costs more than the one before it and takes less time."""
    for over in ("memory", "devices"):
        points = frontier(fat_head(), equal_devices(3), lean(8), over).points  # type: ignore[arg-type]
        assert len(points) > 1
        assert all(a.cost < b.cost and a.value > b.value for a, b in pairwise(points))


def test_points_that_are_not_proved_keep_their_bounds() -> None:
    """Stopped at a gap, every point still has a bound that the proved frontier does not contradict."""
    job = lean(8)
    exact = frontier(fat_head(), equal_devices(3), job)
    hasty = frontier(fat_head(), equal_devices(3), job, gap=0.5)
    assert exact.complete and not hasty.complete
    for point in hasty.points:
        best = min((other.value for other in exact.points if other.cost <= point.cost), default=None)
        assert best is not None and point.bound <= best <= point.value


def test_fewer_points_lie_on_the_frontier() -> None:
    """A sample has at most the given number of points, includes both ends, and lies on the whole frontier."""
    whole = frontier(fat_head(), equal_devices(3), lean(8))
    some = frontier(fat_head(), equal_devices(3), lean(8), points=3)
    assert len(some.points) <= 3 and not some.complete
    assert some.points[-1].value == whole.points[-1].value
    assert some.points[0].cost == whole.points[0].cost
    for point in some.points:
        assert point.value == min(other.value for other in whole.points if other.cost <= point.cost)


@pytest.mark.slow
def test_enough_points_are_all_points() -> None:
    """A sample of enough points ends with the whole frontier, and reports it as complete."""
    question = (fat_head(), equal_devices(3), lean(8))
    assert frontier(*question, points=1000).points == frontier(*question).points
    assert frontier(*question, points=1000).complete


def test_a_second_call_goes_on_where_the_first_stopped(tmp_path: Path) -> None:
    """Answers in a file are not solved again, after a completed or an interrupted call."""
    path = tmp_path / "frontier.json"
    asked: list[str] = []

    def once(key: str, answer: Answer) -> None:
        asked.append(key)
        if len(asked) == 2:
            raise RuntimeError("power cut")

    question = (fat_head(), equal_devices(3), lean(8))
    with pytest.raises(RuntimeError, match="power cut"):
        frontier(*question, path=path, on_progress=once)
    first = list(asked)
    whole = frontier(*question, path=path, on_progress=lambda key, answer: asked.append(key))
    assert len(first) == 2 and len(asked) == len(set(asked))  # the last answer before the cut was kept too
    assert whole.points == frontier(*question).points
    again: list[str] = []
    assert frontier(*question, path=path, on_progress=lambda key, answer: again.append(key)) == whole
    assert again == []


def test_answers_to_another_question_are_refused(tmp_path: Path) -> None:
    """A file of another job, or of another format, is neither used nor overwritten."""
    path = tmp_path / "frontier.json"
    frontier(fat_head(), equal_devices(2), lean(8), path=path)
    before = path.read_bytes()
    with pytest.raises(InputError, match="another question"):
        frontier(fat_head(), equal_devices(2), lean(16), path=path)
    assert path.read_bytes() == before
    for rubbish in ("{}", "[]", "no", '{"format": 1, "question": 2, "answers": []}'):
        path.write_text(rubbish)
        with pytest.raises(InputError, match="another"):
            frontier(fat_head(), equal_devices(2), lean(8), path=path)
        assert path.read_text() == rubbish


def test_the_same_table_in_text_json_and_csv() -> None:
    """All three show every point with its figures."""
    kinds = {"unit": DeviceKind("unit", price=2.5), "slow": DeviceKind("slow", timed_as="unit", speed=0.5, price=1)}
    cluster = Cluster("priced", kinds, (Node(("unit", "slow")),), overlap=Overlap.COPY)
    found = frontier(fat_head(), cluster, lean(8), "price")
    data = found.as_json()
    points: list[dict[str, object]] = data["points"]  # type: ignore[assignment]
    rows = list(csv.DictReader(io.StringIO(found.as_csv())))
    assert len(points) == len(rows) == len(found.points) >= 2
    for point, row, shown in zip(found.points, rows, points, strict=True):
        assert float(row["cost"]) == point.cost == shown["cost"]
        assert float(row["step_time_s"]) == point.value / 1e9 == shown["step_time_s"]
        assert f"{point.cost:g}" in str(found)
    assert json.loads(json.dumps(data))["points"][0]["plan"]["micro_batch"] == found.points[0].plan.micro_batch


def test_a_price_must_be_known() -> None:
    """Without a price the error names the kind, and the place to write it."""
    with pytest.raises(InputError, match=r"unit.*price:"):
        frontier(fat_head(), equal_devices(2), lean(8), "price")


def test_without_time_nothing_is_claimed() -> None:
    """If the time is up before the first plan, the error reports that, and not that nothing fits."""
    for ask in (frontier, fewest_devices):
        with pytest.raises(PipeplanError, match="time") as caught:
            ask(fat_head(), equal_devices(3), lean(8, memory=8), time_limit=0.0)
        assert not isinstance(caught.value, InfeasibleError)


def test_nothing_fits_anywhere() -> None:
    """The error has the solver's reason."""
    for over in ("memory", "devices"):
        with pytest.raises(InfeasibleError, match="fits"):
            frontier(fat_head(), equal_devices(2, 3), lean(8), over)  # type: ignore[arg-type]


def test_parts_keep_nodes_and_names() -> None:
    """A part has the first devices of each kind, in their nodes; empty nodes are dropped."""
    kinds = {"a": DeviceKind("a"), "b": DeviceKind("b")}
    cluster = Cluster("mix", kinds, (Node(("a", "a", "b")), Node(("a", "b", "b"), Link(5))), Link(1))
    assert kind_counts(cluster) == (("a", 3), ("b", 3))
    some = sub_cluster(cluster, Part((1, 2), 3))
    assert [node.kinds for node in some.nodes] == [("a", "b"), ("b",)]
    assert some.nodes[1].link == Link(5) and some.name == "mix (1 a + 2 b)"
    assert [node.kinds for node in sub_cluster(cluster, Part((2, 0), 2)).nodes] == [("a", "a")]
    every = parts(cluster, {"a": 2.0, "b": 1.0})
    assert len(every) == 15 and every[0].counts == (0, 1) and every[-1].counts == (3, 3)
    assert [part.cost for part in every] == sorted(part.cost for part in every)
    few = parts(cluster, {"a": 1, "b": 1}, levels=2)
    assert {part.counts for part in few} == {(0, 2), (0, 3), (2, 0), (2, 2), (2, 3), (3, 0), (3, 2), (3, 3)}


def test_too_many_parts_are_refused() -> None:
    """The error has the number of parts, and advice."""
    node = Node(("unit",) * 60 + ("slow",) * 60)
    cluster = Cluster("large", two_kinds_of_device().kinds, (node,), overlap=Overlap.COPY)
    with pytest.raises(InputError, match=f"3720 parts.*{MOST}.*fewer points"):
        frontier(fat_head(), cluster, lean(8), "devices")


def test_what_cannot_improve_is_not_asked_for() -> None:
    """Two layers run on two devices at most: of eight equal ones only parts of eight, one and two are solved."""
    asked: list[str] = []
    job = lean(8)
    found = frontier(
        model_of([5, 5]), equal_devices(8), job, "devices", on_progress=lambda key, answer: asked.append(key)
    )
    assert [point.cost for point in found.points] == [1, 2]
    assert len(asked) < 8 and found.complete
    assert asked[0] == "the best plan on 8 unit"


def test_wrong_questions_teach() -> None:
    """Axes, numbers of points and pins that make no sense are refused."""
    for arguments, lesson in (({"over": "colour"}, "memory, devices, price"), ({"points": 0}, "at least one point")):
        with pytest.raises(InputError, match=lesson):
            frontier(fat_head(), equal_devices(2), lean(8), **arguments)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="pin them to a kind"):
        frontier(fat_head(), equal_devices(2), lean(8, pin=(("l0", "d1"),)), "devices")


@pytest.mark.parametrize("teams", [(), (1, 2)])
def test_parts_that_were_not_asked_have_a_bound(teams: tuple[int, ...]) -> None:
    """An interrupted frontier never has a bound of 0: all work shared evenly over a part's devices is one at once."""
    model, node, asked = perceptrons(), equal_devices(2).nodes[0], list[str]()
    cluster = replace(equal_devices(2), nodes=(node,) * 2, network=Link(10**9, 0))  # parts inherit no bounds
    job = Job(4, teams=teams, zero=(0,), schedules=("gpipe",))

    def one_is_enough(key: str, _: Answer) -> None:
        asked.append(key)
        if len(asked) > 1:
            raise KeyboardInterrupt

    whole = {point.cost: point.value for point in frontier(model, cluster, job, over="devices").points}
    found = frontier(model, cluster, job, over="devices", on_progress=one_is_enough)
    assert not found.complete and len(found.floors) > 1
    for floor in found.floors:
        best = min((value for cost, value in whole.items() if cost <= floor.cost), default=None)
        assert floor.bound is not None and floor.bound > 0 and (best is None or floor.bound <= best)


def test_the_bound_of_an_undecided_part_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """No plan of that part takes less: so dearer points have a bound, and limits of less memory a floor."""
    model, solve, node = model_of([40] * 8), answers_module.solve, equal_devices(1).nodes[0]
    cluster = replace(equal_devices(1), nodes=(node,) * 3, network=Link(10**9, 0))  # parts inherit no bounds

    def undecided_on_one(model: Model, cluster: Cluster, **how: Any) -> Result:
        if len(cluster.devices) == 1:
            raise UndecidedError(Stop.TIME, 100)
        return solve(model, cluster, **how)

    monkeypatch.setattr(answers_module, "solve", undecided_on_one)
    found = frontier(model, cluster, 4, over="devices")
    assert not found.complete
    assert [floor.bound for floor in found.floors] == [100]
    assert {point.bound for point in found.points} == {100}

    def undecided_with_little(model: Model, cluster: Cluster, *, job: Job, **how: Any) -> Result:
        if job.memory is not None:
            raise UndecidedError(Stop.TIME, 100_000)
        return solve(model, cluster, job=job, **how)

    monkeypatch.setattr(answers_module, "solve", undecided_with_little)
    found = frontier(model_of([40] * 8, parameters=[100] * 8), equal_devices(3), 4)
    assert found.floors[0].bound == 100_000


def test_costs_are_sums_of_prices_as_they_are_written() -> None:
    """Four devices of 1.8 and 2 of 0.3 cost 7.8 an hour, as 26 of 0.3 do: not 7.8000000000000001."""
    kinds = {"a": DeviceKind("a", price=1.8), "b": DeviceKind("b", price=0.3)}
    cluster = Cluster("mixed", kinds, (Node(("a",) * 4 + ("b",) * 26, Link(10**9, 0)),), None, Overlap.COPY)
    costs = {part.counts: part.cost for part in parts(cluster, {"a": 1.8, "b": 0.3})}
    assert costs[4, 2] == costs[0, 26] == 7.8
    assert [str(costs[count, 0]) for count in (1, 2, 3)] == ["1.8", "3.6", "5.4"]
    assert all(part.cost == part.devices for part in parts(cluster, {"a": 1, "b": 1}))
