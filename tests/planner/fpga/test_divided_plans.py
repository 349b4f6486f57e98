"""Plans with divided layers: file, validator, text, picture, program, and refusal by the executor."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.fpga_lines import board, line_cluster, model_of
from pipeplan import load_cluster, load_model
from pipeplan.cli.main import main
from pipeplan.core.errors import InputError, PlanError
from pipeplan.core.job import Job
from pipeplan.core.plan import Plan
from pipeplan.core.validate import validate_plan
from pipeplan.report.plot.gantt import save_gantt
from pipeplan.search.result import Result
from pipeplan.solve import solve
from pipeplan_executor import zoo
from pipeplan_executor.stages.split import fit

MODEL = model_of([3000, 9000, 3000], output=10)
CLUSTER = line_cluster([board(), board()])
JOB = Job(8, micro_batches=(8,), replicas=(1,), intra_layer=True)


@pytest.fixture(scope="module")
def result() -> Result:
    """Three layers of 3, 9 and 3 units on two equal boards: the middle one has to be divided."""
    return solve(MODEL, CLUSTER, job=JOB, backend="exact", time_limit=20)


def test_the_middle_layer_is_divided(result: Result) -> None:
    """Both stages hold a part of it, and the text has both shares."""
    left, right = result.plan.stages
    assert [name for name, _ in (*left.shares, *right.shares)] == ["layer1", "layer1"]
    assert sum(share for _, share in (*left.shares, *right.shares)) == pytest.approx(1)
    assert result.plan.boundaries == (0, 2, 3)
    assert "% of layer1" in str(result)
    assert "divided" in str(result.as_json()["searched"])
    assert result.as_json()["stages"][0]["shares"] == dict(left.shares)


def test_a_divided_plan_survives_its_file(result: Result, tmp_path: Path) -> None:
    """Shares are read back to the last digit."""
    result.plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == result.plan


@pytest.mark.parametrize(
    "shares",
    [
        ((("layer1", 0.25),), (("layer1", 0.5),)),
        ((("layer1", 0.5),), ()),
        ((("layer0", 0.5),), (("layer1", 0.5),)),
    ],
)
def test_shares_that_do_not_sum_to_one_are_refused(result: Result, shares: tuple) -> None:
    """Refused: shares that do not sum to one, single shares, and shares of layers away from the boundary."""
    stages = tuple(replace(stage, shares=own) for stage, own in zip(result.plan.stages, shares, strict=True))
    with pytest.raises(PlanError, match="whole layer"):
        validate_plan(replace(result.plan, stages=stages), MODEL, CLUSTER)


def test_a_divided_layer_has_no_whole_copy(result: Result) -> None:
    """Refused: a stage that holds the layer without a share while other stages hold it too."""
    left, right = result.plan.stages
    with pytest.raises(PlanError, match="in several stages: layer1"):
        validate_plan(replace(result.plan, stages=(left, replace(right, shares=()))), MODEL, CLUSTER)


def test_the_executor_refuses_divided_layers(result: Result) -> None:
    """The error has the layer's name and an alternative."""
    with pytest.raises(PlanError, match=r"divides layer1 between neighbours.*without --intra-layer"):
        fit(result.plan, zoo.mlp)


def test_a_divided_plan_is_drawn(result: Result, tmp_path: Path) -> None:
    """The timeline is drawn like any other."""
    pytest.importorskip("matplotlib")
    save_gantt(tmp_path / "plan.svg", {"divided": result.timeline}, limits=result.plan.pipeline.limits)
    assert (tmp_path / "plan.svg").stat().st_size > 1000


def test_synchronous_devices_do_not_divide_layers() -> None:
    """The error names the cluster and both ways out."""
    with pytest.raises(InputError, match=r"4-v100-nvlink.*leave --intra-layer out"):
        solve(load_model("vgg-16"), load_cluster("4-v100-nvlink"), batch=8, intra_layer=True)


def test_constraints_on_whole_layers_are_refused() -> None:
    """Such constraints are refused, not ignored."""
    with pytest.raises(InputError, match="no_cut_after"):
        solve(MODEL, CLUSTER, batch=8, intra_layer=True, no_cut_after=("layer0",))
    with pytest.raises(InputError, match="objective: period"):
        solve(MODEL, CLUSTER, batch=8, intra_layer=True, objective="period")


def test_the_program_divides_layers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """``--intra-layer`` on the boards of the catalogue: shares in JSON, a picture, a plan that is simulated again."""
    plan = str(tmp_path / "plan.json")
    asked = ["solve", "resnet-50", "4-vcu118", "--batch", "32", "--micro-batches", "32", "--depths", "4", "--json"]
    asked += ["--replicas", "1", "--gap", "0.05"]
    assert main([*asked, "--intra-layer", "-o", plan]) == 0
    divided = json.loads(capsys.readouterr().out)
    assert any("shares" in stage for stage in divided["stages"])
    assert main(["simulate", plan]) == 0
    assert capsys.readouterr().out
    assert main(asked) == 0
    assert divided["step_time_s"] < json.loads(capsys.readouterr().out)["step_time_s"]
