"""Check of a schedule before ranks start: complete, and free of deadlocks, collectives included."""

import pytest

from pipeplan.core.errors import PlanError
from pipeplan.core.schedule import Schedule
from pipeplan.schedules import FAMILIES
from pipeplan_executor.runtime.program.lower import lower
from pipeplan_executor.runtime.program.order import find_owners


def of(*lines: str) -> Schedule:
    """A schedule from one line of actions per rank."""
    return Schedule.from_text("test", lines)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("replicas", [(1, 1, 1), (3,), (2, 1), (1, 3), (2, 3, 2)])
@pytest.mark.parametrize("micro_batches", [1, 2, 7])
def test_families_can_be_run(family: str, replicas: tuple[int, ...], micro_batches: int) -> None:
    """Whatever a family writes passes, and replica j owns the micro-batches j, j + r, …"""
    schedule = FAMILIES[family].write(replicas, micro_batches)
    owners = find_owners(schedule)
    lower(schedule, lambda _: False)
    ranks = schedule.homes
    assert tuple(map(len, ranks)) == replicas
    assert all(rank == ranks[s][m % replicas[s]] for (s, m), rank in owners.items())


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (("0F0 0B0", "0F1 0B1 0R"), "stage 0 is on ranks .* 0R is missing on rank 0"),
        (("0F0 0B0 0R 0U", "0F1 0B1 0R"), "0U is missing on rank 1"),
        (("0F0 0R", "0B0 0R"), "spread over ranks"),
        (("0F0 0B0 0U 0U",), "0U stands 2 times"),
        (("0F0 0F0 0B0",), "stage 0, micro-batch 0: the schedule has B F F"),
        (("0F0 0B0", "1F0 1B0", ""), "rank 2 has nothing to do"),
        (("0F0 0F0.1 0B0.1",), "stage 0, micro-batch 0, slice 0: the schedule has F;"),
    ],
)
def test_what_is_wrong_is_named(lines: tuple[str, ...], said: str) -> None:
    """Missing, doubled and scattered actions are refused, with what and where."""
    with pytest.raises(PlanError, match=said):
        find_owners(of(*lines))


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (("0F0 0B0 0U", "1B0 1F0 1U"), "1B0 stands ahead of 1F0 in device 1's list"),
        (("0F0 1F0 1B0 0B0 0R 1R", "0F1 1F1 1B1 0B1 1R 0R"), "device 0 waits at 0R for 0R on device 1"),
        (("0F0 0B0 0R", "0R 0F1 0B1"), "device 1 waits at 0R for 1 more backward actions of stage 0"),
        (("0F0 0B0 0U 0R", "0F1 0B1 0U 0R"), "device 0 waits at 0U for 0R"),
    ],
)
def test_circles_are_named(lines: tuple[str, ...], said: str) -> None:
    """Deadlocks are refused, with the action that each rank waits for."""
    with pytest.raises(PlanError, match=said):
        lower(of(*lines), lambda _: False)


def test_sharded_updates_are_collective() -> None:
    """Updates in different orders pass if replicas update independently, and not if they exchange shares."""
    schedule = of("0F0 1F0 1B0 0B0 0R 1R 0U 1U", "0F1 1F1 1B1 0B1 0R 1R 1U 0U")
    lower(schedule, lambda _: False)
    with pytest.raises(PlanError, match="device 0 waits at 0U for 0U on device 1"):
        lower(schedule, lambda _: False, zero1=True)
