"""Every summary of a plan names the replicas of its stages."""

import pytest

from helpers.instances import equal_devices, model_of
from pipeplan.analysis.compare import compare
from pipeplan.analysis.explain import explain
from pipeplan.analysis.frontier import frontier
from pipeplan.analysis.judge import judge
from pipeplan.analysis.sweep.work import plan_label
from pipeplan.cli.main import main
from pipeplan.core.cluster import Cluster
from pipeplan.core.wording import stages_of
from pipeplan.solve import solve

MODEL, CLUSTER = model_of([20, 20], parameters=[8, 8]), equal_devices(4)
SHAPE = "1 stage of 4 replicas"


@pytest.mark.parametrize(
    "replicas, words",
    [
        ([1], "1 stage"),
        ([1, 1], "2 stages"),
        ([8], "1 stage of 8 replicas"),
        ([2, 2], "2 stages of 2 replicas"),
        ([2, 1, 1], "3 stages of 2-1-1 replicas"),
        ([2] * 9 + [1] * 3, "12 stages of 2x9-1x3 replicas"),
    ],
)
def test_stages_are_said_with_their_replicas(replicas: list[int], words: str) -> None:
    """But for one each; long rows are short."""
    assert stages_of(replicas) == words


def test_every_summary_names_replicas() -> None:
    """The answer's first line, comparisons, explanations, judged plans, frontiers and sweeps."""
    result = solve(MODEL, CLUSTER, batch=8, time_limit=10)
    assert SHAPE in str(result).split("\n")[0] and SHAPE in result.headline and SHAPE in plan_label(result.plan)
    assert SHAPE in repr(result.plan) or SHAPE in result.plan.headline
    assert SHAPE in compare(MODEL, CLUSTER, batch=8, time_limit=5).rows[0].label
    assert f"{SHAPE} on 4 devices" in explain(MODEL, CLUSTER, batch=8, time_limit=10).headline
    judged = judge(MODEL, CLUSTER, 8, stages="2", micro_batches=8, replicas=4, time_limit=5)
    assert str(judged).count(SHAPE) == 2
    table = frontier(MODEL, CLUSTER, batch=8, time_limit=10, points=1).table()
    assert "replicas" in table.columns


def test_shown_plans_name_replicas(tmp_path: object, capsys: pytest.CaptureFixture[str]) -> None:
    """``pipeplan show plan.json``."""
    path = f"{tmp_path}/plan.json"
    cluster: Cluster = CLUSTER
    solve(MODEL, cluster, batch=8, time_limit=10).plan.save(path)
    assert main(["show", path]) == 0
    assert SHAPE in capsys.readouterr().out


def test_devices_with_several_stages_say_what_they_need_for_all() -> None:
    """Each stage has its own line; what a device holds at a time is neither of them."""
    model = model_of([10] * 4, saved=[8, 4, 4, 8], parameters=[8] * 4)
    result = solve(model, equal_devices(2), batch=4, chunks=2, replicas=1, time_limit=10)
    least, most = sorted(result.timeline.peaks)
    assert f"each device needs {least} B to {most} B for its 2 stages together" in str(result)
    assert "together" not in str(solve(model, equal_devices(2), batch=4, chunks=1, replicas=1, time_limit=10))
