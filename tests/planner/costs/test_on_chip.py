"""Times of a layer with its weights on chip, and streamed."""

import numpy as np

from helpers.fpga_lines import board, model_of
from pipeplan.core.model import LayerCost, Model, Profile, Provenance
from pipeplan.costs.layers import streamed_times


def test_a_layer_takes_the_longer_of_arithmetic_and_traffic() -> None:
    """Worked by hand: 1 ns an operation, 10 ns a byte; a heavy layer is bound by arithmetic, a wide one by traffic."""
    model = model_of([10**6, 10], output=100, parameters=[500, 40_000])
    times = streamed_times(model, board(), 1)
    assert times.forward_on_chip.tolist() == [10**6, 2000]  # 200 bytes of activations
    assert times.forward_streamed.tolist() == [10**6, 402_000]  # and 40,000 bytes of parameters
    assert times.backward_on_chip.tolist() == [2 * 10**6, 3000]  # the input gradient's 200 bytes, the weights' 100
    assert times.backward_streamed.tolist() == [2 * 10**6, 803_000]


def test_without_on_chip_memory_weights_are_streamed() -> None:
    """Both ways take the same on a kind that has no on-chip memory."""
    times = streamed_times(model_of([10], parameters=10**6), board(on_chip=None), 1)
    assert np.array_equal(times.forward_on_chip, times.forward_streamed)
    assert np.array_equal(times.backward_on_chip, times.backward_streamed)


def test_a_profile_is_taken_as_measured() -> None:
    """A measurement does not tell where the weights were, so it holds both ways."""
    plain = model_of([10], parameters=10**6)
    costs = (LayerCost(7, 9, 5, 4, 10, 10),)
    model = Model("measured", plain.layers, (Profile("board", 1, costs, Provenance("measured", "test")),))
    times = streamed_times(model, board(), 1)
    assert (times.forward_on_chip.tolist(), times.backward_streamed.tolist()) == ([7], [9])
