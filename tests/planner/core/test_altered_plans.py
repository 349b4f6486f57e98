"""Plan files with one altered number, word or list: refused, or harmless for a reason that is given here."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from helpers.fpga_lines import board, line_cluster
from helpers.fpga_lines import model_of as streamed
from helpers.instances import equal_devices, model_of
from helpers.operators import perceptrons
from helpers.quick import QUICK
from pipeplan import Cluster, DeviceKind, Link, Plan
from pipeplan.cli.main import main
from pipeplan.core.cluster import Node, Overlap
from pipeplan.core.errors import InputError
from pipeplan.core.model import Tie
from pipeplan.io.plan_file import plan_data
from pipeplan.solve import solve

HARMLESS = {
    r"model|cluster": "a name, which no number rests on",
    r"fingerprint": "`run` and `calibrate` hold it against the model",
    r"device_kinds\[\d+\]": "a name; replicas of unlike names and limits that differ within a name are refused",
    r"device_kinds": "kinds of devices that no rank runs on may be listed or not; `validate_plan` compares them",
    r"micro_batch": "samples of a micro-batch; nothing else in the file counts samples, if the plan is about a step",
    r"zero": "of stages without replicas or without state",
    r"stages\[\d+\]\.team": "another number of devices, where the plan has teams; `run` starts as many processes",
    r"yardstick(\..*)?": "what throughput is measured by, which no other number of the file rests on",
    r"shards(\[\d+\].*)?": "names and axes, which `run` compares with the model",
    r"strategies\[\d+\].*": "operators and tensors, which `run` compares with the model",
    r"stages\[\d+\]\.(links|sharing)(\[\d+\].*)?": "of a team, by which `run` orders collectives",
    r"parallelism(\[\d+\])?": "what teams split, for reports",
    r"schedule\.family": "a name; the lists themselves are what runs",
    r"stages\[\d+\]\.layers(\[\d+\])?": "names, which `run` compares with the model; only where none is divided",
    r"stages\[\d+\]\.recompute(\[\d+\])?": "which layers `run` computes again; their time is in the backward",
    r"pipeline\.limits\[\d+\]": "of the only device of its kind, and still no less than it holds",
    r"pipeline\.stages\[\d+\]\.(input|weight)_gradient": "times of split backwards, where the lists have joined ones",
    r"pipeline\.stages\[\d+\]\.held_after_input_gradient": "bytes between split backwards, where they are joined",
    r"pipeline\.stages\[\d+\]\.forward_workspace": "workspace of a second lane, where there is one",
    r"pipeline\.stages\[\d+\]\.(update|reduce)": "time off the critical path",
    r"pipeline\.stages\[[1-9]\d*\]\.gather": "gathers that end before the first tensor is there",
    r"pipeline\.stages\[\d+\]\.(gather_)?buckets(\[\d+\].*)?": "collectives that a pass hides, whatever they take",
    r"schedule\.orders\[\d+\]": "another order that keeps every rule, takes as long and holds no more",
    r"schedule\.two_lanes": "one lane is enough where a device never has two things to do",
}
"""Paths, by pattern, whose alteration may be accepted, and why. Everything else must be refused."""


def _kinds() -> dict[str, Callable[[], Plan]]:
    chain = model_of([7, 5, 9, 6, 8], saved=[8] * 5, output=[4, 2, 6, 2, 4], parameters=[40] * 5, update=[3] * 5,
                     sizes=(1, 2, 4))  # fmt: skip
    slow_end = model_of([7, 5, 9, 6, 8], saved=[8] * 5, parameters=[40] * 5, update=[3, 3, 3, 3, 400])
    tied = replace(chain, ties=(Tie(("l0", "l4"), 40),))
    boxes = replace(
        equal_devices(1), nodes=(Node(("unit", "unit"), Link(10**9, 2)),) * 2, network=Link(10**8, 5), name="boxes"
    )
    waiting = replace(boxes, overlap=Overlap.NONE)
    unlike = Cluster(
        "unlike",
        {"unit": DeviceKind("unit", memory=10**4), "slow": DeviceKind("slow", timed_as="unit", speed=0.5, runtime=9)},
        (Node(("unit", "slow", "unit"), Link(10**9, 1)),),
        overlap=Overlap.COPY,
    )
    tight = equal_devices(2, memory=460, link=Link(10**9, 1))
    boards = line_cluster([board(), board()])

    def made(model: Any, cluster: Cluster, batch: int, **options: Any) -> Callable[[], Plan]:
        return lambda: solve(model, cluster, batch, time_limit=5, **options).plan

    return {
        "replicas": made(chain, boxes, 8, depths=(2,), replicas=(2,), optimizer="adam"),
        "zero1": made(chain, boxes, 8, depths=(2,), replicas=(1, 2), optimizer="adam", zero=(1,)),
        "recompute": made(chain, tight, 8, recompute="full", depths=(2,)),
        "ties": made(tied, boxes, 8, depths=(3,), replicas=(1,), optimizer="momentum"),
        "two lanes": made(chain, equal_devices(2, link=Link(10**9, 1)), 8, schedules=("fbp-as",), depths=(2,)),
        "unlike": made(chain, unlike, 8, depths=(3,)),
        "waiting": made(chain, waiting, 8, depths=(2,)),
        "bottleneck": made(chain, boxes, 8, objective="bottleneck"),
        "waiting bottleneck": made(chain, waiting, 8, objective="bottleneck", depths=(2,)),
        "period": made(slow_end, boxes, 8, objective="period", depths=(2,), replicas=(1,)),
        "found": made(chain, equal_devices(3, link=Link(10**9, 1)), 4, schedules=("gpipe", "any"), depths=(3,)),
        "teams": made(perceptrons(), equal_devices(4, link=Link(10**9, 1)), 4, teams=(2,), optimizer="adam"),
        "divided": made(
            streamed([3000, 9000, 3000], output=10), boards, 8, micro_batches=(8,), replicas=(1,), intra_layer=True
        ),
    }


KINDS = _kinds()


@cache
def plan(kind: str) -> Plan:
    """A plan of that kind, solved once."""
    return KINDS[kind]()


def leaves(data: Any, path: str = "") -> Iterator[tuple[str, Any, Callable[[Any], None]]]:
    """Every value in nested data with its path and how to put another in its place; lists count as values too."""
    entries = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in list(entries):
        here = f"{path}[{key}]" if isinstance(key, int) else f"{path}.{key}" if path else str(key)

        def put(other: Any, key: Any = key) -> None:
            data[key] = other

        if not isinstance(value, dict):
            yield here, value, put
        if isinstance(value, dict | list):
            yield from leaves(value, here)


def others(value: Any) -> Iterator[Any]:
    """Replacements for a value."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from {value + 1, max(value - 1, 0), 2 * value, 0, value + 1000} - {value}
    elif isinstance(value, float):
        yield from {value / 2, 0.999} - {value}
    elif isinstance(value, str):
        yield value + "x"
        actions = value.split()
        if len(actions) > 2:
            yield from (" ".join(changed) for changed in _reordered(actions))
    elif value is None:
        yield 1
    elif isinstance(value, list) and value:
        yield value[:-1]
        yield [*value, value[-1]]
        if value != value[::-1]:
            yield value[::-1]


