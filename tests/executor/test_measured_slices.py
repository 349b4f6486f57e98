"""`profile --slices`: slices are measured as they run, and a model that cannot be cut is refused before that."""

from collections import OrderedDict
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from helpers.distributed import models
from helpers.shared_data import ROOT
from pipeplan.core.errors import InputError, PlanError
from pipeplan.frontend.capture.front_ends import capture_layers
from pipeplan.frontend.profile import profile, slices
from pipeplan.frontend.profile.profiling import drawing
from pipeplan.frontend.profile.slices import Cut
from pipeplan.frontend.workload import Workload
from pipeplan.io.model_file import model_data, model_from_data
from pipeplan_executor.calibrate.slices import slice_layers


def measured(workload: Workload, counts: tuple[int, ...], **how: Any) -> Any:
    """The profile with slices."""
    draw, how = drawing(workload, 0), {"micro_batches": (1,)} | how
    return profile(workload.module, draw, loss=workload.loss, slices=counts, repeats=1, warmup=0, **how)


@pytest.fixture(autouse=True)
def runner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices run as the executor announces."""
    text = (ROOT / "pyproject.toml").read_text()
    assert f'[project.entry-points."{slices.GROUP}"]\nexecutor = "{slice_layers.__module__}:slice_layers"' in text
    monkeypatch.setattr(slices, "slice_runner", lambda: slice_layers)


@pytest.mark.parametrize("sizes", [(1,), pytest.param((1, 2), marks=pytest.mark.slow)])
def test_slices_are_measured_and_kept_in_the_file(sizes: tuple[int, ...]) -> None:
    """The first and the last of each length at each size; keys and values count as saved; the module is as before."""
    workload = models.wide_decoder()
    before = {name: value.clone() for name, value in workload.module.state_dict().items()}
    model = measured(workload, (1, 4), micro_batches=sizes)
    assert [(own.micro_batch, own.tokens) for own in model.slice_profiles] == [(size, 2) for size in sizes]
    one, more = model.slice_profiles[0], model.slice_profiles[-1]
    assert all(cost.forward > 0 for cost in (*one.first, *one.last))
    assert [max(sizes) * cost.output for cost in one.first] == [cost.output for cost in more.last]
    part = [4 * cost.output for cost in one.first]
    assert part == [cost.output for cost in model.profiles[0].costs]
    graph = model.operators[model.layers[1].operators]
    keys = sum(each.attention.keys for each in graph.operators if each.attention is not None)
    assert keys > 0 and one.first[1].saved > keys // 4
    assert model_from_data(model_data(model), "x.yaml") == model
    assert all(torch.equal(before[name], value) for name, value in workload.module.state_dict().items())


def test_the_first_slice_computes_what_whole_sequences_do() -> None:
    """Outputs and loss of the tokens before a cut; a later slice has their shapes, and gradients go back."""
    workload = models.wide_decoder()
    inputs, targets = workload.draw(2, torch.Generator().manual_seed(0))
    sequence = capture_layers(workload.module, inputs, both_modes=False)
    wanted = workload.module(inputs)
    tokens = wanted.shape[1]
    cuts = [Cut((2, tokens - 2), 0), Cut((2, tokens - 2), 1)]
    for (layers, loss), cut in zip(
        slice_layers(workload.module, sequence, inputs, targets, workload.loss, cuts, nullcontext), cuts, strict=True
    ):
        for _ in range(2):  # as often as it is measured
            made = (inputs,)
            for layer in layers:
                made = layer(*made)
            assert made[0].shape[1] == cut.tokens[cut.number]
            if cut.number == 0:
                assert torch.allclose(made[0], wanted[:, :2], atol=1e-6)
            assert loss is not None
            loss(made, targets).backward()
    assert all(parameter.grad is not None for parameter in workload.module.parameters())


class Pooled(nn.Module):
    """A mean over tokens."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what all tokens get alike."""
        return x + x.mean(1, keepdim=True)


def test_what_cannot_be_measured_is_refused_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers that do not divide, models that mix tokens or have none, the meta device, no package that runs slices."""
    rounds: list[str] = []
    with pytest.raises(InputError, match="nearest numbers that do are"):
        measured(models.wide_decoder(), (3,), on_progress=rounds.append)
    parts = dict(models.wide_decoder().module.named_children())
    pooled = replace(models.wide_decoder(), module=nn.Sequential(OrderedDict(parts | {"norm": Pooled()})))
    with pytest.raises(PlanError, match="needs other tokens than its own"):
        measured(pooled, (2,), on_progress=rounds.append)
    plain = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(InputError, match="nothing to cut"):
        profile(plain, torch.zeros(2, 4), slices=(2,), on_progress=rounds.append)
    with pytest.raises(InputError, match="on meta nothing is measured, slices neither"):
        measured(models.wide_decoder(), (2,), device="meta", micro_batches=(1,))
    monkeypatch.undo()
    monkeypatch.setattr(slices, "entry_points", lambda group: ())
    with pytest.raises(InputError, match="package pipeplan_executor, which is not installed"):
        measured(models.wide_decoder(), (2,), on_progress=rounds.append)
    assert not rounds
