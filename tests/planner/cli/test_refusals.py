"""Invalid problems, refused by the program and the API alike, with errors that name the reason."""

from collections.abc import Callable
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.foreign_workloads import BRANCH
from helpers.instances import equal_devices, fat_head
from pipeplan import Cluster, DeviceKind, Job, Link, Robust, compare, frontier, solve
from pipeplan.analysis.sweep.experiment import Search
from pipeplan.cli.main import main
from pipeplan.core.cluster import Node
from pipeplan.core.errors import InfeasibleError, InputError
from pipeplan.core.figures import LARGEST, MOST_DEVICES, MOST_LAYERS, MOST_SAMPLES
from pipeplan.core.model import Layer, LayerCost, Model, Profile, Provenance, Work
from pipeplan.io.model_file import write_model
from pipeplan.io.series import series_model

BAD_WHOLE = [-1, 1.5, nan, inf, 10**30, "3", None, True]
BAD_REAL = [-1.0, nan, inf, -inf, 10**400, "3", None, True]


@pytest.fixture
def model_file(tmp_path: Path) -> str:
    """The fat-headed chain as a file."""
    write_model(fat_head(), tmp_path / "model.yaml")
    return str(tmp_path / "model.yaml")


def _cost(value: Any) -> Profile:
    return Profile("d", 1, (LayerCost(1, 1, 1, 1, value, 1),), Provenance("imported", "here"))


WHOLE: dict[str, Callable[[Any], object]] = {
    "batch": lambda v: Job(v),
    "micro_batches": lambda v: Job(8, micro_batches=(v,)),
    "depths": lambda v: Job(8, depths=(v,)),
    "replicas": lambda v: Job(8, replicas=(v,)),
    "latency": lambda v: Link(latency=v),
    "overhead": lambda v: DeviceKind("d", overhead=v),
    "runtime": lambda v: DeviceKind("d", runtime=v),
    "devices": lambda v: Cluster.uniform(v, DeviceKind("d")),
    "saved": lambda v: _cost(v),
    "micro_batch": lambda v: Profile("d", v, (), Provenance("imported", "here")),
    "parameters": lambda v: Model("m", (Layer("l", v),)),
    "flops": lambda v: Model("m", (Layer("l", 1, (), Work(v, 1, 1, 1, 1)),)),
    "peak": lambda v: DeviceKind("d", peak={"float32": v}),
    "workers": lambda v: solve(fat_head(), equal_devices(2), 8, workers=v),
    "seed": lambda v: solve(fat_head(), equal_devices(2), 8, seed=v),
    "search workers": lambda v: Search(workers=v),
    "frontier points": lambda v: v is None or frontier(fat_head(), equal_devices(2), Job(8), points=v),
}
REAL: dict[str, Callable[[Any], object]] = {
    "speed": lambda v: DeviceKind("d", speed=v),
    "efficiency": lambda v: DeviceKind("d", efficiency=v),
    "collective_efficiency": lambda v: Link(collective_efficiency=v),
    "unit_efficiency": lambda v: Link(unit_efficiency=v),
    "time_limit": lambda v: solve(fat_head(), equal_devices(2), 8, time_limit=v),
    "gap": lambda v: solve(fat_head(), equal_devices(2), 8, gap=v),
    "compare time": lambda v: compare(fat_head(), equal_devices(2), Job(8), time_limit=v),
    "frontier time": lambda v: frontier(fat_head(), equal_devices(2), Job(8), time_limit=v),
    "search time": lambda v: Search(time=v),
    "spread": lambda v: Robust(v),
    "device_spread": lambda v: Robust(0.1, v),
}


@pytest.mark.parametrize("name", WHOLE)
def test_what_is_no_whole_number_is_refused(name: str) -> None:
    """Every whole number of the API refuses other types, negative values, and values beyond 64 bits."""
    for value in BAD_WHOLE:
        if name == "frontier points" and value is None:
            continue
        with pytest.raises(InputError):
            WHOLE[name](value)


@pytest.mark.parametrize("name", REAL)
def test_what_is_no_finite_number_is_refused(name: str) -> None:
    """Every limit, gap, speed and spread of the API refuses NaN, infinity and negative values."""
    for value in BAD_REAL:
        with pytest.raises(InputError):
            REAL[name](value)


def test_optional_figures_are_refused_alike() -> None:
    """Figures that may be None refuse anything else except numbers, and a link's bandwidth refuses zero."""
    for value in [each for each in BAD_WHOLE if each is not None]:
        for field in ("memory", "bandwidth", "on_chip"):
            with pytest.raises(InputError, match=field):
                DeviceKind("d", **{field: value})
        with pytest.raises(InputError, match="bandwidth"):
            Link(bandwidth=value)
        if not isinstance(value, str):  # text is a size with a unit, or without
            with pytest.raises(InputError, match="memory"):
                Job(8, memory=value)
    with pytest.raises(InputError, match="bandwidth"):
        Link(bandwidth=0)
    with pytest.raises(InputError, match="price"):
        DeviceKind("d", price=nan)


