"""Published workloads: proved optima equal the published values, recomputed from the files."""

import pytest

from helpers.published_rules import dnn_partitioning_loads, pipedream_loads, piper_loads
from helpers.quick import rarely
from helpers.shared_data import shared
from pipeplan.io.published import Published, dnn_partitioning, pipedream, piper
from pipeplan_formulations import graph
from pipeplan_formulations.common.report import Limits, Report, Status
from pipeplan_formulations.graph import Stages

GIB = 2**30
LAYER_GRAPHS = [("bert24_training", 41.7458), ("gnmt_training", 107.0044), ("resnet50_training", 78.6318)]
OPERATOR_GRAPHS = [("bert_l-3_inference", 27.9186), ("bert_l-3_training", 65.3031)]
CORRECTED = [
    ("gnmt_training", 4, 156.685), ("gnmt_training", 8, 106.131),
    ("resnet50_training", 6, 479.038), ("bert24_training", 8, 38.222),
]  # fmt: skip
PIPEDREAM = [
    ("vgg16", (205.52, 103.83, 56.53), (411.04, 411.04)),
    ("alexnet", (34.22, 18.87, 18.87), (66.45, 66.45)),
    rarely("gnmt", (25.87, 19.29, 19.29), (25.87, 19.29)),
    ("resnet18", (100.00, 50.78, 25.69), (201.60, 201.60)),
    rarely("resnet50", (162.88, 92.01, 47.80), (258.15, 258.15)),
]
BERT32 = [(8, 80, 0.122007), (8, 8, 0.165856), (32, 8, 0.0415155), (64, 8, 0.0202006), (128, 8, 0.0101209)]


def solved(case: Published, backend: str = "auto") -> tuple[Report[Stages], Stages, float]:
    """The report, its solution and its value in seconds, proved to be optimal."""
    report = graph.solve(case.problem, Limits(60), backend=backend)
    assert report.status is Status.OPTIMAL
    assert report.solution is not None
    assert report.objective is not None
    return report, report.solution, report.objective * case.unit


def placed(case: Published, stages: Stages) -> list[tuple[str, tuple[str, ...]]]:
    """Mode and file ids of each stage."""
    return [
        (case.problem.modes[stage.mode].name, tuple(i for g in stage.groups for i in case.members[g]))
        for stage in stages
    ]


@pytest.mark.parametrize(("name", "optimum"), [*LAYER_GRAPHS, *OPERATOR_GRAPHS])
@pytest.mark.parametrize("backend", ["auto", pytest.param("cpsat", marks=pytest.mark.slow)])
def test_dnn_partitioning_as_shipped(name: str, optimum: float, backend: str) -> None:
    """Six accelerators (three for BERT-3) and the slow processor: the published optimum, proved."""
    path = shared(f"dnn-partitioning/{name}.json")
    case = dnn_partitioning(path)
    _, stages, value = solved(case, backend)
    assert value * 1e3 == pytest.approx(optimum, rel=1e-5)
    assert max(dnn_partitioning_loads(path, placed(case, stages))) == pytest.approx(value * 1e3, rel=1e-8)


@pytest.mark.parametrize(("name", "accelerators", "optimum"), CORRECTED)
def test_dnn_partitioning_with_the_unit_corrected(name: str, accelerators: int, optimum: float) -> None:
    """Transfers a thousand times slower, without a processor: one topological order is far off, the proof is not."""
    path = shared(f"dnn-partitioning/{name}.json")
    case = dnn_partitioning(path, corrected=True, accelerators=accelerators, processors=0)
    _, stages, value = solved(case)
    assert value * 1e3 == pytest.approx(optimum, rel=1e-5)
    assert max(dnn_partitioning_loads(path, placed(case, stages), 1000.0)) == pytest.approx(value * 1e3, rel=1e-8)


@pytest.mark.parametrize(
    ("name", "flat", "straight"), PIPEDREAM, ids=lambda value: value if str(value) == value else ""
)
def test_pipedream(name: str, flat: tuple[float, ...], straight: tuple[float, ...]) -> None:
    """With and without replication never worse than PipeDream's optimiser, and better where it is not optimal."""
    path = shared(f"pipedream/{name}.graph.txt")
    cases = [*zip((4, 8, 16), flat, (True,) * 3, strict=True), *zip((4, 8), straight, (False,) * 2, strict=True)]
    for devices, theirs, replicate in cases:
        case = pipedream(path, devices, replicate=replicate)
        _, stages, value = solved(case)
        assert value * 1e3 <= theirs + 0.005
        if (name, replicate) == ("resnet50", False):
            assert value * 1e3 == pytest.approx(256.901, abs=1e-3)
        else:
            assert value * 1e3 == pytest.approx(theirs, abs=0.005)
        shared_out = [(case.replicas[s.mode], tuple(case.names[g] for g in s.groups)) for s in stages]
        assert sum(replicas for replicas, _ in shared_out) <= devices
        assert max(pipedream_loads(path, shared_out)) == pytest.approx(value * 1e3, rel=1e-6)


@pytest.mark.parametrize(
    ("devices", "memory", "theirs"), [BERT32[0], *(pytest.param(*row, marks=pytest.mark.slow) for row in BERT32[1:])]
)
def test_piper(devices: int, memory: int, theirs: float) -> None:
    """Degree, replicas and recomputation of BERT-32: the published value, proved."""
    path = shared("piper/bert32a100.json")
    case = piper(path, devices=devices, memory=memory * GIB, bandwidth=25 * GIB)
    _, stages, value = solved(case)
    assert value == pytest.approx(theirs, rel=1e-5)
    rows = [
        {
            "replicas": case.replicas[stage.mode],
            "degree": case.devices[stage.mode],
            "variants": {
                case.names[g]: case.variants[v] for g, v in zip(stage.groups, stage.variants, strict=True)
            },
        }
        for stage in stages
    ]  # fmt: skip
    assert max(piper_loads(path, rows, devices, memory * GIB, 25 * GIB)) == pytest.approx(value, rel=1e-6)


@pytest.mark.slow
def test_piper_without_room() -> None:
    """BERT-32 on eight devices of 2 GiB is proved to be impossible."""
    case = piper(shared("piper/bert32a100.json"), devices=8, memory=2 * GIB, bandwidth=25 * GIB)
    assert graph.solve(case.problem, Limits(60)).status is Status.INFEASIBLE
