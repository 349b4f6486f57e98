"""Largest stage loads on PipeDream's published profiles, relative to the least possible one.

The chains are the files' rows without inputs, zero-time rows included, in topological order with the node number as
tie-break; links are free unless said otherwise.
"""

from dataclasses import replace

import pytest

from helpers.pipedream_rows import raw_chain
from helpers.shared_data import shared
from pipeplan import load_model
from pipeplan.baselines.partitioners import PARTITIONERS
from pipeplan.baselines.partitioners.partitioner import first_device_times, stage_loads
from pipeplan.core.cluster import Cluster, DeviceKind
from pipeplan.core.job import Job
from pipeplan.costs.chain import Chain
from pipeplan.costs.pricing import price
from pipeplan.io.importers.pipedream import PROFILED

COLUMNS = ("torchgpipe", "gpipe", "deepspeed-time", "parameters", "uniform-deepspeed")
RATIOS = {
    ("vgg16", 2): (370.9, 1.113, 1.016, 1.000, 1.806, 1.556),
    ("vgg16", 4): (216.4, 1.088, 1.102, 1.000, 2.874, 1.761),
    ("vgg16", 8): (159.5, 1.120, 1.120, 1.000, 3.384, 1.477),
    ("resnet50", 4): (111.5, 1.068, 1.019, 1.000, 2.990, 1.526),
    ("resnet50", 8): (58.4, 1.098, 1.093, 1.000, 4.903, 1.498),
    ("gnmt", 4): (25.9, 1.082, 1.094, 1.000, 1.336, 1.089),
    ("gnmt", 8): (19.0, 1.108, 1.359, 1.000, 1.030, 1.359),
    ("gnmt_large", 4): (137.1, 1.112, 1.088, 1.000, 1.219, 1.222),
    ("gnmt_large", 8): (82.8, 1.295, 1.291, 1.000, 1.291, 1.295),
}
SENDING = {"vgg16": (381.1, 381.1), "resnet50": (258.1, 258.1), "gnmt": (25.87, 19.28), "gnmt_large": (137.13, 82.84)}
MS = 10**6


def profile(name: str, stages: int, bandwidth: int | None = None) -> Chain:
    return raw_chain(shared(f"pipedream/{name}.graph.txt"), stages, bandwidth)


@pytest.mark.parametrize(("name", "stages"), RATIOS)
def test_distance_to_the_chain_optimum(name: str, stages: int) -> None:
    """Every partitioner's bottleneck is what its original's is on the same rows, to the third decimal."""
    best, *expected = RATIOS[name, stages]
    chain = profile(name, stages)
    # the GPipe column is known for forward and backward together
    chain = replace(chain, forward_flops=first_device_times(chain))
    optimum = max(stage_loads(chain, PARTITIONERS["chain-minmax"].balance(chain, 8)))
    assert optimum / MS == pytest.approx(best, abs=0.051)
    for column, ratio in zip(COLUMNS, expected, strict=True):
        boundaries = PARTITIONERS[column].balance(chain, 8)
        assert max(stage_loads(chain, boundaries)) / optimum == pytest.approx(ratio, abs=6e-4), column


@pytest.mark.parametrize("name", SENDING)
@pytest.mark.parametrize("stages", [4, 8])
def test_pipedream_with_transfers(name: str, stages: int) -> None:
    """With transfers over 1.25 GB/s the optimum is PipeDream's own; VGG-16 and ResNet-50 are bound by a cut."""
    chain = profile(name, stages, bandwidth=1_250_000_000)
    boundaries = PARTITIONERS["pipedream"].balance(chain, 8)
    sends = [2 * int(chain.send[link, edge - 1]) for link, edge in enumerate(boundaries[1:-1])]
    value = max(stage_loads(chain, boundaries) + sends) / MS
    assert value == pytest.approx(SENDING[name][stages == 8], rel=4e-4)


@pytest.mark.parametrize(("name", "stages"), RATIOS)
def test_the_importer_keeps_the_optimum(name: str, stages: int) -> None:
    """The importer drops rows that nothing reads; they take no time, so the least largest load is the same."""
    model = load_model(shared(f"pipedream/{name}.graph.txt"))
    cluster = Cluster.uniform(stages, DeviceKind(PROFILED))
    size = model.profiles[0].micro_batch
    imported = price(model, cluster, cluster.devices, size, Job(batch=size))
    minmax = PARTITIONERS["chain-minmax"].balance
    best, known = (max(stage_loads(chain, minmax(chain, 8))) for chain in (imported, profile(name, stages)))
    assert best == known


@pytest.mark.parametrize(("name", "stages", "empty"), [("vgg16", 8, 1), ("gnmt", 8, 1), ("vgg16", 4, 0)])
def test_gpipe_leaves_stages_empty(name: str, stages: int, empty: int) -> None:
    """GPipe's rounding leaves one of eight stages empty on VGG-16 and GNMT-8."""
    chain = profile(name, stages)
    boundaries = PARTITIONERS["gpipe"].balance(replace(chain, forward_flops=first_device_times(chain)), 8)
    assert stages - len(set(boundaries)) + 1 == empty
