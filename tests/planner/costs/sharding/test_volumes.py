"""What linear maps send on meshes: published formulas, lower bounds, and redistributions against brute force."""

import random
from fractions import Fraction
from itertools import product
from math import log2, prod, sqrt

import numpy as np
import pytest

from pipeplan.core.cluster import Link
from pipeplan.core.strategies import PARTIAL, WHOLE, AxisStrategy, Placements
from pipeplan.costs.sharding.exchanges import redistribution_time
from pipeplan.costs.sharding.lower_bound import accessed
from pipeplan.costs.sharding.named import (
    columns,
    data_parallel,
    rows,
    three_dimensional,
    two_and_a_half_dimensional,
    two_dimensional,
)
from pipeplan.costs.sharding.redistributions import Redistributions, times
from pipeplan.costs.sharding.strategies import strategies
from pipeplan.costs.sharding.volumes import IN, OUT, ROW, Algorithm, LinearMap, received, volume

LINEAR = LinearMap(192, 144, 288)
X, W, Y = 192 * 144, 144 * 288, 192 * 288


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_megatrons_pair_sums_twice(devices: int) -> None:
    """Columns add up the gradient of their input, rows their output: 4 (P - 1) / P M h together, half of it forward."""
    first, second = columns(devices).volume(LINEAR), rows(devices).volume(LinearMap(192, 288, 144))
    share = Fraction(devices - 1, devices)
    assert (first.forward, first.backward) == (0, 2 * share * X)
    assert (second.forward, second.backward) == (2 * share * X, 0)
    assert first.weight == second.weight == Fraction(W, devices)
    assert first.step == second.step == 0
    assert data_parallel(devices).volume(LINEAR).step == 2 * share * W


@pytest.mark.parametrize("side", [2, 4])
def test_two_dimensions_are_those_of_summa(side: int) -> None:
    """(q - 1) / q² (X + W) forward and three times that in all; with trees log2 P / (2 √P) (X + W)."""
    form, total = two_dimensional(side), X + W
    again = form.volume(LINEAR, keep=False)
    assert again.forward == Fraction(side - 1, side**2) * total
    assert again.total == 3 * again.forward
    assert form.volume(LINEAR).total == 2 * again.forward
    assert (again.weight, again.kept) == (Fraction(W, side**2), Fraction(X, side**2))
    tree = form.volume(LINEAR, keep=False, algorithm=Algorithm.TREE)
    assert float(tree.forward) == pytest.approx(log2(side**2) / (2 * sqrt(side**2)) * total)
    assert tree.total == 3 * tree.forward


@pytest.mark.parametrize(("copies", "side"), [(2, 2), (3, 4), (4, 2)])
def test_copies_of_a_square_sum_their_weights_once(copies: int, side: int) -> None:
    """(q - 1) / q² (X / d + W) forward, three times that, and 2 (d - 1) / d W / q² once per step."""
    found = two_and_a_half_dimensional(copies, side).volume(LINEAR, keep=False)
    assert found.forward == Fraction(side - 1, side**2) * (Fraction(X, copies) + W)
    assert found.total == 3 * found.forward
    assert found.step == 2 * Fraction(copies - 1, copies) * Fraction(W, side**2)
    assert (found.weight, found.kept) == (Fraction(W, side**2), Fraction(X, copies * side**2))


@pytest.mark.parametrize("side", [2, 4])
@pytest.mark.parametrize("swapped", [False, True])
def test_three_dimensions_move_each_tensor_along_one_axis(side: int, swapped: bool) -> None:
    """(q - 1) / q³ (X + W + Y) forward; twice that in all if gathered tensors are kept, else four and two again."""
    form = three_dimensional((side, side, side), swapped)
    kept, again = form.volume(LINEAR), form.volume(LINEAR, keep=False)
    share = Fraction(side - 1, side**3)
    assert kept.forward == again.forward == share * (X + W + Y)
    assert kept.total == 2 * share * (X + W + Y)
    assert again.total == kept.total + share * (X + W)
    assert form.volume(LINEAR, keep=False, twice=True).total == 3 * share * (X + W + Y)
    assert (kept.kept, again.kept) == (Fraction(X, side**2), Fraction(X, side**3))
    assert kept.weight == again.weight == Fraction(W, side**3)


