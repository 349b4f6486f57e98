"""The program as a user types it: output, exit codes, files."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.instances import equal_devices, fat_head, model_of
from helpers.shared_data import shared
from pipeplan.cli.main import main
from pipeplan.core.plan import Plan
from pipeplan.io.model_file import write_model
from pipeplan.solve import solve
from pipeplan_formulations.common.mip import SOLVERS

SOLVE_KEYS = {
    "status",
    "stop",
    "step_time_s",
    "bound_s",
    "gap",
    "throughput",
    "wall_s",
    "backend",
    "micro_batch",
    "micro_batches",
    "slices",
    "zero",
    "schedule",
    "stages",
    "runners_up",
    "balancers",
    "costs",
    "searched",
}
STAGE_KEYS = {"layers", "devices", "replicas", "team", "recompute", "forward_s", "backward_s", "memory_bytes"}


@pytest.fixture
def model_file(tmp_path: Path) -> str:
    """The fat-headed chain as a file."""
    path = tmp_path / "model.yaml"
    write_model(fat_head(), path)
    return str(path)


def test_json_is_one_object_with_the_promised_keys(model_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """``solve --json`` prints exactly one object on standard output, with every key."""
    assert main(["solve", model_file, "--devices", "3", "--batch", "16", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert set(answer) == SOLVE_KEYS
    assert all(set(stage) == STAGE_KEYS for stage in answer["stages"])
    assert answer["status"] == "optimal"
    assert answer["gap"] == 0
    assert [name for stage in answer["stages"] for name in stage["layers"]] == [f"l{i}" for i in range(9)]
    for row in answer["balancers"].values():
        assert row["step_time_s"] is None or row["step_time_s"] >= answer["step_time_s"]
        assert row["step_time_s"] is not None or row["why"]


@pytest.mark.parametrize("backend", SOLVERS)
def test_a_tight_memory_limit_changes_the_plan(
    backend: str, model_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A limit that excludes the fastest plan yields a slower plan within the limit."""

    def ask(*limit: str) -> dict[str, object]:
        arguments = ["solve", model_file, "--devices", "3", "--batch", "16", "--backend", backend, "--json", *limit]
        assert main(arguments) == 0
        return dict(json.loads(capsys.readouterr().out))

    def peak(answer: dict[str, object]) -> int:
        stages: list[dict[str, dict[str, int]]] = answer["stages"]  # type: ignore[assignment]
        return max(stage["memory_bytes"]["total"] for stage in stages)

    free = ask()
    tight = ask("--memory", "50B")  # six micro-batches of 8 bytes: 1F1B no longer holds the fast partition
    assert peak(tight) < peak(free)
    assert tight["step_time_s"] > free["step_time_s"]  # type: ignore[operator]
    assert tight["status"] == "optimal"