def _reordered(actions: list[str]) -> Iterator[list[str]]:
    """A list of actions with one dropped, one doubled, two neighbours exchanged, one of another micro-batch."""
    middle = len(actions) // 2
    yield actions[:middle] + actions[middle + 1 :]
    yield [*actions, actions[0]]
    for at in (0, middle - 1, len(actions) - 2):
        yield [*actions[:at], actions[at + 1], actions[at], *actions[at + 2 :]]
    yield [re.sub(r"([FBIW])(\d+)", lambda m: f"{m[1]}{int(m[2]) + 1}", actions[0]), *actions[1:]]


def altered(kind: str) -> Iterator[tuple[str, Any, Any, dict[str, Any]]]:
    """Every alteration of a plan: the path, what stood there, what stands there now, and the whole until the next."""
    data = json.loads(json.dumps(plan_data(plan(kind))))
    for path, value, put in list(leaves(data)):
        for other in [each for each in others(value) if each != value]:
            put(other)
            yield path, value, other, data
        put(value)


@pytest.mark.parametrize("kind", KINDS)
def test_what_contradicts_itself_is_refused(kind: str, tmp_path: Path) -> None:
    """Each number, word and list of a plan file, altered by itself, is refused or is harmless by name."""
    path = tmp_path / "plan.json"
    accepted, count = [], 0
    for count, (where, value, other, data) in enumerate(altered(kind)):
        if QUICK and count % 3:
            continue
        path.write_text(json.dumps(data))
        try:
            Plan.load(path)
        except InputError:
            continue
        accepted.append((where, value, other))
    unexpected = [each for each in accepted if not any(re.fullmatch(pattern, each[0]) for pattern in HARMLESS)]
    assert count > 100
    assert not unexpected


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_not_altered_is_read(kind: str, tmp_path: Path) -> None:
    """A plan of every kind comes back as it was saved."""
    plan(kind).save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan(kind)


def test_kinds_are_what_they_are_called() -> None:
    """The plans really have replicas, ties, two lanes, found orders, recomputed and divided layers."""
    assert all(stage.replicas == 2 for stage in plan("replicas").stages)
    assert plan("zero1").zero == 1
    assert plan("ties").pipeline.tied
    assert plan("two lanes").schedule.two_lanes
    assert any(stage.recompute for stage in plan("recompute").stages)
    assert any(stage.shares for stage in plan("divided").stages)
    assert len(set(plan("unlike").device_kinds)) == 2
    assert plan("period").period < plan("period").step_time
    assert len({stage.replicas for stage in plan("bottleneck").stages}) >= 1


def test_the_program_refuses_it_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``simulate`` and ``run`` end with exit code 2 and name the claim."""
    data = plan_data(plan("replicas"))
    data["stages"][0]["memory"]["weights"] += 1
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    for arguments in (["simulate", str(path)], ["run", str(path), "module:function"], ["explain", str(path)]):
        assert main(arguments) == 2
        assert "contradicts itself" in capsys.readouterr().err