@pytest.mark.parametrize("sizes", [(1, 2, 4), (4, 2, 1), (2, 1, 4), (2, 2, 3), (3, 4, 2)])
def test_cubes_need_not_be_cubes(sizes: tuple[int, int, int]) -> None:
    """Of each tensor a device receives (n - 1) / P, n the axis along which it moves; placements fit the next map."""
    w, i, o = sizes
    found = three_dimensional(sizes).volume(LINEAR)
    assert found.forward == Fraction((i - 1) * X + (w - 1) * W + (o - 1) * Y, w * i * o)
    assert found.backward == found.forward
    assert three_dimensional(sizes).leaves == three_dimensional(sizes, swapped=True).arrives


def test_cubes_of_sides_in_proportion_reach_the_lower_bound() -> None:
    """A cube of equal sides on square matrices sends exactly the least, as do rectangles that fit the matrices."""
    cube = three_dimensional((4, 4, 4)).volume(LinearMap(512, 512, 512))
    assert cube.over_least == pytest.approx(1)
    fits = three_dimensional((4, 2, 2)).volume(LinearMap(1024, 512, 512))
    assert fits.over_least == pytest.approx(1)
    assert three_dimensional((2, 2, 4)).volume(LinearMap(1024, 512, 512)).over_least > 1.01


def test_nothing_sends_less_than_the_lower_bound() -> None:
    """All strategies of random maps, with inputs and outputs in random placements, on meshes of one to three axes."""
    draw, bounded = random.Random(3), 0
    for _ in range(600):
        sizes = tuple(draw.choice((2, 3, 4)) for _ in range(draw.randint(1, 3)))
        linear = LinearMap(*(draw.choice((1, 2, 5, 40)) * prod(sizes) for _ in range(3)))
        strategy = draw.choice(strategies(linear.operator, sizes))
        if any(entry.loop == "" for entry in strategy):
            continue  # devices repeat each other's work
        arrives, leaves = (tuple(draw.choice((WHOLE, 0, 1)) for _ in sizes) for _ in range(2))
        found = volume(linear, strategy, sizes, arrives, leaves)
        assert float(found.forward) >= found.least - 1e-6
        bounded += found.least > 0
    assert bounded >= 50


def test_the_lower_bound_is_the_least_of_its_programme() -> None:
    """Least a + b + c where a b c >= (m n k / P)² and each is at least its matrix over P, on a fine grid."""
    draw = random.Random(1)
    for _ in range(60):
        m, n, k = (draw.choice((8, 30, 100, 900)) for _ in range(3))
        devices = draw.choice((2, 3, 8, 40, 500))
        low = np.log([m * n / devices, n * k / devices])
        a, b = np.meshgrid(*(np.exp(np.linspace(at, at + np.log(devices) + 3, 800)) for at in low))
        c = np.maximum((m * n * k / devices) ** 2 / (a * b), m * k / devices)
        least = float((a + b + c).min())
        assert accessed(m, n, k, devices) <= least * (1 + 1e-9)
        assert least == pytest.approx(accessed(m, n, k, devices), rel=0.01)


def test_words_cover_three_loops_and_gathered_weights() -> None:
    """Four entries and none along each axis; the parts of a loop are divided by all axes that split it."""
    operator = LinearMap(4, 6, 8).operator
    entries = {AxisStrategy(), AxisStrategy(ROW), AxisStrategy(ROW, True), AxisStrategy(IN), AxisStrategy(OUT)}
    assert {strategy[0] for strategy in strategies(operator, (2,))} == entries
    assert len(strategies(operator, (2, 2))) == 25 - 1  # inputs are six
    assert len(strategies(operator, (2, 2), gathers=False)) == 16 - 1
    assert AxisStrategy(OUT) in {strategy[0] for strategy in strategies(operator, (8, 3))}
    assert AxisStrategy(IN) not in {strategy[0] for strategy in strategies(operator, (8, 3))}


def test_one_axis_redistributes_as_teams_do() -> None:
    """Times of all pairs of placements are those of signatures of a team."""
    link = Link(10**9, 50)
    found = times(960, (4,), (link,), (4, 4))
    for source, target in product((WHOLE, PARTIAL, 0, 1), repeat=2):
        assert found.cost((source,), (target,)) == redistribution_time(source, target, 960, 4, link)


