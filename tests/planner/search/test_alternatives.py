"""Errors where no plan fits: they name the searched space, and each option that they name helps."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.foreign_workloads import training, workload
from helpers.instances import equal_devices, model_of
from pipeplan import Cluster, InfeasibleError, Model, remedies
from pipeplan.analysis.compare import compare
from pipeplan.cli.main import main
from pipeplan.core import searched
from pipeplan.core.job import Job
from pipeplan.search.alternatives import alternatives, changes
from pipeplan.search.infeasible import least_sufficient_memory
from pipeplan.search.space.spaces import Spaces
from pipeplan.solve import solve

TWO = model_of([10, 10], saved=[100, 100], output=[4, 4])
"""Two layers that keep 100 bytes per micro-batch; every family has two in flight on the first of two stages."""
DEVICES = equal_devices(2, memory=150)


def refusal(model: Model, cluster: Cluster, job: Job) -> str:
    """The error message where no plan fits, on one line."""
    with pytest.raises(InfeasibleError) as caught:
        solve(model, cluster, job=job, time_limit=20)
    return " ".join(str(caught.value).split())


def test_another_order_that_fits_is_named_with_its_memory() -> None:
    """With one micro-batch in flight on each stage 104 bytes are enough: only ``--schedules any`` searches that."""
    job = Job(4, recompute="none")  # type: ignore[arg-type]
    text = refusal(TWO, DEVICES, job)
    assert "No plan fits among those searched: the devices have 150 B each" in text
    assert "searched: 1 or 2 stages of contiguous layers" in text
    assert "--schedules any: a plan fits, with 104 B per device" in text
    found = solve(TWO, equal_devices(2, memory=104), job=replace(job, schedules=("any",)), time_limit=20)
    assert max(found.timeline.peaks) <= 104


@pytest.mark.parametrize("given", ["a", "b"])
def test_what_would_fit_fits(given: str) -> None:
    """The memory that the message names is enough for the space itself."""
    job = Job(4, recompute="none", schedules=("gpipe",) if given == "a" else ())  # type: ignore[arg-type]
    found = least_sufficient_memory(Spaces(TWO, DEVICES, job).lean)
    assert found is not None
    assert solve(TWO, equal_devices(2, memory=found[0]), job=job, time_limit=20).plan
    assert f"devices of {found[0]}B" in refusal(TWO, DEVICES, job)


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"recompute": "none"}, "--recompute choose"),
        ({"depths": (1,), "recompute": "none", "schedules": ("gpipe",)}, "without --depths"),
        ({"optimizer": "adam", "replicas": (2,), "zero": (0,)}, "without --zero"),
        ({"optimizer": "adam", "replicas": (2,), "zero": (0,)}, "without --replicas"),
        ({"together": (("l0", "l1"),), "replicas": (2,)}, "without --together"),
        ({"schedules": ("gpipe",), "recompute": "none"}, "without --schedules"),
        ({"micro_batches": (1,), "recompute": "none"}, "without --micro-batches"),
    ],
)
def test_every_option_that_is_named_helps(options: dict, option: str) -> None:
    """Each change that is named has a plan with the memory in the message, and is listed only if it helps."""
    model = model_of([3, 3, 3, 3], saved=[20] * 4, output=[1] * 4, parameters=[10] * 4, sizes=(1, 2, 4))
    job = Job(4, **options)
    known = least_sufficient_memory(Spaces(model, equal_devices(4), job).lean)
    assert known is not None
    tight = equal_devices(4, memory=known[0] - 1)
    spaces = Spaces(model, tight, job)
    offered = {change.option: change.changed for change in changes(spaces)}
    assert option in offered
    found = [each for each in alternatives(spaces, known[0], until=1e18) if each.option in offered]
    for each in found:
        other = replace(job, **offered[each.option])
        cluster = tight if each.fits else equal_devices(4, memory=each.need)
        assert solve(model, cluster, job=other, time_limit=20).plan
        assert each.fits == (each.need < known[0])
    helps = option in [each.option for each in found]
    larger = least_sufficient_memory(Spaces(model, equal_devices(4), replace(job, **offered[option])).lean)
    assert larger is not None
    assert helps == (larger[0] < known[0])


def test_options_that_help_only_together_are_named_together() -> None:
    """A pipeline of more stages needs 124 bytes per device, smaller micro-batches 240, and both together 120."""
    model = model_of([3] * 4, saved=[20] * 4, output=[1] * 4, parameters=[20] * 4, sizes=(1, 2, 4))
    job = Job(4, depths=(1,), micro_batches=(1,), recompute="none")  # type: ignore[arg-type]
    text = refusal(model, equal_devices(4, memory=122), job)
    assert "Otherwise: without --depths and without --micro-batches: a plan fits, with 120 B per device" in text
    alone = refusal(model, equal_devices(4, memory=122), replace(job, depths=()))
    assert "devices of 124B" in alone


def test_constraints_that_no_partition_meets_are_named() -> None:
    """Pins against the given order of devices: no memory helps; without the pins a plan fits."""
    pins = (("l0", "d1"), ("l1", "d0"))
    text = refusal(TWO, DEVICES, Job(4, replicas=(1,), order="given", pin=pins))  # type: ignore[arg-type]
    assert "no cut of the layers keeps to --pin" in text
    assert "What would fit" not in text
    assert "without --pin: a plan fits" in text


def test_impossible_depths_are_explained() -> None:
    """Seven stages of two layers: the message has both numbers, and says that other depths fit."""
    text = refusal(TWO, DEVICES, Job(4, depths=(7,)))
    assert "7 stages or more are asked for" in text
    assert "without --depths: a plan fits" in text


def test_the_jobs_own_limit_is_distinguished_from_the_devices() -> None:
    """Too little memory for static bytes: that holds for every plan, and without --memory one fits."""
    model = model_of([1, 1], parameters=[100, 100])
    text = refusal(model, equal_devices(2, memory=500), Job(1, memory=100))
    assert "holds for every plan, searched or not" in text
    assert "without --memory: a plan fits" in text


def test_a_comparison_names_all_families() -> None:
    """Where no family fits, the text names all of them, not the first."""
    with pytest.raises(InfeasibleError) as caught:
        compare(TWO, DEVICES, Job(4, recompute="none"), time_limit=200)  # type: ignore[arg-type]
    text = " ".join(str(caught.value).split())
    assert "schedules gpipe, 1f1b-sno, 1f1b-so, 1f1b," in text
    assert "--schedules any" in text


def test_explain_names_the_space_of_its_proof() -> None:
    """Infeasibility is proved for the plans searched; ``--schedules any`` is among the remedies."""
    found = remedies(TWO, DEVICES, Job(4, recompute="none"), time_limit=5)  # type: ignore[arg-type]
    assert found is not None
    text = str(found)
    assert text.startswith("No plan fits among those searched, proved.")
    assert "searched: 1 or 2 stages" in text
    assert "fits: --schedules any (a plan with 104 B a device)" in text
    assert found.as_json()["searched"]["partitions"] == searched.CONTIGUOUS  # type: ignore[index, call-overload]


@pytest.mark.parametrize("project", ["piper", "dnn-partitioning"])
def test_published_rules_say_what_would_fit(project: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The memory in the message fits, a byte less does not; the answer describes the searched space."""

    def ask(memory: float) -> tuple[int, str]:
        if project == "piper":
            data, field = workload(), "maxMemoryPerDevice"
            for node in data["nodes"]:
                node["TMPCs"] = {"1": node["TMPCs"]["1"][:1]}
        else:
            data, field = training() | {"maxCPUs": 0}, "maxSizePerFPGA"
        path = tmp_path / "case.json"
        path.write_text(json.dumps(data | {field: memory}))
        code = main(["solve", str(path), "--rule", "published"])
        said = capsys.readouterr()
        return code, said.out + said.err

    code, text = ask(15.0)
    assert code == 1
    assert "15 B each" in text
    assert "with less none fit, proved" in text
    assert "searched: any layers that read from no later stage" in text
    need = int(text.partition("What would fit: ")[2].split()[0])
    assert ask(need - 1)[0] == 1
    code, text = ask(need)
    assert code == 0
    assert "not searched" in text
    assert "costs: imported from case.json" in text


def test_variants_that_differ_in_number_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Piper's rule lets every layer take every variant; a file without them is bad input, with the layers named."""
    path = tmp_path / "case.json"
    path.write_text(json.dumps(workload()))
    assert main(["solve", str(path), "--rule", "published"]) == 2
    assert "list the same variants for every layer" in capsys.readouterr().err
