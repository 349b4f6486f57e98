"""Bounds of shapes against the partition problems of all their placements and families, on random questions."""

from collections import defaultdict
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from helpers.instances import equal_devices, model_of
from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node, Overlap
from pipeplan.core.errors import InputError
from pipeplan.core.job import SHARDED, Job
from pipeplan.core.model import Model
from pipeplan.search.nodes.shapes import sorted_shapes
from pipeplan.search.space.device_groups import Modes
from pipeplan.search.space.space import Space
from pipeplan_formulations import partition
from pipeplan_formulations.common.report import Limits
from referee.bridge import objects
from referee.questions import question

Key = tuple[tuple[tuple[str, int], ...], bool | None]


def compared(document: dict[str, Any]) -> int:
    """`candidates_of` the space of a question; 0 if there is none."""
    try:
        space = Space(*objects(document))
    except InputError:
        return 0
    listed = space.job.level < SHARDED and not space.impossible and (space.families or space.free)
    return candidates_of(space) if listed else 0


def candidates_of(space: Space) -> int:
    """Compare each shape's bound with every candidate of it; the number of candidates that fit somewhere."""
    fitting = 0
    for size in space.sizes:
        bounds: dict[Key, int] = defaultdict(lambda: 2**61)
        rows = sorted_shapes(space, size)
        most = rows[len(rows) // 2][0] if rows else 0
        assert _below(sorted_shapes(space, size, most), most) == _below(rows, most)
        for bound, alternating, modes in rows:
            key = tuple((space.classes[mode.device_class].kind.name, mode.replicas) for mode in modes), alternating
            bounds[key] = min(bounds[key], bound)  # classes of one kind differ by their links
        for groups, _ in space.device_groups(size):
            for candidate in space.candidates(groups, size):
                report = partition.solve(candidate.problem, Limits(), backend="exact")
                if report.objective is not None:
                    fitting += 1
                    key = tuple((own[0].kind.name, len(own)) for own in groups), candidate.family.alternates
                    assert bounds[key] <= report.objective, (candidate.label, bounds[key], report.objective)
    return fitting


def _below(rows: list[tuple[int, bool | None, Modes]], most: int) -> list[tuple[int, bool | None, Modes]]:
    """Those that may be better than a value: the others need no bound of their own."""
    return [row for row in rows if row[0] < most]


def unlike_kinds(draw: Random, overlap: str) -> tuple[Model, Cluster]:
    """A model with other costs, also of what passes between layers, on each of two kinds of device in one node."""

    def numbers(most: int) -> list[int]:
        return [draw.randint(1, most) for _ in range(4)]

    weights = numbers(30)
    models = [
        model_of(
            numbers(20),
            numbers(20),
            saved=numbers(9),
            output=numbers(9),
            parameters=weights,
            update=numbers(9),
            kinds=(kind,),
        )
        for kind in ("one", "other")
    ]
    model = replace(models[0], profiles=tuple(profile for each in models for profile in each.profiles))
    node, kinds = Node(("one", "other", "other"), Link(10**9, draw.randint(0, 9))), ("one", "other")
    return model, Cluster("unlike", {kind: DeviceKind(kind) for kind in kinds}, (node,), None, Overlap(overlap))


@pytest.mark.parametrize("overlap", ["none", "copy", "stream"])
@pytest.mark.parametrize("family", ["1f1b-sno", "1f1b-so", "gpipe", "fbp-as"])
def test_bounds_are_met_where_there_is_one_placement(overlap: str, family: str) -> None:
    """In one node, with unlimited memory and one family, a shape's bound is the value of its best partition."""
    if (overlap, family) == ("none", "fbp-as"):
        pytest.skip("two lanes compute while they send")
    draw, seen = Random(f"{overlap} {family}"), 0
    model, cluster = unlike_kinds(draw, overlap)
    ahead, level = draw.random() < 0.5, draw.randint(0, 1)
    job = Job(6, schedules=(family,), micro_batches=(6,), zero=(level,), overlap_reduction=ahead)
    space = Space(model, cluster, job)
    bounds = {
        tuple((space.classes[mode.device_class].kind.name, mode.replicas) for mode in modes): bound
        for bound, _, modes in sorted_shapes(space, 1)
    }
    for groups, _ in space.device_groups(1):
        for candidate in space.candidates(groups, 1):
            report = partition.solve(candidate.problem, Limits(), backend="exact")
            assert bounds[tuple((own[0].kind.name, len(own)) for own in groups)] == report.objective
            seen += 1
    assert seen > 7


def test_pairs_of_unlike_widths_have_few_micro_batches_each() -> None:
    """Of two and three replicas each of six pairs has one of six, so slow links between them delay only that one."""
    cluster = equal_devices(5, link=Link(10**9))
    assert candidates_of(
        Space(model_of([10, 10], output=[100, 1]), cluster, Job(6, micro_batches=(6,), replicas=(2, 3)))
    )


@pytest.mark.parametrize("part", range(2))
def test_no_partition_is_better_than_the_bound_of_its_shape(part: int) -> None:
    """Whatever the placement and the family; a shape without a bound has no partition that fits."""
    assert sum(compared(question(number)) for number in range(30 * part, 30 * part + 30)) > 250


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("large", [False, True])
def test_no_partition_of_many_questions_is(large: bool) -> None:
    """The same on more questions, and on up to ten devices."""
    numbers = range(100) if large else range(1000, 2000)
    assert sum(compared(question(number, large)) for number in numbers) > 5_000
