"""Plans that say by shards and tokens what is split, as plans with strategies."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.distributed.exchange_workers import plan_of
from helpers.distributed.models import tiny_decoder, tiny_mlp, tiny_tied
from pipeplan.core.errors import PlanError
from pipeplan.core.grouped_axis import ShardAxis
from pipeplan.core.plan import Plan
from pipeplan.core.strategies import UNSPLIT, LayerStrategies
from pipeplan.frontend.operators.program import Program
from pipeplan.frontend.workload import Workload
from pipeplan.io.plan_file import read_plan
from pipeplan_executor.sharding.declared import declared
from pipeplan_executor.sharding.mesh.programs import program
from pipeplan_executor.stages import on_meshes as module
from pipeplan_executor.stages.on_meshes import on_meshes
from pipeplan_executor.stages.split import Fitted, fit
from pipeplan_executor.zoo.decoder import SHARDS


def found(plan: Plan, build: Callable[[], Workload]) -> Fitted:
    """The plan with strategies, and its model."""
    return on_meshes(fit(plan, build), declared(plan), None, torch.device("cpu"))


def split(fitted: Fitted, layer: str) -> set[str]:
    """Operators of a layer that are split."""
    strategies = dict(fitted.plan.strategies)[layer]
    return {name for name, (strategy, _) in strategies.operators.items() if strategy[0].loop != UNSPLIT}


def test_a_plan_is_rewritten_with_words(tmp_path: Path) -> None:
    """What was shards and tokens is strategies on a mesh of one axis, also in its file; it is run as it was planned."""
    fitted = found(plan_of(tiny_decoder, SHARDS, lambda layers: layers[1:-1], "ring"), tiny_decoder)
    plan = fitted.plan
    assert not (fitted.kept or plan.shards or plan.sequence or plan.context)
    assert {stage.mesh for stage in plan.stages} == {(2,)}
    assert {"query_key_value", "widen", "narrow"} <= split(fitted, "block1")
    assert [dict(plan.strategies)[name].output for name in ("embedding", "block1", "head")] == [(), (1,), ()]
    plan.save(tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == plan
    assert found(plan, tiny_decoder).plan == plan


@pytest.mark.parametrize(
    ("build", "shards", "kept"),
    [
        (tiny_mlp, {"linear0.weight": 0}, {"linear0.weight"}),  # its bias is whole
        (tiny_tied, {"embedding.tokens.weight": 0}, set()),
        (tiny_decoder, {"block0.attention_norm.weight": 0}, {"block0.attention_norm.weight"}),
    ],
)
def test_what_no_operator_splits_is_kept_in_parts(
    build: Callable[[], Workload], shards: dict[str, ShardAxis], kept: set[str]
) -> None:
    """Such a parameter is gathered for its layer; one that layers share is split by all of them, or by none."""
    assert set(found(plan_of(build, shards), build).kept) == kept


def test_layers_that_cannot_be_followed_run_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their parameters are kept in parts, and what arrives in parts of the tokens leaves so too."""

    def followed(name: str, *arguments: Any) -> Program:
        if name == "block1":
            raise PlanError("its operators cannot be followed")
        return program(name, *arguments)

    monkeypatch.setattr(module, "program", followed)
    fitted = found(plan_of(tiny_decoder, SHARDS, lambda layers: layers[1:-1]), tiny_decoder)
    assert dict(fitted.plan.strategies)["block1"] == LayerStrategies(input=(1,), output=(1,))
    assert {name.split(".")[0] for name in fitted.kept} == {"block1"}
    assert fitted.repeated == ("block1",)
    assert "widen" in split(fitted, "block0")