@pytest.mark.parametrize("backend", SOLVERS)
def test_an_impossible_limit_is_explained(backend: str, model_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An infeasible limit gives exit code 1, and on standard error a remedy, which does fit."""
    arguments = ["solve", model_file, "--devices", "3", "--batch", "16", "--backend", backend, "--json"]
    assert main([*arguments, "--memory", "9B"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "What would fit" in said.err
    remedy = said.err.partition("--memory ")[2].split()[0]
    assert main([*arguments, "--memory", remedy]) == 0


@pytest.mark.parametrize(
    ("arguments", "lesson"),
    [
        (["solve", "no-such-model", "--devices", "2", "--batch", "4"], "no-such-model"),
        (["solve", "MODEL", "no-such-cluster", "--batch", "4"], "no-such-cluster"),
        (["solve", "MODEL", "--batch", "4"], "--devices"),
        (["solve", "MODEL", "--devices", "2"], "--batch"),
        (["solve", "MODEL", "--devices", "2", "--batch", "16", "--micro-batches", "3"], "divide"),
        (["solve", "MODEL", "--devices", "2", "--batch", "16", "--schedules", "1f1c"], "1f1b"),
        (["solve", "MODEL", "--devices", "2", "--batch", "16", "--memory", "many"], "16GiB"),
        (["solve", "MODEL", "--devices", "2", "--batch", "16", "--optimizer", "lion"], "adam"),
    ],
)
def test_bad_input_teaches(
    arguments: list[str], lesson: str, model_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bad input: exit code 2, and the error names the remedy."""
    assert main([model_file if word == "MODEL" else word for word in arguments]) == 2
    assert lesson in capsys.readouterr().err


def test_a_saved_plan_simulates_to_its_promise(
    model_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan of ``solve -o`` is simulated to the same nanosecond, drawn and traced."""
    plan, trace, picture = (str(tmp_path / name) for name in ("plan.json", "trace.json", "plan.svg"))
    assert main(["solve", model_file, "--devices", "2", "--batch", "8", "-o", plan, "--plot", picture]) == 0
    capsys.readouterr()
    assert main(["simulate", plan, "--trace", trace, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["step_time_s"] == Plan.load(plan).step_time / 1e9
    assert json.loads(Path(trace).read_text())["traceEvents"]
    assert "<svg" in Path(picture).read_text()


def test_devices_that_are_alike_have_one_line(
    model_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four replicas of a stage are simulated in one line."""
    plan = str(tmp_path / "plan.json")
    asked = ["--devices", "4", "--batch", "8", "--replicas", "4", "--depths", "1", "--micro-batches", "4"]
    assert main(["solve", model_file, *asked, "-o", plan]) == 0
    capsys.readouterr()
    assert main(["simulate", plan]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert lines[0].strip().startswith("stage 0: d0, d1, d2, d3, ")


def test_compare_lists_every_partitioner_and_family_with_the_solver(
    model_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One row for each method and family; no row below the bound, none below the solver's best."""
    from pipeplan.baselines.partitioners import PARTITIONERS
    from pipeplan.baselines.planners import PLANNERS

    assert main(["compare", model_file, "--devices", "2", "--batch", "8", "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    families = {row["schedule"] for row in table["rows"]}
    assert {(row["method"], row["schedule"]) for row in table["rows"]} == {
        (method, family) for method in [*PARTITIONERS, *PLANNERS, "pipeplan"] for family in families
    }
    times = [row["step_time_s"] for row in table["rows"] if row["step_time_s"] is not None]
    best = min(row["step_time_s"] for row in table["rows"] if row["method"] == "pipeplan")
    assert best == min(times) >= table["bound_s"]


def test_doctor_finds_every_solver(capsys: pytest.CaptureFixture[str]) -> None:
    """In a sound environment ``doctor`` reports no problem."""
    assert main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["solvers"] == dict.fromkeys(SOLVERS, "works")


@pytest.mark.parametrize(
    ("file", "devices", "milliseconds"),
    [
        ("vgg16", 4, 216.4),
        ("vgg16", 8, 159.5),
        ("resnet50", 4, 111.5),
        ("resnet50", 8, 56.7),  # 58.4 along the listed order
        ("gnmt", 4, 25.9),
        ("gnmt", 8, 19.0),
    ],
)
def test_public_profiles_reach_the_known_optimum(
    file: str, devices: int, milliseconds: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """On PipeDream's profiles, equal devices and free links, the bottleneck is the known one of a chain, or below.

    The known value is per micro-batch, pipeplan's per sample.
    """
    path = str(shared(f"pipedream/{file}.graph.txt"))
    assert main(["solve", path, "--devices", str(devices), "--objective", "bottleneck", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["status"] == "optimal"
    assert answer["step_time_s"] * answer["micro_batch"] * 1e3 == pytest.approx(milliseconds, abs=0.051)


@pytest.mark.parametrize("file", ["vgg16", "resnet50"])
def test_slow_links_change_the_plan(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With 1.25 GB/s links another partition is best, and it is at least as good as every partitioner's."""
    path = str(shared(f"pipedream/{file}.graph.txt"))
    answers = []
    for extra in ([], ["--bandwidth", "1.25GB/s"]):
        assert main(["solve", path, "--devices", "4", "--objective", "bottleneck", "--json", *extra]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    free, priced = answers
    assert [stage["layers"] for stage in free["stages"]] != [stage["layers"] for stage in priced["stages"]]
    for row in priced["balancers"].values():
        assert row["step_time_s"] is None or row["step_time_s"] >= priced["step_time_s"]


def test_progress_names_the_question_and_stays_on_standard_error(
    model_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With ``--json`` too, each line says what is searched, in which figure and unit, and how many nodes are open."""
    assert main(["compare", model_file, "--devices", "3", "--batch", "16", "--schedules", "gpipe", "--json"]) == 0
    said = capsys.readouterr()
    json.loads(said.out)
    lines = [line for line in said.err.splitlines() if line.startswith("solving ")]
    assert lines
    for line in lines:
        assert re.match(r"solving \S+ on .*, gpipe: (step time [0-9.e+]+ \w+|no plan yet) +bound .* nodes? open$", line)


def test_stages_of_like_layers_share_a_line() -> None:
    """Of more than 8 stages, those with layers of the same names but for numbers have one line together."""
    plain = model_of([9, *[5] * 10, 7])
    model = replace(plain, layers=(*plain.layers[:-1], replace(plain.layers[-1], name="head")))
    result = solve(model, equal_devices(12), 12, depths=(12,), replicas=(1,), schedules=("1f1b-sno",))
    stages = [line for line in str(result).splitlines() if line.startswith("  stage")]
    assert [line.split(":")[0] for line in stages] == ["  stages 0 to 10", "  stage 11"]
