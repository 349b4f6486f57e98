"""``pipeplan explain`` and ``pipeplan frontier`` as a user types them."""

import json
from pathlib import Path

import pytest

from helpers.instances import fat_head
from pipeplan.cli.main import main
from pipeplan.io.model_file import write_model

LEAN = ("--devices", "3", "--batch", "8", "--schedules", "1f1b-sno", "--replicas", "1", "--recompute", "none")


@pytest.fixture
def model(tmp_path: Path) -> str:
    """The fat-headed chain as a file."""
    path = tmp_path / "model.yaml"
    write_model(fat_head(), path)
    return str(path)


def test_a_plan_and_its_question_are_explained_alike(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan alone gives the same step, path and bottlenecks as the problem, which adds the changes."""
    plan = str(tmp_path / "plan.json")
    assert main(["solve", model, *LEAN, "-o", plan]) == 0
    capsys.readouterr()
    assert main(["explain", plan, "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert main(["explain", model, *LEAN, "--json"]) == 0
    asked = json.loads(capsys.readouterr().out)
    for key in ("step_time_s", "bound_s", "binds", "critical_path", "busy"):
        assert alone[key] == asked[key]
    assert sum(part["time_s"] for part in alone["critical_path"]) == pytest.approx(alone["step_time_s"])
    assert sum(part["share"] for part in alone["critical_path"]) == pytest.approx(1)
    assert not alone["changes"] and asked["changes"]
    assert main(["explain", plan, "--devices", "3", "--batch", "8"]) == 2
    assert "is a plan" in capsys.readouterr().err


def test_what_does_not_fit_is_explained_and_the_remedy_works(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1; the memory named fits, and a byte less does not."""
    assert main(["explain", model, *LEAN, "--memory", "9B", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["fits"] is False and found["proved"] is True
    remedy = next(row for row in found["remedies"] if row["kind"] == "memory")
    assert remedy["fits"] and remedy["smallest"]
    for less, code in ((0, 0), (1, 1)):
        assert main(["solve", model, *LEAN, "--memory", f"{9 + remedy['number'] - less}B", "--json"]) == code
    capsys.readouterr()
    assert main(["explain", model, *LEAN, "--memory", "9B"]) == 1
    assert "No plan fits among those searched, proved." in capsys.readouterr().out


def test_a_frontier_is_written_drawn_and_resumed(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One call writes answers, table and picture; a second one solves nothing more and prints the same."""
    kept, table, picture = (str(tmp_path / name) for name in ("kept.json", "table.csv", "picture.svg"))
    arguments = ["frontier", model, *LEAN, "-o", kept]
    assert main([*arguments, "--csv", table, "--plot", picture]) == 0
    first = capsys.readouterr()
    assert "complete and proved" in first.out and "asked" in first.err
    assert main(arguments) == 0
    second = capsys.readouterr()
    assert second.out == first.out and second.err == ""
    assert main(["frontier", model, *LEAN, "--json"]) == 0
    points = json.loads(capsys.readouterr().out)["points"]
    assert len(Path(table).read_text().splitlines()) == len(points) + 1
    assert "<svg" in Path(picture).read_text()


def test_the_fewest_devices_are_named_with_their_proof(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With a limit that one device exceeds, more are needed, and the excluded part is named."""
    assert main(["frontier", model, *LEAN, "--memory", "72B", "--fewest", "--json"]) == 0
    one = json.loads(capsys.readouterr().out)
    assert (one["devices"], one["excluded"], one["proved"]) == (1, [], True)
    assert main(["frontier", model, *LEAN, "--memory", "71B", "--fewest"]) == 0
    assert "proved: nothing that is searched fits on 3 x unit (1 unit)" in capsys.readouterr().out
    assert main(["frontier", model, *LEAN, "--fewest", "--points", "3"]) == 2
