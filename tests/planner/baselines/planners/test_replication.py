"""PipeDream's programme against exhaustive search, and against known figures of its optimizer."""

from collections.abc import Iterator
from itertools import combinations, pairwise
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.pipedream_rows import raw_chain
from helpers.shared_data import shared
from pipeplan.baselines.partitioners.partitioner import first_device_times
from pipeplan.baselines.planners.pipedream import Level, least_largest_stage

GB = 10**9
Cuts = tuple[int, ...]


def splits(total: int, parts: int) -> Iterator[Cuts]:
    """Every way to write ``total`` as ``parts`` positive numbers, in order."""
    for inner in combinations(range(1, total), parts - 1):
        edges = (0, *inner, total)
        yield tuple(b - a for a, b in pairwise(edges))


def cheapest(times: list[int], weights: list[int], crossing: list[int], levels: list[Level], a: int, b: int) -> float:
    """The least largest stage of layers a … b − 1 by trying everything, the formula written out once more."""
    if not levels:
        return sum(times[a:b])
    level = levels[-1]
    byte = 0.0 if level.bandwidth is None else 1e9 / level.bandwidth
    best = inf
    for stages in range(1, min(level.machines, b - a) + 1):
        for counts in splits(b - a, stages):
            for machines in splits(level.machines, stages):
                start, largest = a, 0.0
                for count, m in zip(counts, machines, strict=True):
                    end = start + count
                    inner = cheapest(times, weights, crossing, levels[:-1], start, end)
                    reduced = 4 * (m - 1) * sum(weights[start:end]) * byte / (m * level.inside)
                    entering = crossing[start - 1] if start > a else 0
                    leaving = crossing[end - 1] if end < b else 0
                    largest = max(largest, (inner + reduced) / m, 2 * entering * byte / m, 2 * leaving * byte / m)
                    start = end
                best = min(best, largest)
    return best


@st.composite
def chains(draw: st.DrawFn, most: int) -> tuple[list[int], list[int], list[int]]:
    """Times, parameter bytes and crossing bytes of a few layers, ties and zeros among them."""
    n = draw(st.integers(1, most))
    some = st.integers(0, 20) | st.sampled_from([0, 5, 1000])
    row = st.lists(some, min_size=n, max_size=n)
    return draw(row), draw(row), draw(st.lists(some, min_size=n - 1, max_size=n - 1))


bandwidths = st.none() | st.sampled_from([GB // 4, GB, 10 * GB])


def check(parts: list, levels: list[Level], chain: tuple) -> None:
    """The stages hold every layer and every device once, in order."""
    times, _, _ = chain
    assert [a for a, _, _ in parts] == [0, *(b for _, b, _ in parts[:-1])]
    assert parts[-1][1] == len(times)
    devices = 1
    for level in levels:
        devices *= level.machines
    assert sorted(d for _, _, own in parts for d in own) == list(range(devices))


@settings(max_examples=300, deadline=None)
@given(chains(6), st.integers(1, 5), bandwidths)
def test_one_level_is_exact(chain: tuple, machines: int, bandwidth: int | None) -> None:
    """On equal devices the value is the least over all stages and replicas, and the stages have that value."""
    levels = [Level(machines, bandwidth)]
    value, parts = least_largest_stage(*chain, levels, list(range(machines)))
    assert value == pytest.approx(cheapest(*chain, levels, 0, len(chain[0])), rel=1e-12)
    check(parts, levels, chain)
    assert value == pytest.approx(one_level_value(chain, levels[0], parts), rel=1e-12)


def one_level_value(chain: tuple, level: Level, parts: list) -> float:
    times, weights, crossing = chain
    byte = 0.0 if level.bandwidth is None else 1e9 / level.bandwidth
    loads = [
        (sum(times[a:b]) + 4 * (len(own) - 1) * sum(weights[a:b]) * byte / len(own)) / len(own) for a, b, own in parts
    ]
    cuts = [2 * crossing[b - 1] * byte / min(len(own), len(after)) for (_, b, own), (_, _, after) in pairwise(parts)]
    return max(loads + cuts)


@settings(max_examples=200, deadline=None)
@given(chains(4), st.integers(1, 3), st.integers(1, 3), bandwidths, bandwidths)
def test_two_levels_are_exact(chain: tuple, inside: int, nodes: int, link: int | None, network: int | None) -> None:
    """With nodes, the outer level is the least over all of its stages, each of which is an inner optimum."""
    levels = [Level(inside, link), Level(nodes, network, inside)]
    boxes = [list(range(node * inside, (node + 1) * inside)) for node in range(nodes)]
    value, parts = least_largest_stage(*chain, levels, boxes)
    assert value == pytest.approx(cheapest(*chain, levels, 0, len(chain[0])), rel=1e-12)
    check(parts, levels, chain)


@pytest.mark.parametrize(
    ("name", "milliseconds"),
    [("vgg16", (205.52, 103.83, 56.53)), ("alexnet", (34.22, 18.87, 18.87)), ("resnet18", (100.00, 50.78, 25.69))],
)
def test_known_plans(name: str, milliseconds: tuple[float, ...]) -> None:
    """On published profiles with 1 GB/s links the value is the one its optimizer reports for 4, 8 and 16 devices."""
    for devices, expected in zip((4, 8, 16), milliseconds, strict=True):
        chain = raw_chain(shared(f"pipedream/{name}.graph.txt"), 2, GB)
        value, _ = least_largest_stage(
            first_device_times(chain), chain.parameters, chain.boundary[0], [Level(devices, GB)], list(range(devices))
        )
        assert value / 1e6 == pytest.approx(expected, abs=0.006)