def test_numbers_of_numpy_are_numbers() -> None:
    """A number from an array is accepted like a Python number."""
    assert Job(np.int64(8), depths=[np.int32(2)]) == Job(8, depths=(2,))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ask", "limit"),
    [
        (lambda: Job(MOST_SAMPLES + 1), MOST_SAMPLES),
        (lambda: Cluster.uniform(MOST_DEVICES + 1, DeviceKind("d")), MOST_DEVICES),
        (lambda: Cluster("c", {"d": DeviceKind("d")}, (Node(("d",) * (MOST_DEVICES + 1)),)), MOST_DEVICES),
        (lambda: Model("m", tuple(Layer(str(i), 0) for i in range(MOST_LAYERS + 1))), MOST_LAYERS),
        (lambda: Link(latency=LARGEST + 1), LARGEST),
        (lambda: Robust(0.1, samples=10**9), 10**6),
        (lambda: series_model("gnmt-" + "9" * 5000), MOST_LAYERS // 4),
    ],
)
def test_what_cannot_be_taken_is_refused_with_the_limit(ask: Callable[[], object], limit: int) -> None:
    """The error has the largest accepted value."""
    with pytest.raises(InputError, match=str(limit)):
        ask()


def test_sums_beyond_64_bits_are_named() -> None:
    """Figures that are each allowed, but add up to more than is exact, are refused with the sum."""
    model = fat_head()
    slow = replace(
        model,
        profiles=tuple(replace(p, costs=(replace(p.costs[0], forward=2**59), *p.costs[1:])) for p in model.profiles),
    )
    with pytest.raises(InputError, match=r"computation.*2\^60"):
        solve(slow, equal_devices(2), 16)
    narrow = replace(equal_devices(2), nodes=(Node(equal_devices(2).nodes[0].kinds, Link(1, 2**59)),))
    with pytest.raises(InputError, match=r"transfers.*latenc"):
        solve(model, narrow, 16)


CONTRADICTIONS = [
    (["--pin", "l1=d0", "--pin", "l1=d1"], ("l1", "d0", "d1")),
    (
        ["--together", "l0,l2", "--pin", "l0=d0", "--pin", "l2=d1", "--replicas", "1"],
        ("l0", "l2", "together", "replicas"),
    ),
    (["--no-cut-after", "l8"], ("l8", "last layer")),
    (["--together", ""], ("together",)),
    (["--no-cut-after", ""], ("no_cut_after",)),
    (["--pin", "l0=d9"], ("d9", "d0 to d2")),
    (["--micro-batches", "1,16", "--extrapolate", "--batch", str(10**20)], ("batch", str(MOST_SAMPLES))),
    (["--micro-batches", "1"], ("1 micro-batches", "16")),
    (["--depths", "0"], ("depths", "0")),
    (["--depths", "1" * 5000], ("depths",)),
    (["--depths", "1_0"], ("depths",)),
    (["--gap", "nan"], ("gap", "nan")),
    (["--gap", "5"], ("gap", "5")),
    (["--time", "inf"], ("time", "inf")),
    (["--time", "-1"], ("time", "-1")),
    (["--workers", "0"], ("workers", "0")),
    (["--seed", str(10**20)], ("seed", str(10**20))),
    (["--memory", "1e400GiB"], ("1e400GiB",)),
    (["--bandwidth", "0"], ("bandwidth",)),
    (["--latency", "1e300s"], ("1e300s",)),
]


