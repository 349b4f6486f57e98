"""Path cuts: exact where they were found, and bounds everywhere else."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines import line
from pipeplan.cluster import Overlap
from pipeplan.errors import PlanError
from pipeplan.paths import path_cut
from pipeplan.pipeline import Pipeline
from pipeplan.schedule import Schedule
from pipeplan.schedules import FAMILIES
from pipeplan.simulate import simulate
from pipeplan_formulations.partition import PathCut
from random_schedules import Placement, Ways, random_pipeline, random_schedule


def length(cut: PathCut, pipeline: Pipeline) -> int:
    """The cut's right side, term by term."""
    stages = pipeline.stages
    terms = [
        (cut.forward, [stage.forward for stage in stages]),
        (cut.backward, [stage.backward for stage in stages]),
        (cut.update, [stage.update for stage in stages]),
        (cut.send, [way.occupancy for (way,) in pipeline.transfers]),
        (cut.send_back, [way.occupancy for (way,) in pipeline.returns]),
    ]
    return cut.constant + sum(a * x for row, values in terms for a, x in zip(row, values, strict=True))


def priced(random: Random, placement: Placement, devices: int, latencies: list[int], wires: bool) -> Pipeline:
    """Random times and transfers; boundary s has latency ``latencies[s]`` both ways. ``wires``: some are shared."""
    pipeline = random_pipeline(random, placement, devices, 0, wires)

    def late(ways: Ways, name: str) -> Ways:
        return tuple(
            tuple(replace(way, latency=latency, resources=(*way.resources, f"{name} {s}")) for way in row)
            for s, (row, latency) in enumerate(zip(ways, latencies, strict=True))
        )

    return replace(pipeline, transfers=late(pipeline.transfers, "down"), returns=late(pipeline.returns, "up"))


def check(random: Random, schedule: Schedule, placement: Placement, devices: int) -> None:
    """Found at one pipeline, held at others with the same latencies and overlap, whatever wires they share."""
    latencies = [random.randint(0, 9) for _ in placement[1:]]
    here = priced(random, placement, devices, latencies, wires=False)
    timeline = simulate(schedule, here, share=False)
    cut = path_cut(timeline, here, schedule)
    assert length(cut, here) == timeline.makespan
    for _ in range(4):
        there = replace(priced(random, placement, devices, latencies, wires=True), overlap=here.overlap)
        relaxed, shared = (simulate(schedule, there, share=share).makespan for share in (False, True))
        assert length(cut, there) <= relaxed <= shared


@given(st.integers(0, 2**32), st.sampled_from(sorted(FAMILIES)), st.integers(1, 5), st.integers(1, 8))
@settings(max_examples=300)
def test_cuts_of_families(seed: int, name: str, stages: int, micro_batches: int) -> None:
    """Every family and overlap, with latencies of their own and shared wires elsewhere."""
    check(Random(seed), FAMILIES[name].write((1,) * stages, micro_batches), tuple((s,) for s in range(stages)), stages)


@given(st.integers(0, 2**32))
@settings(max_examples=300)
def test_cuts_of_any_order(seed: int) -> None:
    """Joined backwards in any order, several stages on a device, one lane or two."""
    random = Random(seed)
    devices = random.randint(1, 3)
    placement = tuple((random.randrange(devices),) for _ in range(random.randint(1, 4)))
    schedule = random_schedule(random, placement, devices, joined=True, reduces=False)
    check(random, schedule, placement, devices)


def test_a_cut_reads_as_drawn() -> None:
    """The picture of `pipeplan.paths`: one micro-batch more on the last stage is what the path waits for."""
    pipeline = line(2, 0, 0, times=[(1, 1), (5, 5)], occupancy=2, latency=3)
    schedule = FAMILIES["gpipe"].write((1, 1), 2)
    cut = path_cut(simulate(schedule, pipeline, share=False), pipeline, schedule)
    assert cut == PathCut(forward=(1, 2), backward=(1, 2), update=(1, 0), send=(1,), send_back=(1,), constant=6)


def test_a_streamed_tensor_counts_instead_of_its_action() -> None:
    """Where sending takes longer than making, the path goes from the action's start through the send."""
    pipeline = line(2, 4, 6, occupancy=9, latency=1, overlap=Overlap.STREAM)
    schedule = FAMILIES["1f1b-as"].write((1, 1), 1)
    cut = path_cut(simulate(schedule, pipeline, share=False), pipeline, schedule)
    assert cut == PathCut(forward=(0, 1), backward=(1, 0), update=(1, 0), send=(1,), send_back=(1,), constant=2)


def test_paths_without_a_term_are_refused() -> None:
    """A split backward on the path, or two boundaries on one wire, raise an error that says so."""
    split = Schedule.from_text("split", ["0F0 0I0 0W0"])
    pipeline = line(1, 1, 1)
    pipeline = replace(pipeline, stages=(replace(pipeline.stages[0], input_gradient=1, weight_gradient=1),))
    with pytest.raises(PlanError, match="0I0, for which the partition problem has no term"):
        path_cut(simulate(split, pipeline, share=False), pipeline, split)
    pipeline = line(3, 1, 1, occupancy=10, resource="card")
    schedule = FAMILIES["gpipe"].write((1,) * 3, 4)
    with pytest.raises(PlanError, match="share=False"):
        path_cut(simulate(schedule, pipeline), pipeline, schedule)
    assert path_cut(simulate(schedule, pipeline, share=False), pipeline, schedule).send != ()
