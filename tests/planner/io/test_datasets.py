"""Shipped data sets: complete, consistent with their sources, and reproduced by the scripts beside them."""

import subprocess
import sys
from pathlib import Path

import pytest

from helpers.shared_data import ROOT
from pipeplan.costs.layers import item_size, layer_costs
from pipeplan.io.device_file import catalogue
from pipeplan.io.load import load_cluster, load_model

TOTALS = {
    "vgg-16": 138.36,
    "resnet-50": 25.56,
    "gnmt-8": 193.77,
    "gnmt-16": 277.72,
    "bert-large": 335.2,
    "gpt2-small": 124.44,
    "gpt2-xl": 1557.6,
    "gpt3-175b": 174_600,
    "llama3-8b": 8030.3,
    "llama3-8b-32k": 8030.3,
    "llama3-70b": 70_553.7,
    "llama3-405b": 405_853.4,
}
"""Millions of parameters, as published or as PipeDream's profiles of GNMT say."""

KINDS = (
    "v100-16gb v100-32gb v100-pcie-16gb a100-40gb a100-80gb h100-80gb h200 p100 rtx-3090 rtx-4090 t4 cpu-worker "
    "vcu118 vcu129"
)
CLUSTERS = {
    "2-cpu": 2,
    "4-v100-nvlink": 4,
    "8-v100-nvlink": 8,
    "4-v100-pcie": 4,
    "8-v100-pcie": 8,
    "2x2-v100-10gbit": 4,
    "2x4-v100-10gbit": 8,
    "4-v100-4-p100": 8,
    "64-h100": 64,
    "4-vcu118": 4,
    "4-vcu129": 4,
    "3-vcu118-1-vcu129": 4,
    "2-vcu118-2-vcu129": 4,
    "1-vcu118-3-vcu129": 4,
}


@pytest.mark.parametrize(("name", "millions"), TOTALS.items())
def test_parameter_counts_are_the_published_ones(name: str, millions: float) -> None:
    """Each model's parameters add up to its well-known total."""
    model = load_model(name)
    count = sum(layer.parameters for layer in model.layers) / item_size(model.dtype) / 1e6
    assert count == pytest.approx(millions, rel=1e-3)


def test_the_script_writes_what_is_committed(tmp_path: Path) -> None:
    """Running the script again gives the same bytes."""
    script = ROOT / "scripts" / "analytic_models.py"
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True, capture_output=True, timeout=600)
    written = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    committed = {path.name: path.read_bytes() for path in (ROOT / "datasets" / "models").iterdir()}
    assert written == {name: committed[name] for name in written}
    assert {f"{name}.yaml" for name in TOTALS} == set(written)


@pytest.mark.parametrize("name", KINDS.split())
def test_every_kind_has_figures_and_a_source(name: str) -> None:
    """A kind of the catalogue can be estimated on, and says where its figures come from."""
    kind = catalogue()[name]
    assert kind.memory
    assert kind.bandwidth
    assert kind.peak["float32"]
    assert len(kind.source) > 10


@pytest.mark.parametrize(("name", "count"), CLUSTERS.items())
def test_clusters_load_and_price_a_model(name: str, count: int) -> None:
    """Every cluster has its devices, and each of them can be priced for a float32 model."""
    cluster = load_cluster(name)
    model = load_model("vgg-16")
    assert len(cluster.devices) == count
    for kind in cluster.kinds.values():
        costs = layer_costs(model, kind, 2)
        assert len(costs) == len(model.layers)
        assert all(cost.forward > 0 for cost in costs)
