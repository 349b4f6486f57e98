"""Periods of small pipelines by hand."""

from dataclasses import replace

import pytest

from helpers.pipelines import line
from pipeplan.core.cluster import Overlap
from pipeplan.core.pipeline import Pipeline, Stage
from pipeplan.schedules import FAMILIES
from pipeplan.simulate import longest_path, makespan, period
from pipeplan.simulate.long_run import earliest_starts, long_run
from pipeplan.simulate.recurrence import period as without_lists


def stages(*each: Stage) -> Pipeline:
    """These stages, one per device, with links that take no time."""
    return replace(line(len(each), 0, 0), stages=each)


def both(pipeline: Pipeline, micro_batches: int) -> tuple[int, int]:
    """Step time and period of 1F1B-SNO."""
    family = FAMILIES["1f1b-sno"]
    schedule = family.write(pipeline.replicas, micro_batches)
    value = period(schedule, pipeline)
    assert without_lists(pipeline, micro_batches, family.in_flight(pipeline.replicas, micro_batches)) == value
    return makespan(schedule, pipeline), value


@pytest.mark.parametrize(
    ("overlap", "occupancy", "begin"),
    [(Overlap.COPY, 6, 19), (Overlap.NONE, 6, 19), (Overlap.STREAM, 6, 13), (Overlap.STREAM, 12, 15)],
)
def test_a_stage_may_begin_when_its_first_tensor_may_be_there(overlap: Overlap, occupancy: int, begin: int) -> None:
    """Behind a forward of 10 ns, its send and a latency of 3 ns; a tensor that streams is sent meanwhile."""
    assert earliest_starts(line(2, 10, 10, occupancy=occupancy, latency=3, overlap=overlap)) == [0, begin]


def test_an_update_beside_the_first_stages_next_forward_is_hidden() -> None:
    """Stage 1 updates while stage 0 sends its gradients back, updates, and runs the next forward."""
    assert both(stages(Stage(5, 5), Stage(1, 1, update=14)), 1) == (21, 16)
    assert both(stages(Stage(5, 5), Stage(1, 1, update=10)), 1) == (17, 12)
    assert both(stages(Stage(5, 5), Stage(1, 1, update=11)), 1) == (18, 13)


def test_the_update_of_the_first_stage_is_never_hidden() -> None:
    """All stages wait for the first forward of the next step."""
    assert both(stages(Stage(5, 5, update=100), Stage(1, 1)), 2) == (120, 120)


def test_a_stage_alone_takes_its_work_and_its_update() -> None:
    """A long run of one stage is step after step."""
    assert both(stages(Stage(5, 6, update=7)), 3) == (40, 40)


def test_stages_that_sum_together_wait_for_each_other() -> None:
    """With tied weights every stage's sum begins with the last one's, and only updates are hidden."""
    pipeline = stages(Stage(5, 5, reduce=3), Stage(1, 1, reduce=3, update=100))
    tied = replace(pipeline, tied=((0, 1),))
    counts = FAMILIES["1f1b-sno"].in_flight((1, 1), 1)
    assert without_lists(tied, 1, counts) == 1 + 1 + 5 + 3 + 100


@pytest.mark.parametrize("to", [0, 1])
def test_a_longest_path_may_end_with_a_stage(to: int) -> None:
    """The path to a stage's update, not to the step's last one."""
    pipeline = stages(Stage(5, 5), Stage(1, 1, update=14))
    path = longest_path(FAMILIES["1f1b-sno"].write((1, 1), 1), pipeline, to=to)
    assert path[-1].end == (12, 21)[to]


def test_a_period_is_the_average_of_steps_rounded_up() -> None:
    """Steps that take 3 and 4 ns in turn make a period of 4 ns, not of 3."""
    turns = {0: (3, 5), 2: (4, 4)}  # by how much stage 1 begins later: the ends of both lists
    assert long_run(lambda late: turns[late[1]], first=(0,), earliest=(0, 0), gathers=(0, 0)) == 4
