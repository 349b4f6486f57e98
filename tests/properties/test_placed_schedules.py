"""Families that place stages, at any size."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.placed import placed
from pipeplan.core.pipeline import Stage
from pipeplan.core.validate import validate_memory, validate_schedule
from pipeplan.io.export.torch_csv import schedule_from_torch_csv, torch_csv_text
from pipeplan.schedules import PLACED
from pipeplan.simulate import simulate


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_any_size_ends_within_its_memory(data: st.DataObject) -> None:
    """Complete, without deadlock, and within what ``in_flight`` says for any times, also after a way through torch."""
    family = PLACED[data.draw(st.sampled_from(sorted(PLACED)))]
    devices = data.draw(st.integers(1, 12)) * (2 if family.even else 1)
    chunks = data.draw(st.integers(1, 4)) if family.chunks is None else family.chunks
    micro_batches = data.draw(st.integers(1, 40))
    schedule, placement = family.write(devices, micro_batches, chunks), family.placement(devices, chunks)
    validate_schedule(schedule, len(placement), micro_batches, placement)

    random = data.draw(st.randoms(use_true_random=False))
    halves = [(random.randint(0, 9), random.randint(0, 9)) for _ in placement]
    stages = tuple(Stage(random.randint(0, 9), i + w, i, w, update=1, reduce=1, held=1) for i, w in halves)
    most = family.in_flight(devices, micro_batches, chunks)
    pipeline = replace(placed(placement, stages, random.randint(0, 9)), limits=most)
    assert validate_memory(schedule, pipeline) == most
    timeline = simulate(schedule, pipeline)
    assert all(peak <= limit for peak, limit in zip(timeline.peaks, most, strict=True))
    if all(len(homes) == 1 for homes in placement):
        back = schedule_from_torch_csv(torch_csv_text(schedule), "torch")
        assert simulate(back, pipeline).makespan == timeline.makespan
