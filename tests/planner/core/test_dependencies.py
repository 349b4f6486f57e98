"""Dependencies of actions: the same in the executor, the simulator and the scheduling problem."""

from dataclasses import replace

import pytest

from helpers.pipelines import line
from pipeplan.core.schedule import Action, Schedule, find_readers
from pipeplan.search.scheduling.instance import schedule_problem
from pipeplan.simulate.structure import find_structure


def test_tensors_are_read_by_the_neighbouring_stage() -> None:
    """Activations by the next stage's forward, gradients by the backward of either kind ahead, slice by slice."""
    lists = ["0F0 0F0.1 0I0.1 0I0 0W0 0W0.1 0U", "1F0 1F0.1 1B0.1 1B0 1U"]
    found = find_readers(Schedule.from_text("sliced", lists).actions())
    assert {str(made): str(reader) for made, reader in found.items()} == {
        "0F0": "1F0",
        "0F0.1": "1F0.1",
        "1B0": "0I0",
        "1B0.1": "0I0.1",
    }


@pytest.mark.parametrize("split", [False, True])
def test_simulator_and_scheduling_problem_wait_for_the_same(split: bool) -> None:
    """Three stages, two micro-batches: each action of the one has the inputs that it has in the other."""
    back = "I{0} W{0}" if split else "B{0}"
    rows = [" ".join(f"F{m} " + back.format(m) for m in range(2)) for _ in range(3)]
    lists = [" ".join(f"{s}{word}" for word in row.split()) for s, row in enumerate(rows)]
    pipeline = line(3, 10, 20)
    stages = tuple(replace(stage, input_gradient=10, weight_gradient=10) for stage in pipeline.stages)
    pipeline = replace(pipeline, stages=stages)
    structure = find_structure(Schedule.from_text("lists", lists), pipeline)
    n = len(structure.actions)
    problem = schedule_problem(pipeline, 2, split)
    for action, signals in zip(structure.actions, structure.needs, strict=True):
        inputs = problem.inputs[action.kind.part, action.stage]
        waited = [structure.actions[signal % n] for signal in signals]
        assert [((each.kind.part, each.stage), each.micro_batch) for each in waited] == [
            (row, action.micro_batch) for row, _ in inputs
        ]
        assert [signal >= n for signal in signals] == [row[1] != action.stage for row, _ in inputs]
    assert structure.needs[structure.actions.index(Action.parse("0F0"))] == ()
