"""Lists of like lanes, which are made when they are read."""

import pickle
from dataclasses import replace
from itertools import product

import pytest

from helpers.placed import equal_stages
from pipeplan.core.schedule import Kind, LikeLists, Schedule
from pipeplan.core.validate import validate_schedule
from pipeplan.core.validate.lanes import like_lanes
from pipeplan.schedules import FAMILIES, PLACED
from pipeplan.simulate import makespan
from pipeplan.simulate.islands import longest_makespan


def lists(*lines: str) -> tuple:
    """Lists written as text."""
    return Schedule.from_text("by hand", lines).orders


def test_lists_of_two_lanes_as_drawn() -> None:
    """The lanes take turns: device 2 t + j has list t with micro-batches 2 m + j; what runs once keeps its batch."""
    found = Schedule("by hand", LikeLists(lists("0F0 0F1 0I0 0W0 0B1 0R 0U", "1F0 1F1 1B0 1B1"), 2))
    assert found.as_text() == (
        "0F0 0F2 0I0 0W0 0B2 0R 0U",
        "0F1 0F3 0I1 0W1 0B3 0R 0U",
        "1F0 1F2 1B0 1B2",
        "1F1 1F3 1B1 1B3",
    )
    plain = replace(found, orders=tuple(found.orders))
    assert plain == found == pickle.loads(pickle.dumps(found))
    assert hash(plain) == hash(found)
    assert found.orders[1:3] == plain.orders[1:3]
    assert found.orders[-1] == plain.orders[-1]
    assert found != replace(found, orders=LikeLists(found.first_lists, 3)) != plain
    with pytest.raises(IndexError):
        found.orders[4]
    for each in (plain, found):
        assert (each.stages, each.micro_batches, each.batches, each.slices, each.homes) == (
            2,
            4,
            1,
            1,
            ((0, 1), (2, 3)),
        )
        assert each.stages_with(Kind.WEIGHT_GRADIENT) == {0}
    assert (plain.lanes, found.lanes) == (1, 2)


@pytest.mark.parametrize("name", sorted(PLACED))
def test_copies_of_a_pipeline_are_lanes(name: str) -> None:
    """Written out, lists are complete and alike, and they take as long as one lane; with a micro-batch less too."""
    family = PLACED[name]
    for copies, many in product((1, 2, 4, 6), (6, 8, 10, 12)):
        schedule, placement = family.write(4, many, copies=copies), family.placement(4, copies=copies)
        plain = replace(schedule, orders=tuple(schedule.orders))
        validate_schedule(plain, len(placement), many, placement)
        assert like_lanes(plain, placement) == like_lanes(schedule, placement)
        pipeline = equal_stages(placement, 3, 2, 4)
        assert makespan(plain, pipeline) == longest_makespan(schedule, pipeline) == longest_makespan(plain, pipeline)


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_replicas_with_a_common_divisor_are_lanes(name: str) -> None:
    """Also of unlike widths."""
    for replicas, many in product(((2, 4), (6, 3, 3), (4, 4)), (12, 13, 14)):
        schedule = FAMILIES[name].write(replicas, many)
        homes = [[*range(sum(replicas[:s]), sum(replicas[: s + 1]))] for s in range(len(replicas))]
        plain = replace(schedule, orders=tuple(schedule.orders))
        validate_schedule(plain, len(replicas), many, homes)
        assert like_lanes(plain, homes) == like_lanes(schedule, homes) == schedule.lanes
        other = [row[::-1] for row in homes]
        assert like_lanes(plain, other) == like_lanes(schedule, other) == 1


def test_lanes_that_are_unlike_are_simulated_each() -> None:
    """Of 4 lanes that share no link, 0 and 1 are alike, and so are 2 and 3, which take less time."""
    own = lists("0F0 0B0 0F2 0B2 0R", "0F1 0F3 0B1 0B3 0R", "1F0 1B0 1F2 1B2 1R", "1F1 1F3 1B1 1B3 1R")
    found, pipeline = Schedule("by hand", LikeLists(own, 2)), equal_stages(((0, 1, 2, 3), (4, 5, 6, 7)), 3, 2, 4)
    assert longest_makespan(found, pipeline) == makespan(found, pipeline) == 36
