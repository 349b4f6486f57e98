"""Copies of shared weights: which stages have them, which values they begin with, and what is refused."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from helpers.plans import plan_for
from pipeplan.core.errors import PlanError
from pipeplan.core.schedule import Schedule
from pipeplan.frontend.workload import Workload
from pipeplan.schedules import FAMILIES, PLACED
from pipeplan_executor.runtime.program.lower import lower
from pipeplan_executor.runtime.program.order import find_owners
from pipeplan_executor.stages.split import build_stage, fit
from pipeplan_executor.stages.stage_module import StageModule
from pipeplan_executor.train.reference import materialised
from pipeplan_executor.zoo import decoder

NAMES = ("embedding", "block0", "block1", "norm", "head")


def tied() -> Workload:
    """Two blocks between a tied embedding and head."""
    return decoder(blocks=2, width=8, heads=2, vocabulary=11, length=4, hidden=16, tied=True)


def tied_plan(cuts: tuple[int, ...]):
    """One rank per stage."""
    stages = len(cuts) - 1
    return plan_for(tied().module, NAMES, cuts, FAMILIES["1f1b-sno"].write((1,) * stages, 4))


def test_stages_with_copies_are_found() -> None:
    """Copies on several stages are summed, under each stage's names; on one stage there is nothing to sum."""
    (copies,) = fit(tied_plan((0, 2, 4, 5)), tied).copies
    assert copies.stages == (0, 2)
    assert [copies.on(stage) for stage in range(3)] == [("embedding.tokens.weight",), (), ("head.weight",)]
    assert fit(tied_plan((0, 5)), tied).copies == ()


@pytest.mark.parametrize("source", [tied, tied()])
def test_copies_begin_alike(source) -> None:
    """Drawn on a stage alone or taken from a module, a copy is the unsplit model's matrix to the last bit."""
    plan = tied_plan((0, 2, 5))
    fitted = fit(plan, source)
    whole = materialised(fitted, seed=3)
    assert whole.head.weight is whole.embedding.tokens.weight
    for stage in range(2):
        module = build_stage(fitted, stage, seed=3)
        state = whole.state_dict()
        assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())
        assert not any(parameter.is_meta for parameter in module.parameters())


@pytest.mark.parametrize("left_out", [(), ("head.weight",), ("embedding.tokens.weight",)])
def test_copies_are_read_from_a_file(tmp_path, left_out) -> None:
    """A state-dict file of the unsplit model gives every stage its copy, and one stage one parameter.

    It may have the shared weight under one of its names only.
    """
    state = tied().module.state_dict()
    torch.save({name: value for name, value in state.items() if name not in left_out}, tmp_path / "w.pt")
    fitted = fit(tied_plan((0, 2, 5)), tied)
    last = build_stage(fitted, 1, weights=tmp_path / "w.pt")
    first = build_stage(fitted, 0, weights=tmp_path / "w.pt")
    assert torch.equal(
        dict(last.named_parameters())["head.weight"], dict(first.named_parameters())["embedding.tokens.weight"]
    )
    alone = build_stage(fit(tied_plan((0, 5)), tied), 0, weights=tmp_path / "w.pt")
    assert isinstance(alone, StageModule)
    assert "head.weight" in alone.state_dict()
    assert "head.weight" not in dict(alone.named_parameters())  # it is the embedding's


def test_a_plan_that_does_not_sum_copies_is_refused() -> None:
    """Without the sum, copies would drift apart."""
    plan = tied_plan((0, 2, 5))
    with pytest.raises(PlanError, match=r"between stages none.*lie on"):
        fit(replace(plan, pipeline=replace(plan.pipeline, tied=())), tied)
    untied = decoder(blocks=2, width=8, heads=2, vocabulary=11, length=4, hidden=16)
    with pytest.raises(PlanError, match="another"):
        fit(plan, untied)


