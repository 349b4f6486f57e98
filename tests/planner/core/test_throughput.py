"""Throughput: samples, tokens and operations per second, and their share of the peak."""

import json
from dataclasses import replace

import pytest

import pipeplan
from helpers.instances import equal_devices, model_of
from pipeplan.cli.main import main
from pipeplan.core.throughput import Throughput, Yardstick, yardstick

PEAK = 15.7e12
"""Operations per second of a V100 in single precision."""


def test_figures_of_a_known_step() -> None:
    """Eight samples of 100 tokens and a TFLOP each in two seconds are 4 samples/s, 400 tokens/s, 4 of 16 TFLOP/s."""
    found = Yardstick(tokens=100, flops=10**12, peak=16 * 10**12).throughput(8, 2 * 10**9)
    assert found == Throughput(4.0, 400.0, 4e12, 0.25)
    assert str(found) == "4 samples/s, 400 tokens/s, 4 TFLOP/s, 25.0% MFU"


def test_unknown_figures_are_left_out() -> None:
    """A profile without operators has samples per second only, and a step without time has no throughput."""
    found = yardstick(model_of([5, 5]), equal_devices(2)).throughput(3, 10**9)
    assert str(found) == "3 samples/s"
    assert found.as_json() == {"samples_per_s": 3.0, "tokens_per_s": None, "tflop_per_s": None, "mfu": None}
    assert str(Yardstick().throughput(3, 0)) == "unlimited"


def test_a_datasets_model_has_all_figures() -> None:
    """A model of datasets/ knows its sequence length and its operations, counted here from its layers."""
    model, cluster = pipeplan.load_model("gpt2-small"), pipeplan.load_cluster("4-v100-nvlink")
    flops = sum(
        each.work.forward_flops + each.work.input_gradient_flops + each.work.weight_gradient_flops
        for each in model.layers
        if each.work is not None
    )
    assert yardstick(model, cluster) == Yardstick(1024, flops, round(4 * PEAK))
    without_work = replace(model, layers=tuple(replace(each, work=None) for each in model.layers))
    assert yardstick(without_work, cluster).flops == pytest.approx(flops, rel=0.02)  # of operators


def test_every_answer_tells_it(tmp_path, capsys) -> None:
    """`solve`, `explain`, `frontier` and `compare` tell one step's throughput, and a plan file keeps what it is of."""
    ask = ["gpt2-small", "4-v100-nvlink", "--batch", "8", "--depths", "4", "--replicas", "1", "--micro-batches", "8"]
    ask += ["--schedules", "1f1b-sno", "--json"]
    path = tmp_path / "plan.json"
    main(["solve", *ask, "-o", str(path)])
    solved = json.loads(capsys.readouterr().out)
    rate = solved["throughput"]
    assert rate["samples_per_s"] == pytest.approx(8 / solved["step_time_s"])
    assert rate["tokens_per_s"] == pytest.approx(8 * 1024 / solved["step_time_s"])
    assert rate["mfu"] == pytest.approx(rate["tflop_per_s"] * 1e12 / (4 * PEAK))
    main(["explain", str(path), "--json"])
    assert json.loads(capsys.readouterr().out)["throughput"] == rate
    main(["compare", *ask])
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert next(row for row in rows if row["method"] == "pipeplan")["throughput"] == rate
    main(["frontier", *ask, "--points", "1"])
    assert json.loads(capsys.readouterr().out)["points"][0]["throughput"] == rate


def test_an_endless_pipeline_has_one_sample_per_load() -> None:
    """The value of a bottleneck is the time of one sample, whatever the batch."""
    result = pipeplan.solve(model_of([5, 5]), equal_devices(2), 8, objective="bottleneck")
    assert result.throughput.samples == pytest.approx(1e9 / result.value)