@pytest.mark.parametrize(("more", "named"), CONTRADICTIONS)
def test_contradictions_name_both(
    model_file: str, more: list[str], named: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Contradictory options are bad input (exit code 2), and the text names each of them."""
    assert main(["solve", model_file, "--devices", "3", "--batch", "16", *more]) == 2
    said = capsys.readouterr()
    assert all(word in said.err for word in named), said.err
    assert said.out == ""


NO_PLAN = [
    (["--depths", "10"], ("10 stages", "9 layers")),
    (["--depths", "4"], ("4 stages", "3 devices")),
    (["--depths", "2", "--replicas", "2"], ("2 stages", "2 replicas", "3 devices")),
    (["--replicas", "4"], ("4 replicas", "3 devices")),
    (["--replicas", "3", "--batch", "2"], ("3 replicas", "micro-batches")),
    (["--depths", "3", "--together", "l0,l4", "--no-cut-after", "l4,l5,l6"], ("3 stages", "together and no_cut_after")),
]


@pytest.mark.parametrize(("more", "named"), NO_PLAN)
def test_a_question_without_a_plan_names_what_excludes_it(
    model_file: str, more: list[str], named: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Valid options that no plan can satisfy give exit code 1, and the text names the constraints."""
    extra = ["--together", "l7,l8"] if "--no-cut-after" in more else []
    assert main(["solve", model_file, "--devices", "3", "--batch", "16", *more, *extra]) == 1
    said = capsys.readouterr()
    assert all(word in said.err for word in ("No plan fits", *named)), said.err
    assert said.out == ""


def test_compatible_constraints_are_not_refused() -> None:
    """Two pins of one stage do not contradict if its replicas may cover both, nor does a repeated pin."""
    job = Job(16, together=(("l0", "l2"),), pin=(("l0", "d0"), ("l2", "d1"), ("l0", "d0")))
    plan = solve(fat_head(), equal_devices(3), job=job, time_limit=10).plan
    assert set(plan.stages[0].devices) >= {0, 1}


def test_values_that_stand_twice_count_once() -> None:
    """A list of choices is a set."""
    assert Job(16, depths=(2, 2), replicas=(1, 1), schedules=("gpipe", "gpipe")) == Job(
        16, depths=(2,), replicas=(1,), schedules=("gpipe",)
    )


@pytest.mark.parametrize(
    "options",
    [{"schedules": 3}, {"zero": "no"}, {"depths": 2.0}, {"pin": (("l0",),)}, {"depth": (2,)}, {"job": Job(8)}],
)
def test_constraints_of_the_wrong_type_are_refused(options: dict[str, Any]) -> None:
    """A number instead of a name, a word instead of a number, and an unknown constraint are bad input."""
    with pytest.raises(InputError):
        solve(fat_head(), equal_devices(2), 8, **options)


def test_a_depth_that_cannot_be_is_no_contradiction() -> None:
    """An impossible depth is an infeasible problem in the API too."""
    with pytest.raises(InfeasibleError, match="9 layers"):
        solve(fat_head(), equal_devices(12), 16, depths=(10,))


UNHEEDED = [
    (["solve", "MODEL", "--devices", "2", "--processors", "2"], ("--processors 2", "published")),
    (["solve", "MODEL", "4-v100-nvlink", "--devices", "2"], ("--devices 2", "4-v100-nvlink")),
    (["solve", "MODEL", "4-v100-nvlink", "--bandwidth", "1GB/s"], ("--bandwidth 1GB/s", "4-v100-nvlink")),
    (["solve", "MODEL", "--devices", "2", "--backend", "exact", "--workers", "4"], ("--workers 4", "--backend exact")),
    (["compare", "MODEL", "--devices", "2", "--backend", "exact", "--seed", "4"], ("--seed 4", "--backend exact")),
    (["solve", "MODEL", "--devices", "2", "--samples", "300"], ("--samples 300", "--robust")),
    (["explain", "MODEL", "--devices", "2", "--objective", "bottleneck"], ("--objective bottleneck", "step")),
    (["explain", "MODEL", "--devices", "2", "--objective", "period"], ("--objective period", "step")),
    (["solve", "MODEL", "--devices", "2", "--objective", "period", "--schedules", "any"], ("'any'", "'step'")),
    (["solve", "MODEL", "--devices", "2", "--objective", "period", "--robust", "5%"], ("'period'", "'step'")),
    (["explain", "PLAN", "--memory", "1GiB", "--zero", "1"], ("--memory 1GiB", "--zero 1", "is a plan")),
    (["explain", "PLAN", "--time", "5"], ("--time 5", "is a plan")),
    (["frontier", "MODEL", "--devices", "2", "--fewest", "--over", "price"], ("--fewest", "--over price")),
    (["solve", "MODEL", "--devices", "2", "--corrected"], ("corrected", "own format")),
    (["solve", "gnmt-8", "4-v100-nvlink", "--merge-misbooked"], ("gnmt-8", "merge_misbooked")),
    (
        ["solve", "GRAPH", "--devices", "2", "--rule", "published", "--depths", "2", "--zero", "1"],
        ("--depths 2", "--zero 1"),
    ),
    (["solve", "GRAPH", "--devices", "2", "--rule", "published", "--memory", "1GiB"], ("--memory 1GiB", "pipedream")),
    (["solve", "GRAPH", "--devices", "2", "--rule", "published", "--corrected"], ("--corrected", "pipedream")),
    (["solve", "GRAPH", "--devices", "2", "--rule", "published", "--replicas", "2"], ("--replicas 2", "PipeDream")),
    (["solve", "GRAPH", "--devices", "2", "--rule", "published", "--objective", "period"], ("--objective period",)),
    (["run", "PLAN", "module:function", "--keep", "5"], ("--keep 5", "--checkpoint")),
    (["calibrate", "PLAN", "m:f", "MODEL", "--devices", "2", "--no-solve", "--time", "3"], ("--no-solve", "--time 3")),
]


@pytest.mark.parametrize(("arguments", "named"), UNHEEDED)
def test_what_would_be_ignored_is_refused(
    model_file: str, tmp_path: Path, arguments: list[str], named: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """An option that the objective, rule, back end or file would ignore is bad input, and both are named."""
    (tmp_path / "graph.txt").write_text(BRANCH)
    places = {"MODEL": model_file, "GRAPH": str(tmp_path / "graph.txt"), "PLAN": str(tmp_path / "plan.json")}
    if "PLAN" in arguments:
        solve(fat_head(), equal_devices(2), 16, time_limit=5).plan.save(tmp_path / "plan.json")
    batch = (
        ["--batch", "16"] if arguments[0] in ("solve", "compare", "frontier") and "published" not in arguments else []
    )
    assert main([*[places.get(word, word) for word in arguments], *batch]) == 2
    said = capsys.readouterr()
    assert all(word in said.err for word in named), said.err
    assert said.out == ""