def test_tied_stages_reduce_together() -> None:
    """A tied stage without a reduction is refused, and one that would wait in a circle."""
    schedule = FAMILIES["gpipe"].write((1, 1), 2)
    with pytest.raises(PlanError, match="0R is missing on rank 0"):
        find_owners(schedule, ((0, 1),))
    circle = type(schedule).from_text("x", ["0F0 0R 0B0 0U", "1F0 1B0 1R 1U"])
    with pytest.raises(PlanError, match="device 1 waits at 1R for 0R on device 0"):
        lower(circle, lambda _: False, tied=((0, 1),))


def on_one_rank(order: str = ""):
    """A V of two devices, of which the first has both ends; ``order`` replaces its list."""
    schedule = PLACED["zb-v"].write(2, 2)
    if order:
        schedule = Schedule.from_text("by hand", [order, schedule.as_text()[1]])
    return plan_for(tied().module, NAMES, (0, 1, 2, 3, 5), schedule)


def test_stages_of_one_rank_have_one_parameter() -> None:
    """The later stage has it under its name in the state, the earlier one among its parameters; nothing is summed."""
    plan = on_one_rank()
    assert plan.pipeline.tied == ()
    fitted = fit(plan, tied)
    assert fitted.copies == ()
    first = build_stage(fitted, 0, seed=3)
    last = build_stage(fitted, 3, seed=3, others=[first])
    own = dict(first.named_parameters())["embedding.tokens.weight"]
    assert last.layers[-1].weight is own
    assert own not in {*last.parameters()}
    assert {*last.parameters()} == {*last.layers[0].parameters()}
    assert torch.equal(last.state_dict()["head.weight"], own)
    apart = build_stage(fitted, 3, seed=3)
    assert all(torch.equal(value, last.state_dict()[name]) for name, value in apart.state_dict().items())


def test_a_lent_parameter_is_waited_for() -> None:
    """A forward of the stage that borrows it waits for what other replicas still send to its own stage."""
    fitted = fit(on_one_rank(), tied)
    first = build_stage(fitted, 0)
    last = build_stage(fitted, 3, others=[first])
    waited: list[str] = []
    first.arriving[0] = [SimpleNamespace(wait=lambda: waited.append("arrived"))]
    last(torch.zeros(1, 4, 8))
    assert waited == ["arrived"]


def test_a_step_of_common_weights_ends_behind_both_stages() -> None:
    """An update ahead of the other stage's last backward would change what that reads, and miss its gradient."""
    order = "0F0 3F0 3I0 3W0 0I0 0W0 0F1 0U 3F1 3I1 3W1 0I1 0W1 3U"
    with pytest.raises(PlanError, match="0U stands ahead of 3F1 in the list of rank 0, and stage 3 uses"):
        fit(on_one_rank(order), tied)


def shifts(changes: bool) -> Workload:
    """Two layers with one buffer."""

    class Shift(nn.Module):
        def __init__(self, by: Tensor) -> None:
            super().__init__()
            self.register_buffer("by", by)

        def forward(self, x: Tensor) -> Tensor:
            if changes:
                self.by.add_(1)
            return x + self.by

    by = torch.ones(4)
    module = nn.Sequential(nn.Linear(4, 4), Shift(by), nn.Linear(4, 4), Shift(by))
    return Workload(module, lambda n, g: (torch.randn(n, 4, generator=g), torch.zeros(n, 4)), nn.functional.mse_loss)


def test_a_shared_buffer_that_changes_is_refused() -> None:
    """Stages may share a constant buffer, but none that one of them writes into."""
    for changes, cuts in ((False, (0, 2, 4)), (True, (0, 4))):
        workload = shifts(changes)
        plan = plan_for(workload.module, "0123", cuts, FAMILIES["gpipe"].write((1,) * (len(cuts) - 1), 2))
        stages = [build_stage(fit(plan, workload), stage) for stage in range(len(cuts) - 1)]
        assert all(torch.equal(buffer, torch.ones(4)) for stage in stages for buffer in stage.buffers())
    workload = shifts(True)
    plan = plan_for(workload.module, "0123", (0, 2, 4), FAMILIES["gpipe"].write((1, 1), 2))
    with pytest.raises(PlanError, match=r"layers 1 and 3 share a buffer that changes \([13].by\)"):
        fit(plan, workload)
