"""Steps without a flush: a batch begins beside the end of the one before it, and its update waits for the next one."""

import pytest

from pipeplan.core.errors import InputError, PlanError
from pipeplan.core.schedule import Action, Kind, Schedule
from pipeplan.schedules import FAMILIES
from pipeplan_executor.runtime.program import rolling
from pipeplan_executor.runtime.program.lower import Receive, Send, Settle, Step
from pipeplan_executor.runtime.program.rolling import RollingSteps, lower_rolling


def lowered(replicas: tuple[int, ...], many: int, zero1: bool = False, small: bool = True) -> tuple[RollingSteps, ...]:
    return lower_rolling(FAMILIES["1f1b-sno"].write(replicas, many), lambda _: small, zero1)


def said(steps: tuple[Step, ...]) -> str:
    """The actions, with a prime behind those of odd batches."""
    return " ".join(f"{a.kind}{a.micro_batch}" for a in steps if isinstance(a, Action))


def test_the_first_stage_begins_a_batch_while_the_last_one_ends() -> None:
    """Of two stages and two micro-batches: numbers 2 and 3 are those of the odd batch."""
    first, last = lowered((1, 1), 2)
    assert said(first.first) == "F0 F1 B0"
    assert [said(each) for each in first.then] == ["F0 B3 F1 B0 U2", "F2 B1 F3 B2 U0"]
    assert [said(each) for each in first.last] == ["B1 U0", "B3 U2"]
    assert said(last.first) == "F0 B0 F1 B1"
    assert [said(each) for each in last.then] == ["F0 B0 F1 B1 U2", "F2 B2 F3 B3 U0"]
    assert [said(each) for each in last.last] == ["U0", "U2"]


def test_sums_leave_at_once_and_updates_leave_time_for_gathers() -> None:
    """Two replicas: R behind the last backward, U behind the next batch's; with shares half-way, as gathers follow."""
    assert said(lowered((2,), 4)[0].then[0]) == "F0 B0 F2 B2 R0 U4"
    assert said(lowered((2,), 4, zero1=True)[0].then[0]) == "F0 B0 F2 U4 B2 R0"


@pytest.mark.parametrize("small", [True, False])
def test_a_batch_finds_the_receive_of_its_first_tensor_posted(small: bool) -> None:
    """Behind the first stage it stands in the steps of the batch before, at least one pass ahead of the tensor."""
    _, *later = lowered((1, 2, 1), 6, small=small)
    for each in later:
        reads = next(step for step in each.then[1] if isinstance(step, Action))
        places = [n for n, s in enumerate(each.then[0]) if isinstance(s, Receive) and s.message.reads == reads]
        assert len(places) == 1
        assert any(isinstance(s, Action) and s.kind is not Kind.UPDATE for s in each.then[0][places[0] :])


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize(("replicas", "many"), [((1, 1, 1), 3), ((2, 1), 4), ((1, 2, 1), 6), ((4,), 4)])
def test_every_batch_in_the_middle_is_alike(
    replicas: tuple[int, ...], many: int, small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More batches give the same steps, and each message is sent and received once, in one order."""
    few = lowered(replicas, many, small=small)
    monkeypatch.setattr(rolling, "BATCHES", 7)
    assert lowered(replicas, many, small=small) == few
    for odd in (False, True):
        between = [(*one.then[1], *one.then[0]) if odd else () for one in few]
        rows = [(*one.first, *row, *one.last[0], *one.ahead[0]) for one, row in zip(few, between, strict=True)]
        sent = [[each.message for each in row if isinstance(each, Send)] for row in rows]
        received = [each.message for row in rows for each in row if isinstance(each, Receive)]
        assert len(received) == sum(map(len, sent))
        for source, messages in enumerate(sent):
            for target in range(len(rows)):
                own = [each for each in received if (each.source, each.target) == (source, target)]
                assert own == [each for each in messages if each.target == target]
    for row in few:  # a tensor is kept for at most two batches
        steps = (*row.first, *row.then[1], *row.then[0], *row.then[1], *row.then[0])
        open_since: dict[object, int] = {}
        for place, step in enumerate(steps):
            if isinstance(step, Send):
                assert step.message not in open_since
                open_since[step.message] = place
            elif isinstance(step, Settle):
                open_since.pop(step.message, None)


@pytest.mark.parametrize(
    ("schedule", "told"),
    [
        (FAMILIES["gpipe"].write((1, 1, 1), 2), "2 micro-batches on 3 stages"),
        (
            Schedule.from_text("both", ["0F0 1F0 0F1 1F1 1B0 0B0 1B1 0B1 0U 1U"]),
            "only lists of 1F1B",
        ),
    ],
)
def test_what_cannot_run_without_a_flush_is_refused(schedule: Schedule, told: str) -> None:
    """Fewer micro-batches than stages, and ranks with several stages."""
    with pytest.raises((InputError, PlanError), match=told):
        lower_rolling(schedule, lambda _: True)


def test_a_common_update_may_not_wait_for_a_later_batch() -> None:
    """Stage 0 holds one micro-batch on each of two replicas, and stage 1 two: it ends a batch in the next one only."""
    orders = ["0F0 0B0 0F2 0B2 0R 0U", "0F1 0B1 0F3 0B3 0R 0U", "1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3 1U"]
    schedule = Schedule.from_text("1f1b", orders)
    lower_rolling(schedule, lambda _: True)
    with pytest.raises(PlanError, match="wait for each other"):
        lower_rolling(schedule, lambda _: True, together=True)
