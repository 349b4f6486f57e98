"""Local search: better plans of the space, each of which fits and takes as long as it says."""

import pickle
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from random import Random
from types import SimpleNamespace
from typing import cast

import pytest

import pipeplan
from helpers.instances import model_of
from helpers.quick import rarely
from pipeplan.baselines.deadline import ending
from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node
from pipeplan.core.job import Job
from pipeplan.io.load import load_cluster, load_model
from pipeplan.search import turns
from pipeplan.search.branch_and_bound import SLACK, PlanSearch
from pipeplan.search.evaluate import EvaluatedPlan, Pace, evaluate
from pipeplan.search.local_search import LocalSearch, Workplace, beside, pool
from pipeplan.search.local_search import improver as improving
from pipeplan.search.local_search.beside import Message, ProcessBeside
from pipeplan.search.local_search.moves import rising_modes
from pipeplan.search.nodes import layouts
from pipeplan.search.nodes.layout_hint import LayoutHint
from pipeplan.search.result import Result
from pipeplan.search.space import space as spaces
from pipeplan.search.space.space import Space
from pipeplan.search.space.spaces import Spaces
from pipeplan.simulate import makespan
from pipeplan_formulations.common.report import Limits

MODEL = model_of(
    [9, 4, 7, 3, 8, 2, 6, 5, 7, 1],
    saved=[40, 10, 30, 20, 40, 10, 30, 20, 30, 10],
    output=[4] * 10,
    parameters=[3, 5, 2, 6, 1, 4, 2, 5, 3, 2],
    sizes=(1, 2),
    kinds=("fast", "slow"),
)
CLUSTER = Cluster(
    "four and four",
    {name: DeviceKind(name, memory=memory) for name, memory in (("fast", 420), ("slow", 300))},
    (Node(("fast",) * 4, Link(10**9, 2)), Node(("slow",) * 4, Link(10**9, 2))),
    Link(5 * 10**8, 4),
)
JOB = Job(batch=16, optimizer="sgd")


def worst_plan(spaces: Spaces) -> EvaluatedPlan:
    """The plan of one layer on the first stage and all others on the second, which fits with some recomputation."""
    groups = ((CLUSTER.devices[0],), (CLUSTER.devices[1],))
    candidate = next(each for each in spaces.lowest.candidates(groups, 1, free=False) if each.family.name == "1f1b-sno")
    boundaries = next((0, b, 10) for b in (1, 2, 3, 4, 5) if candidate.fits((0, b, 10)))
    return evaluate(CLUSTER, candidate, boundaries)


def ways_of_teams() -> Spaces:
    """All ways to split layers over teams of two, with two stages on a team each."""
    job = Job(8, micro_batches=(8,), teams=(2,), depths=(2,), replicas=(1,), zero=(0,))
    return Spaces(load_model("gpt2-small"), load_cluster("8-v100-pcie"), job)


def plan_on_two(space: Space, start: int = 0) -> EvaluatedPlan:
    """The plan of two stages of seven layers on two teams, the first of which has this number."""
    groups = tuple((device,) for device in space.cluster.devices[start : start + 2])
    return evaluate(space.cluster, space.candidates(groups, 1, free=False)[0], (0, 7, 14))


@pytest.mark.parametrize("seed", range(3))
def test_every_plan_found_is_better_fits_and_takes_as_long_as_it_says(seed):
    spaces = Spaces(MODEL, CLUSTER, JOB)
    search, start = LocalSearch(spaces, seed), worst_plan(spaces)
    search.add(start)
    found = [plan for plan in (search.improve() for _ in range(30)) if plan is not None]
    values = [start.value, *(plan.value for plan in found)]
    assert values == sorted(values, reverse=True)
    assert values[-1] < 0.8 * start.value
    for plan in found:
        assert spaces.outside(plan) is None
        assert plan.value == makespan(plan.schedule, plan.pipeline)


