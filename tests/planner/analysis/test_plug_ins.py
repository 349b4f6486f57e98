"""Partitioners, planners, schedule families and commands from outside: judged, bounded and listed like the rest."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from helpers.instances import equal_devices, fat_head, model_of
from helpers.shared_data import ROOT
from pipeplan.analysis.compare import compare
from pipeplan.analysis.sweep.run import sweep
from pipeplan.baselines.partitioners import PARTITIONERS
from pipeplan.baselines.partitioners.uniform import deepspeed
from pipeplan.baselines.planners import PLANNERS, Arrangement
from pipeplan.cli.main import commands, main
from pipeplan.core.cluster import Cluster, Link
from pipeplan.core.errors import InputError
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.core.plug_ins import Registry
from pipeplan.core.schedule import Schedule
from pipeplan.costs.chain import Chain
from pipeplan.costs.collectives import COLLECTIVES, Ring
from pipeplan.io.cluster_file import write_cluster
from pipeplan.io.model_file import write_model
from pipeplan.schedules import FAMILIES, Family
from pipeplan.search.result import Result
from pipeplan.solve import solve


def head_alone(chain: Chain, _: int) -> Sequence[int]:
    """The head on the last device, all else on the others.

    The rest of the text is not in tables.
    """
    share = -(-(chain.layers - 1) // max(chain.stages - 1, 1))
    return (*(min(share * s, chain.layers - 1) for s in range(chain.stages)), chain.layers)


def one_pipeline(model: Model, _: Cluster, __: Job, ___: int) -> tuple[Arrangement, ...]:
    """All layers on the first device."""
    return (Arrangement((0, len(model.layers)), ((0,),)),)


def _gpipe(replicas: Sequence[int], micro_batches: int) -> Schedule:
    return FAMILIES["gpipe"].write(replicas, micro_batches)


def _all_of_them(replicas: Sequence[int], micro_batches: int) -> tuple[int, ...]:
    return FAMILIES["gpipe"].in_flight(replicas, micro_batches)


def _one(replicas: Sequence[int], _: int) -> tuple[int, ...]:
    return (1,) * len(replicas)


class Star(Ring):
    """Every replica sends all bytes to the first one, which sends the sums back: no more than a ring's latency."""

    name = "star"

    @property
    def base(self) -> int:
        """Nanoseconds of latency there and back."""
        return self.ways * self.link.latency

    def times(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return what there and back take; at least 1."""
        return np.array([max(self._taken(size), size > 0) for size in sizes.tolist()], np.int64)

    def _taken(self, size: int) -> int:
        return self.ways * (self.replicas - 1) * self.link.occupancy(size)

    def lower_bound(self, size: int) -> int:
        """Return what there and back take, with their latency."""
        return self.base + self._taken(size)


class Boasting(Star):
    """A star whose bound is above its times."""

    name = "boasting"

    def lower_bound(self, size: int) -> int:
        """Return more than it takes."""
        return 2 * super().lower_bound(size)


FLUSH = Family("flush", _gpipe, _all_of_them, frozenset(), "all forwards, then all backwards")

JOB = Job(batch=8, optimizer="sgd", replicas=(1,))


def test_functions_are_rows_of_a_comparison() -> None:
    """A function of two arguments is a partitioner, one of four a planner; a family is solved, with a bound."""
    found = compare(fat_head(), equal_devices(3), job=JOB, time_limit=20, plug_ins=[head_alone, one_pipeline, FLUSH])
    rows = {(row.method, row.family): row for row in found.rows}
    assert rows["head-alone", "gpipe"].value is not None
    assert rows["pipeplan", "flush"].value == rows["pipeplan", "gpipe"].value
    assert rows["head-alone", "flush"].value == rows["head-alone", "gpipe"].value
    assert rows["one-pipeline", "gpipe"].label.startswith("1 stage")
    assert all(row.excess is None or row.outside or row.excess >= 0 for row in found.rows)
    assert "flush" in found.searched.as_text()
    assert not {"head-alone", "one-pipeline", "flush"} & {*PARTITIONERS, *PLANNERS, *FAMILIES}


@pytest.mark.parametrize(
    ("plugged", "lesson"),
    [
        (lambda chain, many: (), "lambda has no name"),
        (replace(PARTITIONERS["gpipe"], name="pipedream"), "'pipedream' is the name of another one"),
        (print, "cannot be plugged in"),
        (replace(FLUSH, name="1f1b-mine"), "without '1f1b' in front"),
    ],
)
def test_what_cannot_be_used_is_named(plugged: object, lesson: str) -> None:
    """A lambda, a taken name, another kind of function are refused."""
    with pytest.raises(InputError, match=lesson):
        compare(fat_head(), equal_devices(2), job=JOB, time_limit=20, plug_ins=[plugged])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("family", "lesson"),
    [
        (replace(FLUSH, in_flight=_one), "'flush'.*stage 0 holds 8 micro-batches, and in_flight says 1"),
        (replace(FLUSH, write=lambda replicas, many: None), "schedule family 'flush'"),
    ],
)
def test_what_a_wrong_family_does_is_the_reason_in_its_row(family: Family, lesson: str) -> None:
    """One that holds more than it states, or writes nothing; alone it is refused."""
    found = compare(fat_head(), equal_devices(2), job=JOB, time_limit=20, plug_ins=[family])
    rows = {row.family: row for row in found.rows if row.method == "pipeplan"}
    assert re.search(lesson, rows["flush"].why)
    assert rows["gpipe"].value is not None
    alone = replace(JOB, schedules=("flush",))
    with pytest.raises(InputError, match=lesson):
        compare(fat_head(), equal_devices(2), job=alone, time_limit=20, plug_ins=[family])


def test_a_wrong_partition_is_a_reason_and_no_end() -> None:
    """Boundaries that divide nothing, and errors, stand in the row; all other rows are there."""

    def wrong(_: Chain, __: int) -> tuple[int, ...]:
        return (0, 99)

    rows = compare(fat_head(), equal_devices(2), job=JOB, time_limit=20, plug_ins=[wrong]).rows
    assert any(row.method == "wrong" and "do not divide 9 layers" in row.why for row in rows)
    assert any(row.method == "pipedream" and row.value for row in rows)


@pytest.mark.slow
def test_a_sweep_judges_them_too(tmp_path: Path) -> None:
    """Processes of cells import what is plugged in, and a cell without it is solved again."""
    write_model(fat_head(), tmp_path / "model.yaml")
    write_cluster(equal_devices(2), tmp_path / "cluster.yaml")

    def asked(*plug_ins: object) -> dict[str, object]:
        places = [str(tmp_path / "model.yaml")], str(tmp_path / "cluster.yaml")
        (record,) = sweep(*places, job=JOB, folder=tmp_path / "out", plug_ins=plug_ins)  # type: ignore[arg-type]
        return dict(record.beside)

    assert "deepspeed" not in asked()
    assert "deepspeed" in asked(deepspeed)


def test_links_name_a_collective() -> None:
    """Gradients are summed by the algorithm that the link names: a star gains where latency counts, and is bounded."""

    model = model_of([100_000] * 4, parameters=[2**20] * 4, sizes=(1, 2))

    def best(collective: str) -> Result:
        cluster = equal_devices(4, link=Link(10**12, 100_000, collective=collective))
        job = Job(8, optimizer="sgd", zero=(0,), depths=(1,), replicas=(4,))
        found = compare(model, cluster, job=job, plug_ins=[Star], time_limit=20).best
        assert found.status == "optimal"
        return found

    ring, star = best("ring"), best("star")
    assert star.value < ring.value
    with pytest.raises(InputError, match="collective 'stair' of a link is not known; did you mean 'star'"):
        best("stair")
    with pytest.raises(InputError, match="lower_bound of 1000000 bytes over 2 replicas"):
        compare(fat_head(), equal_devices(2), job=JOB, plug_ins=[Boasting])


def test_a_sweep_refuses_what_processes_cannot_import(tmp_path: Path) -> None:
    """A function inside another one is refused before anything is solved."""

    def inside(_: Chain, __: int) -> tuple[int, ...]:
        return ()

    with pytest.raises(InputError, match="write it into a module"):
        sweep(["gnmt-8"], "4-v100-nvlink", job=JOB, folder=tmp_path / "out", plug_ins=[inside])


def test_the_example_of_the_page_runs() -> None:
    """The function of ``docs/plug-ins.md`` is a row."""
    page = (ROOT / "docs" / "plug-ins.md").read_text(encoding="utf-8")
    space: dict[str, Any] = {}
    exec(page.split("```python\n")[1].split("```")[0].partition("print(")[0], space)
    rows = compare(fat_head(), equal_devices(3), job=JOB, plug_ins=[space["head_alone"]]).rows
    assert any(row.method == "head-alone" and row.value for row in rows)


@pytest.fixture
def announced(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Registry[object], str, str], None]]:
    """Announce an entry point of a group, as an installed package does."""

    def announce(registry: Registry[object], name: str, value: str) -> None:
        registry.__dict__.pop("announced", None)
        point = EntryPoint(name, value, registry.group)
        points = SimpleNamespace(of=lambda group: [point] if group == registry.group else [])
        monkeypatch.setattr("pipeplan.core.plug_ins.entry_points", lambda group: points.of(group))

    yield announce
    for registry in (PARTITIONERS, PLANNERS, FAMILIES, COLLECTIVES):
        registry.__dict__.pop("announced", None)


def test_entry_points_are_listed_and_judged(announced: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    """A function announced by a package is a row of ``solve`` and a line of ``list``."""
    announced(PARTITIONERS, "mine", f"{__name__}:head_alone")
    assert solve(fat_head(), equal_devices(2), job=JOB).baselines["mine"].value is not None
    assert main(["list", "balancers"]) == 0
    assert "The head on the last device, all else on the others" in capsys.readouterr().out
    announced(FAMILIES, "flush", f"{__name__}:FLUSH")
    assert solve(fat_head(), equal_devices(2), job=replace(JOB, schedules=("flush",))).plan.schedule.family == "flush"


def test_collectives_are_listed(announced: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    """Pipeplan's own and those of packages, each with a line; of a broken one that is the reason."""
    announced(COLLECTIVES, "star", f"{__name__}:Star")
    assert main(["list", "collectives"]) == 0
    assert re.search(r"ring +A ring all-reduce[^\n]*\nstar +Every replica sends", capsys.readouterr().out)
    announced(COLLECTIVES, "star", "no.such.package:Star")
    assert main(["list", "collectives"]) == 0
    assert "cannot be loaded" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("value", ["no.such.package:cut", f"{__name__}:JOB", "math:pi"])
def test_a_broken_one_is_named_and_breaks_nothing(value: str, announced: Callable[..., None]) -> None:
    """What cannot be imported or is of another kind has no plan, with its name and the error; a family is refused."""
    announced(PARTITIONERS, "mine", value)
    rows = solve(fat_head(), equal_devices(2), job=JOB).baselines
    assert rows["mine"].value is None
    assert "pipeplan.partitioners 'mine'" in rows["mine"].why
    announced(FAMILIES, "mine", value)
    assert solve(fat_head(), equal_devices(2), job=JOB).value
    with pytest.raises(InputError, match=r"pipeplan\.schedules 'mine'"):
        solve(fat_head(), equal_devices(2), job=replace(JOB, schedules=("mine",)))


def test_a_broken_command_breaks_no_other(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It stands in the help with its error, which is also what it says when it is called."""
    point = EntryPoint("mine", "no.such.package:command", "pipeplan.commands")
    monkeypatch.setattr("pipeplan.cli.main.entry_points", lambda group: [point])
    assert "mine" in {command.name for command in commands()}
    assert main(["list", "schedules"]) == 0
    assert main(["mine", "--whatever", "3"]) == 2
    assert "the command 'mine' of no.such.package cannot be loaded: ModuleNotFoundError" in capsys.readouterr().err
