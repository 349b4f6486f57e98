"""What teams leave whole, with numbers by hand: operators without loops, lengths that devices do not divide."""

import pytest

from pipeplan.core.cluster import DeviceKind
from pipeplan.core.model import LayerCost
from pipeplan.core.operators import Operator, OperatorGraph, Weight
from pipeplan.costs.sharding.joined import Own
from pipeplan.costs.sharding.rooflines import Rooflines
from pipeplan.costs.sharding.unsplit import Undivided, Unsplit, divides_nothing, nearest, notes, undivided, unsplit


def operator(name: str, kind: str, loops: dict[str, int], flops: tuple[int, int, int], weight: int = 0) -> Operator:
    """An operator that reads the layer's input."""
    axes = (*loops, "x")[:1]
    weights = (Weight("w", axes, weight),) if weight else ()
    passes = dict(zip(("forward_flops", "input_gradient_flops", "weight_gradient_flops"), flops, strict=True))
    return Operator(name, kind, loops, {"input": ("x",)}, axes, 4, weights=weights, **passes)


GRAPH = OperatorGraph(
    (
        operator("norm", "norm", {}, (10, 10, 0), 8),
        operator("scale", "scale", {}, (0, 0, 0), 4),
        operator("mask", "mask", {}, (0, 0, 0)),
        operator("wide", "linear", {"out": 6}, (20, 20, 20), 24),
        operator("sum", "sum", {"in": 10}, (10, 10, 0)),
        operator("view", "view", {"h": 7}, (0, 0, 0)),
    ),
    {"input": 4},
)
LAYER = Rooflines(GRAPH, LayerCost(100, 240, 120, 120, 4, 4), 36, DeviceKind("chip"), None, 1)
OF = {f"{layer}/{each.name}": Own(LAYER, each, 0) for layer in "ab" for each in GRAPH.operators}


def test_operators_without_loops_are_whole() -> None:
    """The norms take 10 of 40 in a forward of 100 ns, and 60 in a backward of 240; four devices save 98 of 130."""
    norms = Unsplit("norm", ("a/norm", "b/norm"), 2 * (25 + 40), 130 - 32, 16)
    assert unsplit(OF, 4) == (norms, Unsplit("scale", ("a/scale", "b/scale"), 0, 0, 8))
    assert norms.as_json() | {"operators": 2} == {
        "kind": "norm",
        "operators": 2,
        "time_s": 130e-9,
        "lost_s": 98e-9,
        "parameter_bytes": 16,
    }


def test_lengths_that_axes_do_not_divide_are_named_once() -> None:
    """Of operators that multiply, or have weights: 4 divides neither 6 nor 10, 3 does not divide 10."""
    assert undivided(OF, (4, 3, 2)) == (
        Undivided(0, "out", 6, ("wide",), 3),
        Undivided(0, "in", 10, ("sum",), 5),
        Undivided(1, "in", 10, ("sum",), 2),
    )
    assert (nearest(12, 5), nearest(12, 1), nearest(12, 90), nearest(7, 4)) == (6, 1, 12, 7)


@pytest.mark.parametrize(("size", "best"), [(4, "2 and 5"), (7, "2 and 10"), (3, ""), (2, "")])
def test_a_team_that_divides_nothing_learns_which_sizes_do(size: int, best: str) -> None:
    """Of equally good sizes the nearest: 2 divides both lengths, 5, 6 and 10 one of them."""
    wanted = (
        "which divide no length of the model: 6 along 'out' of wide, 10 along 'in' of sum; the sizes nearest to it "
    )
    assert divides_nothing(OF, size) == (f"{wanted}that divide most of them are {best}" if best else "")


def test_what_is_whole_is_said_in_words() -> None:
    """Operators with weights, or a thousandth of the time, by name; others by kind; lengths for each axis."""
    small, large = Unsplit("sin", ("sin",), 8, 4, 0), Unsplit("norm", ("norm",), 8, 4, 16)
    lengths = undivided(OF, (4, 3))
    said = list(notes((small, large), lengths, (4, 3), 4001))
    assert [text.split(":")[0] for text in said[:1]] == ["whole on every device"] and "norm operator (norm)" in said[0]
    assert said[1].endswith("4 ns more than an even split: 1 operator (sin)")
    assert said[2:] == [
        "axis 0 (4 devices) leaves whole what it does not divide: 6 along 'out' of wide (3 does), "
        "10 along 'in' of sum (5 does)",
        "axis 1 (3 devices) leaves whole what it does not divide: 10 along 'in' of sum (2 does)",
    ]
    assert list(notes((small,), undivided(OF, (3,)), (3,), 4000)) == [
        "whole on every device: 1 sin operator (sin), 8 ns of the 4 us and 0 B of weights; an even split would save "
        "4 ns",
        "a team of 3 leaves whole what it does not divide: 10 along 'in' of sum (2 does)",
    ]
