"""``pipeplan solve --robust`` as a user types it."""

import json
from pathlib import Path

import pytest

from helpers.instances import fat_head
from pipeplan.cli.main import main
from pipeplan.io.model_file import write_model

PLAN_KEYS = {
    "plan",
    "layers",
    "step_time_s",
    "samples",
    "mean_s",
    "mean_error_s",
    "quantile_s",
    "quantile_error_s",
    "behind_s",
    "behind_error_s",
}


@pytest.fixture
def question(tmp_path: Path) -> list[str]:
    """The fat-headed chain on three devices."""
    path = tmp_path / "model.yaml"
    write_model(fat_head(), path)
    return ["solve", str(path), "--devices", "3", "--batch", "16"]


def test_json_has_the_comparison(question: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The key ``robust`` holds the options, the bound on means and all plans, the chosen one first."""
    asked = ["--robust", "10%", "--slow-devices", "0.05", "--quantile", "0.9", "--samples", "300", "--seed", "3"]
    assert main([*question, "--json", *asked]) == 0
    answer = json.loads(capsys.readouterr().out)
    robust = answer["robust"]
    told = {name: robust[name] for name in ("spread", "device_spread", "chosen_by", "quantile", "samples", "seed")}
    assert told == {
        "spread": 0.1,
        "device_spread": 0.05,
        "chosen_by": "quantile",
        "quantile": 0.9,
        "samples": 300,
        "seed": 3,
    }
    assert robust["mean_bound_s"] == answer["bound_s"]
    assert all(set(plan) == PLAN_KEYS for plan in robust["plans"])
    chosen = robust["plans"][0]
    assert chosen["step_time_s"] == answer["step_time_s"]
    assert sum(chosen["layers"]) == 9
    assert chosen["behind_s"] == 0
    assert chosen["quantile_s"] == min(plan["quantile_s"] for plan in robust["plans"] if plan["samples"] == 300)


def test_without_robust_the_output_is_the_usual_one(question: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Without ``--robust`` neither text nor JSON mentions it."""
    assert main([*question, "--json"]) == 0
    assert "robust" not in json.loads(capsys.readouterr().out)
    assert main(question) == 0
    assert "vary" not in capsys.readouterr().out


def test_the_table_has_both_times(question: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The text has nominal step, mean and quantile of every plan, marks the chosen one, and states the bound."""
    assert main([*question, "--robust", "10%"]) == 0
    text = capsys.readouterr().out
    assert "chosen by the mean of 1000 steps whose times vary by 10%" in text
    table = text[text.index("nominal") :].splitlines()
    assert table[0].split()[:3] == ["nominal", "mean", "quantile"]
    assert "chosen" in table[1]
    assert "no plan of the searched space takes less than" in text


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (["--robust", "lots"], "--robust 'lots' is not a share; write it like 5% or 0.05"),
        (["--robust", "5"], "if 5 per cent are meant, write 5%"),
        (["--robust", "5%", "--quantile", "95"], "0.95 chooses"),
        (["--robust", "5%", "--slow-devices", "x"], "--slow-devices 'x'"),
        (["--robust", "5%", "--samples", "20"], "ask for 200 or more"),
        (["--quantile", "0.9"], "--quantile 0.9 belongs to --robust"),
        (["--samples", "500"], "--samples 500 belongs to --robust"),
        (["--robust", "5%", "--objective", "bottleneck"], "'bottleneck'"),
        (["--robust", "5%", "--rule", "published"], "leave out one of the two"),
    ],
)
def test_errors_teach(options: list[str], match: str, question: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, nothing on standard output, and a message with valid values."""
    assert main([*question, *options]) == 2
    output = capsys.readouterr()
    assert not output.out
    assert match in output.err