def test_redistributions_leave_each_device_its_part() -> None:
    """Gathering the outer of two axes of a dimension alone has a price: data must be where the placements say."""
    own = Redistributions((2, 2), (8, 8), lambda axis, source, target, others: 1, 0)
    assert own.cost((0, 0), (0, WHOLE)) == 1
    assert own.cost((0, 0), (WHOLE, 0)) == 3  # gather the inner axis and the outer one, take the part
    assert own.cost((PARTIAL, 0), (0, 0)) == 3
    assert own.cost((0, PARTIAL), (0, 0)) == 1
    assert own.cost((WHOLE, WHOLE), (PARTIAL, WHOLE)) == 0
    assert own.cost((0, WHOLE), (WHOLE, PARTIAL)) == 1
    assert own.cost((0, WHOLE), (PARTIAL, WHOLE)) is None
    assert own.path((0, WHOLE), (WHOLE, PARTIAL)) == ((WHOLE, WHOLE), (WHOLE, PARTIAL))
    assert own.path((WHOLE, WHOLE), (PARTIAL, PARTIAL)) == ((PARTIAL, WHOLE), (PARTIAL, PARTIAL))
    assert own.path((0, WHOLE), (PARTIAL, WHOLE)) is None


def test_axes_that_split_one_dimension_divide_its_parts_together() -> None:
    """Six parts go to two devices along either axis, and not to four along both."""
    own = Redistributions((2, 2), (6, 8), lambda axis, source, target, others: 1, 0)
    assert own.fits((0, 1))
    assert own.fits((1, 1))
    assert not own.fits((0, 0))
    assert own.cost((0, WHOLE), (0, 0)) is None


def test_steps_move_what_devices_have() -> None:
    """Of random redistributions, the elements that each device lacks are at most what the cheapest path receives."""
    draw, sizes, length = random.Random(5), (2, 3, 2), 12

    def price(axis: int, source: int, target: int, others: int) -> Fraction:
        return received(length * length, sizes, Algorithm.RING, axis, source, target, others)

    own = Redistributions(sizes, (length, length), price, Fraction(0))
    moved = 0
    for _ in range(200):
        source, target = (tuple(draw.choice((WHOLE, 0, 1)) for _ in sizes) for _ in range(2))
        cost = own.cost(source, target)
        lacks = max(
            len(_elements(target, sizes, place, length) - _elements(source, sizes, place, length))
            for place in product(*map(range, sizes))
        )
        assert cost is not None and cost >= lacks
        moved += cost == lacks > 0
    assert moved >= 20


def _elements(
    placements: Placements, sizes: tuple[int, ...], place: tuple[int, ...], length: int
) -> set[tuple[int, int]]:
    """The elements of a square that a device has: axes that split one dimension are nested, the first one outside."""
    ranges = []
    for dimension in range(2):
        low, own = 0, length
        for n, at, placement in zip(sizes, place, placements, strict=True):
            if placement == dimension:
                own //= n
                low += at * own
        ranges.append(range(low, low + own))
    return set(product(*ranges))


@pytest.mark.parametrize(("side", "width", "samples", "ranking"), [(4, 4096, 192, (1, 2)), (8, 8192, 384, (3, 2, 1))])
def test_published_ranking_of_forms(side: int, width: int, samples: int, ranking: tuple[int, ...]) -> None:
    """With trees and recomputation, 2-D sends more than 1-D on 16 devices, a little less on 64, and 3-D least there."""
    tokens, devices = 512 * samples, side**2
    sent = {1: 12 * Fraction(devices - 1, devices) * tokens * width}
    pair = ((columns(devices), width, 3 * width), (rows(devices), width, width))
    pair += ((columns(devices), width, 4 * width), (rows(devices), 4 * width, width))
    assert sum(form.volume(LinearMap(tokens, n, m)).recomputed for form, n, m in pair) == sent[1]
    layer = [LinearMap(tokens, n * width, m * width) for n, m in ((1, 3), (1, 1), (1, 4), (4, 1))]
    square = two_dimensional(side)
    sent[2] = sum((square.volume(each, False, Algorithm.TREE).recomputed for each in layer), Fraction(0))
    if devices == 64:
        cube = three_dimensional((4, 4, 4))
        sent[3] = sum((cube.volume(each).recomputed for each in layer), Fraction(0))
        paper = sum((cube.volume(each, False, twice=True).recomputed for each in layer), Fraction(0))
        assert [float(sent[1] / each) for each in (sent[3], paper)] == pytest.approx([5.1, 3.8], abs=0.05)
    assert float(sent[1] / sent[2]) == pytest.approx({16: 0.75, 64: 1.05}[devices], abs=0.005)
    assert tuple(sorted(sent, key=lambda dimensions: sent[dimensions])) == ranking
