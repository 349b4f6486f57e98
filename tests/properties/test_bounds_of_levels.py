"""The bounds of rows of modes at levels 1 to 3 of ZeRO against the simulated steps of their plans."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from random import Random
from typing import Any

import numpy as np
import pytest

from helpers.quick import rarely
from helpers.rows import below_rows
from pipeplan.core.errors import InputError
from pipeplan.costs.kept import Kept
from pipeplan.search.nodes import row_tables, shapes
from pipeplan.search.space.space import Space
from pipeplan.search.space.spaces import Spaces
from pipeplan_formulations.common.exposed import Collectives
from referee import questions
from referee.bridge import objects
from referee.documents import Document


def sharded(number: int) -> Document:
    """A random question about one stage of a device at level 2 or 3 of ZeRO."""
    random, document = Random(f"sharded {number}"), questions.question(number)
    job, nodes = document["job"], document["cluster"]["nodes"]
    kept = "batch", "micro_batches", "memory", "optimizer", "recompute", "overlap_reduction", "reserve"
    document["job"] = {name: job[name] for name in kept if name in job} | {"zero": [random.choice((2, 3))]}
    document["cluster"]["overlap"] = True
    document["model"].pop("shared_parameters", None)
    while sum(len(node["devices"]) for node in nodes) < random.choice((4, 5, 6)):
        random.choice(nodes)["devices"].append(dict(nodes[0]["devices"][0]))
    if random.random() < 0.7:
        document["job"]["replicas"] = [2]
    return document


def gathering(number: int) -> Document:
    """The same at level 1, where replicas gather parameters at the begin of a step, mostly over a slow network."""
    document = sharded(number)
    document["job"]["zero"] = [1]
    if number % 3:
        document["cluster"]["network"] = {"bandwidth": 1, "latency": "1ns"}
    return document


def spaces_of(document: Document) -> Iterator[Space]:
    """The spaces in which stages share out what they have."""
    with suppress(InputError):
        yield from (space for space in Spaces(*objects(document)).in_one_round if space.job.level)


@pytest.mark.parametrize("numbers", [range(40), rarely(range(40, 300))], ids=len)
def test_no_plan_of_shared_gradients_is_below_its_row(numbers: Iterable[int]) -> None:
    """With what passes wait for, and the buffers of gathers and sums, rows are bounded by no more than any plan."""
    assert [*below_rows(numbers, sharded, spaces_of)] == []


@pytest.mark.parametrize("numbers", [range(40), rarely(range(40, 300))], ids=len)
def test_no_plan_that_gathers_is_below_its_row(numbers: Iterable[int]) -> None:
    """A stage begins behind its gathers, or behind the stages before, but not behind both."""
    assert [*below_rows(numbers, gathering, spaces_of)] == []


def test_gathers_behind_the_stages_before_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if gathers took twice as long."""
    waits = Collectives.waits
    monkeypatch.setattr(Collectives, "waits", lambda *asked: 2 * waits(*asked))
    assert [*below_rows([17], gathering, spaces_of)]


def slowest_ring(prices: Any, each: Any, size: int, among: Sequence[Any]) -> tuple[Any, ...]:
    """As if passes waited for the slowest ring of any placement."""
    rows = [prices.sync.passes(each.kind, size, ring).least for ring in among]
    return tuple(np.maximum.reduce(own) for own in zip(*rows, strict=True))


def buffers_twice(begun: Callable[..., Any]) -> Callable[..., Any]:
    """As if collectives needed their buffers twice."""
    return lambda own, kind, workspace, *asked: 2 * begun(own, kind, workspace, *asked) - workspace


@pytest.mark.parametrize(
    ("wrong", "number"),
    [
        (lambda many, ranges: [(few, max(many - max(few, 1), 0)) for few, _ in ranges], 81),
        (lambda _, ranges: ranges[:1], 10),
        (lambda _, ranges: [(few + 1, late) for few, late in ranges], 5),
    ],
    ids=["the least in the warm-up", "one range", "more in memory"],
)
def test_counts_of_no_range_are_noticed(
    monkeypatch: pytest.MonkeyPatch, wrong: Callable[[int, list[tuple[int, int]]], Any], number: int
) -> None:
    """Each count of a plan lies in a range, with no less in memory than its least and no more before a backward."""
    ranges = row_tables._ranges
    monkeypatch.setattr(row_tables, "_ranges", lambda many, *ends: wrong(many, [*ranges(many, *ends)]))
    assert [*below_rows([number], sharded, spaces_of)]


def test_rings_of_other_placements_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row stands for all placements, so passes wait for the fastest ring of any."""
    monkeypatch.setattr(shapes, "least_passes", slowest_ring)
    assert [*below_rows([23], sharded, spaces_of)]


def test_larger_buffers_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a plan needs for its collectives is what its row leaves room for."""
    begun, tables = Kept.with_buffers, shapes.ShapeTables.__init__

    def begin(own: Any, *asked: Any) -> None:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Kept, "with_buffers", buffers_twice(begun))
            tables(own, *asked)

    monkeypatch.setattr(shapes.ShapeTables, "__init__", begin)
    assert [*below_rows([9], sharded, spaces_of)]