def test_the_same_seed_finds_the_same_plans():
    def found() -> list[int]:
        spaces = Spaces(MODEL, CLUSTER, JOB)
        search = LocalSearch(spaces, 5)
        search.add(worst_plan(spaces))
        return [plan.value for plan in (search.improve() for _ in range(10)) if plan is not None]

    assert found() == found()


def test_other_groups_are_reached_from_one_stage():
    """The start has one stage; only steps to other groups can leave it."""
    spaces = Spaces(MODEL, CLUSTER, Job(batch=16, optimizer="sgd", memory=10**6))
    candidate = spaces.lowest.candidates(((CLUSTER.devices[0], CLUSTER.devices[1]),), 1, free=False)[0]
    search = LocalSearch(spaces)
    search.add(evaluate(CLUSTER, candidate, (0, 10)))
    found = [plan for plan in (search.improve() for _ in range(30)) if plan is not None]
    assert any(plan.candidate.depth > 1 for plan in found)


@pytest.mark.parametrize("late", [0, 60])
def test_other_levels_are_reached_from_a_plan_whose_parameters_are_shared_out(late: int) -> None:
    """Few plans share out parameters, and a search may find one of them first; better ones keep them on each device.

    Groups for which the time was over come again.
    """
    spaces = Spaces(MODEL, CLUSTER, Job(batch=16, optimizer="sgd", memory=10**6))
    candidate = spaces[3].candidates((CLUSTER.devices[4:],), 1, free=False)[0]
    search = LocalSearch(spaces)
    search.add(evaluate(CLUSTER, candidate, (0, 10)))
    with ending(time.monotonic() - 1):
        assert [search.improve() for _ in range(late)] == [None] * late
    found = [plan for plan in (search.improve() for _ in range(30)) if plan is not None]
    assert any(plan.candidate.chain.zero < 2 and len(set(plan.candidate.replicas)) == 1 for plan in found)
    assert all(plan.value == makespan(plan.schedule, plan.pipeline) for plan in found)


def test_other_ways_to_split_layers_are_reached_from_a_plan_of_one() -> None:
    """On the same teams: the plan is of the slowest way, and nothing else offers plans of the others."""
    spaces = ways_of_teams()
    plans = [plan_on_two(own.lowest) for own in spaces.teams.values()]
    start = max(plans, key=lambda plan: plan.value)
    search = LocalSearch(spaces)
    search.add(start)
    found = [plan for plan in (search.improve(0) for _ in range(len(plans))) if plan is not None]
    assert found
    assert all(plan.candidate.chain.split != start.candidate.chain.split for plan in found)
    assert found[-1].value <= min(plan.value for plan in plans)


def test_rows_of_rising_replicas_use_all_devices_of_one_class():
    """Powers of two that rise from stage to stage, with more replicas at the end; none where all have equally many."""
    eight = Cluster("eight", {"fast": DeviceKind("fast")}, (Node(("fast",) * 8, Link(10**9, 2)),))
    spaces = Spaces(MODEL, eight, JOB)
    rows = {tuple(mode.replicas for mode in modes) for modes in rising_modes(spaces[0], Random(0))}
    assert {(1, 1, 2, 4), (2, 2, 4), (1,) * 6 + (2,)} <= rows
    assert all(sum(row) == 8 and sorted(row) == [*row] and row[0] < row[-1] for row in rows)
    assert len(rows) == 6
    assert not rising_modes(spaces[2], Random(0))
    assert not rising_modes(Spaces(MODEL, CLUSTER, JOB)[0], Random(0))


def test_a_message_brings_back_the_same_plan():
    spaces = Spaces(MODEL, CLUSTER, JOB)
    search = LocalSearch(spaces)
    search.add(worst_plan(spaces))
    for plan in [worst_plan(spaces), *(p for p in (search.improve() for _ in range(10)) if p is not None)]:
        again = Message.of(plan).plan(Spaces(MODEL, CLUSTER, JOB))
        assert (again.label, again.boundaries, again.value) == (plan.label, plan.boundaries, plan.value)


