"""``pipeplan calibrate`` on real processes."""

import json
from pathlib import Path

import pytest
import torch

from helpers.distributed.models import tiny_mlp
from pipeplan import Plan, solve
from pipeplan.cli.main import main
from pipeplan.core.cluster import Cluster, DeviceKind, Link
from pipeplan.core.model import Model
from pipeplan.frontend.profile import profile
from pipeplan.frontend.workload import Workload
from pipeplan.io.cluster_file import read_cluster, write_cluster
from pipeplan.io.model_file import read_model, write_model
from pipeplan.simulate import simulate
from pipeplan_executor.calibrate import repriced

BATCH = 8


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a profiled model, a cluster of two workers, and a plan of two stages."""
    folder = tmp_path_factory.mktemp("calibrate")
    model = profiled(tiny_mlp())
    cluster = Cluster.uniform(2, DeviceKind("cpu-worker", memory=2**34), Link(10**9, 50_000))
    write_model(model, folder / "model.yaml")
    write_cluster(cluster, folder / "cluster.yaml")
    solve(model, cluster, batch=BATCH, depths=(2,), chunks=(1,), time_limit=2).plan.save(folder / "plan.json")
    return folder


def profiled(workload: Workload) -> Model:
    """The workload's model, measured once."""
    inputs, _ = workload.draw(2, torch.Generator())
    return profile(workload.module, inputs, micro_batches=(1, 2), repeats=1, warmup=0, device_name="cpu-worker")


def arguments(files: Path, model: str = "model.yaml") -> list[str]:
    """Arguments of the command."""
    return [
        "calibrate",
        str(files / "plan.json"),
        "helpers.distributed.models:tiny_mlp",
        str(files / model),
        str(files / "cluster.yaml"),
    ]


def test_the_calibrated_files_predict_the_measured_step(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One command runs the plan, writes a model and a cluster that predict its step, and solves again with them."""
    names = {"-o": "new-model.yaml", "--save-cluster": "new-cluster.yaml", "--save-plan": "new-plan.json"}
    saving = [text for option, name in names.items() for text in (option, str(files / name))]
    assert main([*arguments(files), "--steps", "3", "--warmup", "1", "--time", "2", "--json", *saving]) == 0
    told = json.loads(capsys.readouterr().out)
    plan = Plan.load(files / "plan.json")
    model, cluster = read_model(files / "new-model.yaml"), read_cluster(files / "new-cluster.yaml")
    step = simulate(plan.schedule, repriced(plan, model, cluster)).makespan / 1e9
    assert step == pytest.approx(told["measured_step_time_s"], rel=0.02)
    assert told["predicted_step_time_s"]["planned"] == plan.step_time / 1e9
    assert set(told["actions_s"]) >= {"0F", "0B", "0U", "1F", "1B", "1U"}
    assert told["predicted_peak_bytes"]["after"] == pytest.approx(told["measured_peak_bytes"], rel=0.2)
    best = Plan.load(files / "new-plan.json")
    assert best.batch == BATCH
    assert told["best"]["better"] == (best.step_time / 1e9 < 0.99 * told["predicted_step_time_s"]["after"])


def test_a_model_of_another_shape_is_refused(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan for another model is refused before anything is started."""
    whole = read_model(files / "model.yaml")
    write_model(Model("other", whole.layers[:-1], operators=whole.operators), files / "other.yaml")
    assert main(arguments(files, "other.yaml")) == 1
    assert "made for another model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--batch", "16"], "steps of 8 samples"), (["--no-solve", "--save-plan", "x.json"], "leave out one of the two")],
)
def test_questions_that_contradict_the_plan_are_refused(
    options: list[str], said: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Options that cannot be meant end with a sentence that says so."""
    assert main([*arguments(files), *options]) == 2
    assert said in capsys.readouterr().err
