"""Times of a layer with its weights on chip, and streamed."""

from helpers.fpga_lines import board, model_of
from pipeplan.core.cluster import DeviceKind
from pipeplan.core.model import LayerCost, Model, Profile, Provenance
from pipeplan.costs.layers import layer_costs
from pipeplan.fpga.space import times_on_chip


def _on_chip(model: Model, kind: DeviceKind) -> list[list[int]]:
    return [row.tolist() for row in times_on_chip(model, kind, 1)]


def _streamed(model: Model, kind: DeviceKind) -> list[list[int]]:
    costs = layer_costs(model, kind, 1)
    return [[cost.forward for cost in costs], [cost.backward for cost in costs]]


def test_a_layer_takes_the_longer_of_arithmetic_and_traffic() -> None:
    """Worked by hand: 1 ns an operation, 10 ns a byte; a heavy layer is bound by arithmetic, a wide one by traffic."""
    model = model_of([10**6, 10], output=100, parameters=[500, 40_000])
    # On chip a wide layer moves 200 bytes of activations; backward, the input gradient's 200 and the weights' 100.
    assert _on_chip(model, board()) == [[10**6, 2000], [2 * 10**6, 3000]]
    assert _streamed(model, board()) == [[10**6, 402_000], [2 * 10**6, 803_000]]  # and 40,000 bytes of parameters


def test_without_on_chip_memory_weights_are_streamed() -> None:
    """Both ways take the same on a kind that has no on-chip memory."""
    model, kind = model_of([10], parameters=10**6), board(on_chip=None)
    assert _on_chip(model, kind) == _streamed(model, kind)


def test_a_profile_is_taken_as_measured() -> None:
    """A measurement does not tell where the weights were, so it holds both ways."""
    plain = model_of([10], parameters=10**6)
    costs = (LayerCost(7, 9, 5, 4, 10, 10),)
    model = Model("measured", plain.layers, (Profile("board", 1, costs, Provenance("measured", "test")),))
    assert _on_chip(model, board()) == _streamed(model, board()) == [[7], [9]]