def test_a_message_outside_the_space_is_no_plan():
    message = Message(None, 0, 1, None, ((0,), (1,)), 1, "1f1b-sno", (2, 1), (0, 5, 10), 0)
    assert message.plan(Spaces(MODEL, CLUSTER, JOB)) is not None
    assert message.plan(Spaces(MODEL, CLUSTER, Job(batch=16, optimizer="sgd", depths=(3,)))) is None


def test_the_process_finds_better_plans_and_ends():
    spaces = Spaces(MODEL, CLUSTER, JOB)
    process, start = ProcessBeside(spaces, 0), worst_plan(spaces)
    try:
        process.send(Message.of(start))
        found: list[EvaluatedPlan] = []
        deadline = time.monotonic() + 300
        while not found and time.monotonic() < deadline:
            found += process.found()
            time.sleep(0.05)
        assert found
        assert all(plan.value < start.value and spaces.outside(plan) is None for plan in found)
    finally:
        process.close()
    assert process.ended


def layout_hint(spaces: Spaces) -> LayoutHint:
    """The unequal layout of the lowest level at micro-batches of one sample."""
    layout = next(each for each in layouts.layouts(spaces.lowest, 16) if each.unequal)
    return LayoutHint(*spaces.lowest.key, 1, layout)


def test_a_layout_is_tried_once_and_gives_plans_that_are_better() -> None:
    """Of several, the one that came last; what is known by then does not come again."""
    spaces = Spaces(MODEL, CLUSTER, JOB)
    search, start = LocalSearch(spaces), worst_plan(spaces)
    search.add(start)
    tried: list[str] = []
    for name in ("first", "last", "first"):
        search.consider(name, lambda _, name=name: tried.append(name) or ())
    hint = layout_hint(spaces)
    hint.give(Workplace(spaces, search))
    found = search.try_idea()
    hint.give(Workplace(spaces, search))
    while search.has_ideas:
        assert search.try_idea() is None
    assert tried == ["first", "last"]
    assert found is not None
    assert found.value == search.least < start.value
    assert spaces.outside(found) is None
    assert found.value == makespan(found.schedule, found.pipeline)


def test_a_layout_outside_the_space_is_no_idea() -> None:
    spaces = Spaces(MODEL, CLUSTER, JOB)
    search, other = LocalSearch(spaces), Spaces(MODEL, CLUSTER, replace(JOB, zero=(1,)))
    layout_hint(other).give(Workplace(Spaces(MODEL, CLUSTER, replace(JOB, zero=(0,))), search))
    assert not search.has_ideas


def test_the_process_tries_layouts_once_it_is_idle() -> None:
    """It has no patience: beside the layout it climbs no longer than that took."""
    spaces = Spaces(MODEL, CLUSTER, JOB)
    process, start = ProcessBeside(spaces, 0, patience=0.0), worst_plan(spaces)
    try:
        process.send(layout_hint(spaces))
        process.send(Message.of(start))
        found: list[EvaluatedPlan] = []
        deadline = time.monotonic() + 300
        while not found and time.monotonic() < deadline:
            found += process.found()
            time.sleep(0.05)
        assert found
    finally:
        process.close()


class ToldError(Exception):
    """A search had something to tell."""


