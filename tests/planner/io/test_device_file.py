"""Catalogue of device kinds."""

from pathlib import Path

import pytest

from pipeplan.core.cluster import DeviceKind
from pipeplan.core.errors import InputError
from pipeplan.io.device_file import read_devices


def test_figures_are_read(tmp_path: Path) -> None:
    """Every figure has its unit; what is left out keeps its default."""
    path = tmp_path / "devices.yaml"
    path.write_text(
        "board:\n"
        "  memory: 16GiB\n"
        "  peak: {float32: 15.7TFLOP/s, float16: 125TFLOP/s}\n"
        "  bandwidth: 900GB/s\n"
        "  overhead: 5us\n"
        "  runtime: 500MiB\n"
        "  on_chip: 43MiB\n"
        "  price: 3\n"
        "  speed_beside_collectives: 0.75\n"
        "  shard_overhead: 90us\n"
        "  source: data sheet\n"
        "bare: {}\n"
    )
    found = read_devices(path)
    assert found["board"] == DeviceKind(
        "board", 16 * 2**30, {"float32": 15_700_000_000_000, "float16": 125 * 10**12}, 900 * 10**9, 0.5, 5000,
        runtime=500 * 2**20, price=3.0, on_chip=43 * 2**20, speed_beside_collectives=0.75,
        shard_overhead=90_000, source="data sheet",
    )  # fmt: skip
    assert found["bare"] == DeviceKind("bare")


def test_wrong_figures_are_named(tmp_path: Path) -> None:
    """Unknown fields and bad units stand in one error, under the device's name."""
    path = tmp_path / "devices.yaml"
    path.write_text("a-1: {memroy: 1GiB}\nb.2: {peak: {float32: fast}}\nc: {speed_beside_collectives: 1.5}\n")
    with pytest.raises(InputError) as caught:
        read_devices(path)
    assert "a-1.memroy: unknown field; did you mean 'memory'?" in str(caught.value)
    assert "b.2.peak.float32: 'fast' is not a rate; write it like 125TFLOP/s" in str(caught.value)
    assert "c.speed_beside_collectives: should be less than or equal to 1, found 1.5" in str(caught.value)


def test_a_field_of_earlier_files_leads_to_its_successor(tmp_path: Path) -> None:
    """Whether collectives are hidden is now a speed."""
    path = tmp_path / "devices.yaml"
    path.write_text("cpu: {hides_collectives: false}\n")
    with pytest.raises(InputError, match="unknown field; did you mean 'speed_beside_collectives'"):
        read_devices(path)
