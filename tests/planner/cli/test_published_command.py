"""Command ``pipeplan solve --rule published``."""

import json
from pathlib import Path

import pytest

from helpers.foreign_workloads import BRANCH, training, workload
from helpers.published_rules import dnn_partitioning_loads
from helpers.shared_data import shared
from pipeplan.cli.main import main


def test_a_published_value_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """The published optimum is proved, and the printed stages have the printed value."""
    path = shared("dnn-partitioning/bert24_training.json")
    assert main(["solve", str(path), "--rule", "published", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["status"], answer["step_time_s"]) == ("optimal", pytest.approx(0.0417458, rel=1e-5))
    nodes = [node for stage in answer["stages"] for node in stage["nodes"]]
    every = [str(node["id"]) for node in json.loads(path.read_text())["nodes"]]
    assert sorted(nodes) == sorted(every)  # backward nodes too
    assert max(stage["load_s"] for stage in answer["stages"]) == pytest.approx(answer["step_time_s"])


def test_replicas_as_pipedream_counts_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With replicas the value is less than without, and the devices suffice."""
    path = tmp_path / "branch.graph.txt"
    path.write_text(BRANCH)
    values = []
    for extra in (["--replicas", "1"], []):
        command = ["solve", str(path), "--rule", "published", "--devices", "8", "--bandwidth", "100GB/s", "--json"]
        assert main([*command, *extra]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert sum(stage["replicas"] for stage in answer["stages"]) <= 8
        values.append(answer["step_time_s"])
    assert values[1] < values[0]


def test_words_name_every_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --json there is one line per stage and one with its nodes, and the rule is named."""
    path = tmp_path / "made-up.json"
    path.write_text(json.dumps(training()))
    assert main(["solve", str(path), "--rule", "published"]) == 0
    text = capsys.readouterr().out
    assert "dnn-partitioning" in text
    assert "stage 0: accelerator: 1;" in text
    assert "2 nodes: 1, 7\n" in text  # backward nodes too
    assert "4 nodes: 2, 3, 5, 6\n" in text


def test_piper_variants_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each layer's variant is printed by its name in the file."""
    path = tmp_path / "made-up.json"
    data = workload()
    for node in data["nodes"]:
        node["TMPCs"] = {"1": [node["TMPCs"]["1"][0], {**node["TMPCs"]["1"][0], "id": "activation recomp"}]}
    path.write_text(json.dumps(data))
    assert main(["solve", str(path), "--rule", "published", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert {name: way for stage in answer["stages"] for name, way in stage["variants"].items()}.keys() == {
        "0",
        "1",
        "2",
    }


@pytest.mark.parametrize("arguments", [["vgg-16"], ["{}", "2-cpu"], ["{}", "--devices", "2", "-o", "plan.json"]])
def test_what_has_no_published_rule_is_refused(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pipeplan model or cluster, or a plan to save, ends in an explanation and exit code 2."""
    path = tmp_path / "branch.graph.txt"
    path.write_text(BRANCH)
    assert main(["solve", *(a.format(path) for a in arguments), "--rule", "published"]) == 2
    assert "--rule published" in capsys.readouterr().err


def test_the_file_s_own_count_is_made_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a made-up workload the printed stages, counted from the file, have the printed cost."""
    path = tmp_path / "made-up.json"
    path.write_text(json.dumps(training()))
    assert main(["solve", str(path), "--rule", "published", "--processors", "0", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    members = {"1": ("1", "7"), "2+3": ("2", "3", "6"), "5": ("5",)}
    stages = [(s["mode"], tuple(i for name in s["layers"] for i in members[name])) for s in answer["stages"]]
    assert max(dnn_partitioning_loads(path, stages)) == pytest.approx(answer["step_time_s"] * 1e3)