def test_a_search_tells_the_process_which_layouts_it_works_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are large and unequal."""
    for module, name in ((spaces, "FEW"), (spaces, "PAIRS"), (layouts, "SMALL"), (layouts, "SMALL_CELLS")):
        monkeypatch.setattr(module, name, 0)

    def sends(_: object, hint: LayoutHint) -> None:
        assert hint.layout.unequal
        raise ToldError

    monkeypatch.setattr(improving.Improver, "offer", lambda *_: None)
    monkeypatch.setattr(improving.Improver, "sends", sends)
    monkeypatch.setattr(turns, "every_turn", lambda _: iter(()))
    with pytest.raises(ToldError):
        pipeplan.solve(MODEL, CLUSTER, job=EVERYTHING)


def test_the_process_rests_once_nothing_was_better_for_long():
    """For its patience at least, and for longer where the last better plan took longer."""
    rest = beside.Rest(5.0)
    for at, least, due in (
        (0.5, 90, False),
        (5.4, 90, False),
        (5.6, 90, True),
        (9.0, 80, False),
        (17.9, 80, False),
        (18.1, 80, True),
        (19.0, 79, False),
    ):
        rest.spent = at
        assert rest.due(least) is due


def test_a_slice_ends_once_something_else_is_wanted():
    """No neighbour is tried then; the climb goes on later."""
    spaces = Spaces(MODEL, CLUSTER, JOB)
    search = LocalSearch(spaces, 0)
    search.add(worst_plan(spaces))
    (climb,) = search._climbs.values()
    search.improve(ends=lambda: True)
    assert climb.number == 0
    search.improve()
    assert sum(each.number for each in search._climbs.values()) > 0


def test_slices_get_longer_as_long_as_nothing_is_better(monkeypatch: pytest.MonkeyPatch) -> None:
    """A better plan, whoever found it, makes them short again; a number that is asked for is kept."""
    tried: list[object] = []
    monkeypatch.setattr(LocalSearch, "_try", lambda _, climb: tried.append(climb))
    monkeypatch.setattr(LocalSearch, "_begin", lambda *_: False)
    search, worst = LocalSearch(Spaces(MODEL, CLUSTER, JOB), 0), worst_plan(Spaces(MODEL, CLUSTER, JOB))
    search.add(worst)

    def tries(asked: int | None = None) -> int:
        tried.clear()
        assert search.improve(asked) is None
        return len(tried)

    lengths = [tries() for _ in range(5 * pool.LONGER)]
    assert lengths == sorted(lengths)
    assert set(lengths) == {pool.SLICE * times for times in range(1, pool.LONGEST + 1)}
    assert tries(7) == 7
    search.add(replace(worst, value=worst.value - 1))
    assert tries() == pool.SLICE


def test_a_plan_may_be_worse_than_the_last_one_but_not_than_an_earlier_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A climb accepts what is as good as the plan that was current `MEMORY` tries ago."""
    search, worst = LocalSearch(Spaces(MODEL, CLUSTER, JOB), 0), worst_plan(Spaces(MODEL, CLUSTER, JOB))
    search.add(worst)
    (climb,) = search._climbs.values()
    shares = iter((-10, -5, 1, -3))
    monkeypatch.setattr(LocalSearch, "_evaluated", lambda *_: replace(worst, value=worst.value + next(shares)))
    values = []
    for _ in range(4):
        search._try(climb)
        values.append(climb.plan.value - worst.value)
    assert values == [-10, -5, -5, -3]
    assert climb.best.value == worst.value - 10


