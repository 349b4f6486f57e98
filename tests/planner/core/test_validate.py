"""Errors of the validator for schedules and plans."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from helpers.instances import equal_devices, model_of
from helpers.pipelines import line
from pipeplan.core.cluster import Cluster, Overlap
from pipeplan.core.errors import PlanError
from pipeplan.core.model import Model
from pipeplan.core.pipeline import Pipeline, Stage
from pipeplan.core.plan import Plan
from pipeplan.core.schedule import Schedule
from pipeplan.core.shared_weights import with_reductions
from pipeplan.core.validate import deadlock, validate_memory, validate_plan, validate_schedule
from pipeplan.core.validate.memory import most_in_flight
from pipeplan.core.validate.schedule import misplaced
from pipeplan.costs.chain import UNLIMITED
from pipeplan.schedules import FAMILIES
from pipeplan.simulate.fit import check_actions
from pipeplan.solve import solve


def lists(*orders: str) -> Schedule:
    """A schedule from its text."""
    return Schedule.from_text("by hand", orders)


def violations(check: Callable[..., object], *what: Any) -> list[str]:
    """The lines of the error, without its first."""
    with pytest.raises(PlanError) as error:
        check(*what)
    return [text.strip() for text in str(error.value).splitlines()[1:]]


def test_every_violation_is_listed_at_once() -> None:
    """Missing, doubled, unknown and strayed actions and two kinds of backward all stand in one error."""
    schedule = lists("0F0 0F0 0B0 0B1 0F1 1B1", "1F0 1B0 1I0 1F1 1F7 4F0")
    assert violations(validate_schedule, schedule, 2, 2) == [
        "1B1 stands on device 0, but device 1 owns stage 1; move it there",
        "1F7 on device 1: there are micro-batches 0 to 1 only",
        "4F0 on device 1: there are stages 0 to 1 only",
        "0F0 is there 2 times; keep one",
        "1I0 stands beside the joined backward 1B0; drop one of them",
        "0B1 stands ahead of 0F1 in device 0's list; exchange them",
    ]


def test_missing_actions_are_named() -> None:
    """A forward, a backward, half of a split backward and one stage's update, each by its name."""
    schedule = lists("0F0 0F1 0I0 0W0 0I1 0U", "1F0 1B0")
    assert violations(validate_schedule, schedule, 2, 2) == [
        "0I1 has no 0W1",
        "1F1 is missing",
        "1B1 is missing (or 1I1 and 1W1)",
        "stage 1 has no update, while stage 0 has one; add 1U",
    ]


def test_a_deadlock_names_who_waits_for_whom() -> None:
    """Every device that cannot finish gets a line."""
    schedule = lists("0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1")
    assert violations(validate_schedule, schedule, 2, 2) == [
        "device 0 waits at 0B0 for 1B0 or 1I0, which waits in turn; move it ahead",
        "device 1 waits at 1F1 for 0F1, which waits in turn; move it ahead",
    ]


def test_arrivals_at_a_collective_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not asked of all replicas by each of them: with n replicas about n questions, not n squared."""
    asked, has_come = [], deadlock._Replay._has_come

    def counted(*question: Any) -> bool:
        asked.append(question)
        return has_come(*question)

    monkeypatch.setattr(deadlock._Replay, "_has_come", counted)
    replicas = 400
    schedule = with_reductions(FAMILIES["1f1b-sno"].write((replicas,), replicas), [(0,)])
    assert not list(deadlock.deadlocks(schedule, sharded=True))
    assert replicas <= len(asked) <= 8 * replicas


class Device(int):
    """A device that counts how often it is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Device.compared += 1
        return int(self) == other

    __hash__ = int.__hash__


def test_homes_of_actions_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not sought among all replicas of a stage: with n replicas a few comparisons each, not n."""
    replicas = 400
    schedule = with_reductions(FAMILIES["1f1b-sno"].write((replicas,), replicas), [(0,)])
    homes = [tuple(map(Device, range(replicas)))]
    monkeypatch.setattr(Device, "compared", 0)
    assert not list(misplaced(schedule, 1, replicas, homes))
    check_actions(schedule, replace(pipeline_of_replicas(replicas), placement=tuple(homes)))
    assert replicas <= Device.compared <= 20 * replicas


def pipeline_of_replicas(replicas: int) -> Pipeline:
    """One stage of so many replicas."""
    place = (tuple(range(replicas)),)
    return Pipeline((Stage(1, 2),), place, (), (), Overlap.COPY, (0,) * replicas, (UNLIMITED,) * replicas)


def test_two_lanes_must_run_on_one() -> None:
    """Lists that end only where forwards run beside backwards are refused: a runtime may have one lane."""
    schedule = lists("0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1")
    with pytest.raises(PlanError, match="device 0 waits at 0B0"):
        validate_schedule(replace(schedule, two_lanes=True), 2, 2)


def test_copies_of_weights_are_summed_in_one_order() -> None:
    """Devices that begin the sums of two groups of tied stages in opposite orders wait for each other for ever."""
    schedule = lists("0F0 1F0 1B0 0B0 0R 1R", "2F0 3F0 3B0 2B0 3R 2R")
    validate_schedule(schedule, 4, 1, tied=((0, 3), (1, 2)))
    with pytest.raises(PlanError, match="device 0 waits at 0R for 2R on device 1"):
        validate_schedule(schedule, 4, 1, tied=((0, 2), (1, 3)))


def test_an_update_waits_for_every_backward_and_the_reduction() -> None:
    """An update ahead of a backward or of its reduction never runs."""
    assert violations(validate_schedule, lists("0F0 0U 0B0"), 1, 1) == [
        "device 0 waits at 0U for 1 more backward actions of stage 0, which waits in turn; move it ahead"
    ]
    assert "0U for 0R" in violations(validate_schedule, lists("0F0 0B0 0U 0R"), 1, 1)[0]
    validate_schedule(lists("0F0 0I0 0W0 0R 0U"), 1, 1)


def test_slices_go_up_forward_and_down_backward() -> None:
    """A slice's forward follows the slice before it, its backward the slice behind it."""
    validate_schedule(lists("0F0 0F0.1 0B0.1 0B0"), 1, 1)
    assert violations(validate_schedule, lists("0F0 0F0.1 0B0 0B0.1"), 1, 1) == [
        "device 0 waits at 0B0 for 0B0.1 or 0I0.1, which waits in turn; move it ahead"
    ]
    assert violations(validate_schedule, lists("0F0.1 0F0 0B0.1 0B0"), 1, 1)[0].startswith(
        "device 0 waits at 0F0.1 for"
    )