def test_climbs_of_one_space_that_find_nothing_let_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two spaces have as good plans, but for 1 %; the first has three climbs, and the second one."""
    monkeypatch.setattr(LocalSearch, "_begin", lambda *_: False)
    tried: list[object] = []
    monkeypatch.setattr(LocalSearch, "_try", lambda _, climb: tried.append(climb.moves.space.key))
    spaces = ways_of_teams()
    first, second = [own.lowest for own in spaces.teams.values()][:2]
    search = LocalSearch(spaces)
    for space, count in ((first, 3), (second, 1)):
        for start in range(count):
            search.add(replace(plan_on_two(space, start), value=1_000_000 + 10_000 * (space is second)))
    assert len(search._climbs) == 4
    for _ in range(7):
        search.improve(1)
    assert second.key in tried
    assert tried[0] == first.key


def test_other_ways_have_their_turn_one_after_another() -> None:
    """Those that other groups were tried in least come first."""
    spaces = ways_of_teams()
    own = next(iter(spaces.teams.values())).lowest
    search = LocalSearch(spaces)
    search.add(plan_on_two(own))
    (climb,) = search._climbs.values()
    others = [next(search._ways_from(climb))[0].key for _ in range(len(spaces.teams) - 1)]
    assert len(others) == len(set(others)) > 1
    assert own.key not in others


def test_where_the_process_dies_tries_go_on_within_the_search(monkeypatch):
    """A process that is killed, or does not know what was plugged in for one call, takes no plans with it."""
    monkeypatch.setattr(improving, "BESIDE_AFTER", 0.0)
    monkeypatch.setattr(beside, "COMMAND", "raise SystemExit")
    spaces = Spaces(MODEL, CLUSTER, JOB)
    ours, start = improving.Improver(spaces, 0, 60.0, beside=True), worst_plan(spaces)
    ours.offer(start)
    list(ours.better(0.0))  # no time is left, so the process is started and nothing is tried
    ours._process._process.wait()
    assert any(plan.value < start.value for plan in ours.better(time.monotonic() + 60))


def test_what_is_sent_is_pickled_before_the_search_goes_on(monkeypatch):
    """The search fills caches of the model and of ways to split, which a thread must not pickle meanwhile."""
    written: list[bytes] = []
    monkeypatch.setattr(beside, "SimpleQueue", lambda: SimpleNamespace(put=written.append))
    monkeypatch.setattr(beside, "Thread", lambda **_: SimpleNamespace(start=lambda: None))
    spaces = Spaces(MODEL, CLUSTER, JOB)
    process, start = ProcessBeside(spaces, 0), worst_plan(spaces)
    process.send(Message.of(start))
    process.close()
    question, offered = map(pickle.loads, written[:2])
    assert question[1:3] == (CLUSTER, spaces.job)
    assert offered == Message.of(start)


EVERYTHING = Job(batch=8, optimizer="sgd", micro_batches=(8,), recompute="none", memory=10**6)


@cache
def enumerated() -> Result:
    """The answer where all device groups are enumerated."""
    return pipeplan.solve(MODEL, CLUSTER, job=EVERYTHING, time_limit=20)


@pytest.mark.parametrize("workers", [rarely(1), 2])
def test_solve_with_local_search_keeps_its_bound(monkeypatch, workers):
    """Layouts instead of enumerated groups, with and without a process: the same optimum, within the bound."""
    right = enumerated()
    for module, name in (
        (spaces, "FEW"),
        (spaces, "PAIRS"),
        (layouts, "SMALL"),
        (layouts, "SMALL_CELLS"),
    ):
        monkeypatch.setattr(module, name, 0)
    monkeypatch.setattr(improving, "BESIDE_AFTER", 0.0)
    monkeypatch.setattr(turns, "every_turn", lambda _: iter(()))
    found = pipeplan.solve(MODEL, CLUSTER, job=EVERYTHING, time_limit=1.5, workers=workers)
    assert found.bound <= right.value
    assert found.bound <= found.value
    assert right.bound <= found.value


def test_no_try_begins_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A try on a large cluster takes seconds, so the deadline is asked before each of them."""
    questions = Spaces(MODEL, CLUSTER, JOB)
    search = LocalSearch(questions, 0)
    search.add(worst_plan(questions))
    tried: list[object] = []
    monkeypatch.setattr(pool, "_judged", lambda *question: tried.append(question))
    with ending(time.monotonic() - 1):
        assert search.improve() is None
    assert not tried
    search.improve()
    assert tried


def test_the_local_search_leaves_the_time_to_finish_the_result() -> None:
    """Its deadline is the end of the search, not that of the limit, which the answer's time line may take.

    It ends once no open node may hold a better plan.
    """
    until: list[float] = []
    closed: list[bool] = []

    class Noting:
        def better(self, deadline: float) -> Iterator[EvaluatedPlan]:
            until.append(deadline - time.monotonic())
            return iter(())

        def offer(self, plan: EvaluatedPlan) -> None:
            """Nothing starts from it."""

        def close(self) -> None:
            closed.append(True)

    questions = Spaces(MODEL, CLUSTER, JOB)
    search = PlanSearch(Limits(100.0), cluster_of=questions.cluster_of)
    search.improver = cast(improving.Improver, Noting())
    search.pace = cast(Pace, SimpleNamespace(finish=lambda _: 90.0))
    search.submit(worst_plan(questions))
    search.search_locally()
    assert until[0] <= 100 - 90 + SLACK
    assert closed
    assert search.improver is None