def test_long_lists_of_violations_are_cut() -> None:
    """An error stays readable, and counts what it leaves out."""
    lines = violations(validate_schedule, Schedule("empty", ((),)), 10, 10)
    assert lines[-1] == "and 160 more"


def test_memory_is_counted_against_the_limit() -> None:
    """A device over its limit is named with what it holds in flight; within it, the peaks are returned."""
    schedule, pipeline = FAMILIES["gpipe"].write((1, 1), 6), line(2, 1, 1, held=2**20)
    assert validate_memory(schedule, pipeline) == (6 * 2**20, 6 * 2**20)
    tight = replace(pipeline, limits=(6 * 2**20, 5 * 2**20))
    (fault,) = violations(validate_memory, schedule, tight)
    assert fault.startswith("device 1 holds 6.00 MiB of 5.00 MiB, with micro-batches in flight: 6 of stage 1;")


@pytest.fixture(scope="module")
def answer() -> tuple[Plan, Model, Cluster]:
    """A solved plan of two stages, with its questions."""
    model = model_of([4, 4, 4, 4], saved=[1000] * 4, parameters=[400] * 4)
    cluster = equal_devices(2, memory=10**6)
    return solve(model, cluster, 4, depths=(2,)).plan, model, cluster


def test_a_solved_plan_is_sound(answer: tuple[Plan, Model, Cluster]) -> None:
    """A plan that `solve` returns passes."""
    validate_plan(*answer)


def spoil(plan: Plan, **stage: Any) -> Plan:
    """The plan with fields of its first stage replaced."""
    return replace(plan, stages=(replace(plan.stages[0], **stage), *plan.stages[1:]))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda p: replace(p, fingerprint="0"), "made for another model"),
        (lambda p: spoil(p, layers=p.stages[0].layers[:-1]), "1 layers are in no stage"),
        (lambda p: spoil(p, layers=(*p.stages[0].layers, "l3")), "in several stages: l3"),
        (lambda p: spoil(p, layers=(*p.stages[0].layers, "x")), "not in the model: x"),
        (lambda p: spoil(p, layers=p.stages[0].layers[::-1]), "leave the model's order at layer 'l0'"),
        (lambda p: replace(p, device_kinds=("v100", "v100")), "made for devices v100, v100"),
        (lambda p: spoil(p, devices=(1,)), "uses device 1 2 times"),
        (lambda p: spoil(p, devices=(7,)), "uses device 7; the cluster has devices 0 to 1"),
        (lambda p: replace(p, ranks=(0,)), "2 lists of actions for 1 ranks"),
        (lambda p: replace(p, ranks=(1, 0)), "stage 0 is timed for rank 0 on device 1, but says that it is on device"),
        (lambda p: replace(p, micro_batches=2), "4 micro-batches, but 2 of 1 samples make its batch of 2"),
        (lambda p: replace(p, bound=p.step_time + 1), "lies above its step time"),
        (lambda p: replace(p, step_time=1, bound=1), "alone takes longer than the step time"),
        (lambda p: spoil(p, forward=1), "but was simulated with 8"),
        (lambda p: spoil(p, in_flight=1), "says that it holds 1 micro-batches; its list makes it hold"),
        (lambda p: spoil(p, memory=replace(p.stages[0].memory, activations=0)), "micro-batches in flight it needs"),
        (lambda p: spoil(p, memory=replace(p.stages[0].memory, optimizer=10**6)), "of device 0's 976.56 KiB: weights"),
        (lambda p: replace(p, pipeline=replace(p.pipeline, limits=(1, 1))), "device 1 holds"),
        (lambda p: replace(p, schedule=lists("0F0 0F1 0F2 0F3 0B0", "1F0")), "0B3 is missing"),
    ],
)
def test_a_spoilt_plan_is_refused(
    answer: tuple[Plan, Model, Cluster], change: Callable[[Plan], Plan], says: str
) -> None:
    """Each broken rule is named with its numbers."""
    plan, model, cluster = answer
    with pytest.raises(PlanError) as error:
        validate_plan(change(plan), model, cluster)
    assert says in str(error.value)


def test_a_micro_batch_is_in_flight_until_the_backward_of_its_first_slice() -> None:
    """The backward of the last slice, which comes first, frees none of the others."""
    (order,) = lists("0F0.0 0F0.1 0B0.1 0F1.0 0B0.0 0F1.1 0B1.1 0B1.0").orders
    assert most_in_flight(order, 0) == 2
