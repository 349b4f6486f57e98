"""Costs of a layer: measured, between measurements, outside them, or estimated."""

from dataclasses import fields, replace
from random import Random

import numpy as np
import pytest

from pipeplan.core.cluster import DeviceKind
from pipeplan.core.errors import InputError
from pipeplan.core.model import Layer, LayerCost, Model, Profile, Provenance, Work
from pipeplan.costs.layers import available_micro_batches, layer_costs

MEASURED = Provenance("measured", "by hand")
GPU = DeviceKind("gpu", peak={"float32": 10**12}, bandwidth=10**11, efficiency=0.5, overhead=1000)


def _cost(scale: int) -> LayerCost:
    return LayerCost(100 * scale, 210 * scale, 110 * scale, 105 * scale, 40 * scale, 20 * scale, 8 * scale, 7)


def _profiled(*sizes: int, device: str = "gpu") -> Model:
    profiles = tuple(Profile(device, size, (_cost(size), _cost(3 * size)), MEASURED) for size in sizes)
    return Model("m", (Layer("a", 1000), Layer("b", 2000, ("a",))), profiles)


def _analytic(**work: int) -> Model:
    figures = {"forward_flops": 0, "input_gradient_flops": 0, "weight_gradient_flops": 0, "output": 0, "saved": 0}
    return Model("m", (Layer("a", 4000, work=Work(**figures | work)),))


def test_a_measured_size_is_given_back() -> None:
    """A size that was measured is not touched."""
    assert layer_costs(_profiled(2, 8), GPU, 8) == (_cost(8), _cost(24))


def test_between_two_sizes_every_figure_is_linear() -> None:
    """Only the two neighbours count."""
    model = _profiled(2, 4, 100)
    assert layer_costs(model, GPU, 3) == (_cost(3), _cost(9))


def test_between_any_sizes_figures_lie_on_the_line_between_the_next_ones() -> None:
    """Costs at random sizes that follow no rule: neither a smaller nor a larger size counts than the two next ones."""
    draw, names = Random(3), [each.name for each in fields(LayerCost)]
    for _ in range(50):
        sizes = draw.sample(range(1, 30), 4)
        costs = {size: LayerCost(*(draw.randint(0, 1000) for _ in names)) for size in sizes}
        profiles = tuple(Profile("gpu", size, (cost,), MEASURED) for size, cost in costs.items())
        size, own = draw.randint(min(sizes), max(sizes)), sorted(sizes)
        (found,) = layer_costs(Model("m", (Layer("a", 1),), profiles), GPU, size)
        for name in names:
            wanted = np.interp(size, own, [getattr(costs[each], name) for each in own])
            assert abs(getattr(found, name) - wanted) <= 0.5 + 1e-9


def test_outside_the_measured_sizes_is_refused() -> None:
    """The error names the sizes and the two ways out."""
    with pytest.raises(InputError, match=r"of 2, 8 samples; 16 lies outside.*--extrapolate"):
        layer_costs(_profiled(2, 8), GPU, 16)


@pytest.mark.parametrize(("size", "scale"), [(1, 1), (16, 16)])
def test_extrapolation_is_in_proportion_but_for_the_update(size: int, scale: int) -> None:
    """Times and bytes follow the nearest measured size; the optimiser step does not depend on it."""
    assert layer_costs(_profiled(2, 8), GPU, size, extrapolate=True)[0] == _cost(scale)


def test_a_kind_timed_as_another_is_as_many_times_as_fast() -> None:
    """Speed divides times and leaves bytes."""
    twice = DeviceKind("new", timed_as="gpu", speed=2.0)
    cost = layer_costs(_profiled(4), twice, 4)[0]
    slow = _cost(4)
    assert (cost.forward, cost.backward) == (slow.forward // 2, slow.backward // 2)
    assert (cost.input_gradient, cost.weight_gradient) == (slow.input_gradient // 2, slow.weight_gradient // 2)
    assert (cost.saved, cost.output, cost.workspace) == (slow.saved, slow.output, slow.workspace)


def test_an_estimate_knows_the_speed_too() -> None:
    """A kind that is half as fast as another takes twice its estimated times, and as many bytes."""
    model = _analytic(forward_flops=10**9, weight_gradient_flops=10**9, output=8, saved=16)
    half, fast = (layer_costs(model, replace(GPU, speed=speed), 4)[0] for speed in (0.5, 1.0))
    assert (half.forward, half.backward, half.update) == (2 * fast.forward, 2 * fast.backward, 2 * fast.update)
    assert (half.saved, half.output) == (fast.saved, fast.output)


def test_a_profile_wins_over_an_estimate() -> None:
    """Operation counts are not looked at where there is a measurement."""
    model = replace(_analytic(forward_flops=10**15), profiles=(Profile("gpu", 1, (_cost(1),), MEASURED),))
    assert layer_costs(model, GPU, 1) == (_cost(1),)


def test_roofline_bound_by_arithmetic() -> None:
    """10⁹ operations a sample at half of 10¹² a second are 2 ms a sample, and a launch."""
    cost = layer_costs(_analytic(forward_flops=10**9, weight_gradient_flops=3 * 10**9), GPU, 4)[0]
    assert cost.forward == 8_000_000 + 1000
    assert cost.weight_gradient == 24_000_000 + 1000
    assert cost.backward == cost.input_gradient + cost.weight_gradient


def test_roofline_bound_by_memory() -> None:
    """Parameters, saved bytes and output pass at half of 10¹¹ bytes a second."""
    cost = layer_costs(_analytic(output=10**6, saved=4 * 10**6), GPU, 2)[0]
    assert cost.forward == round((4000 + 10 * 10**6) / 50) + 1000
    assert (cost.output, cost.saved) == (2 * 10**6, 8 * 10**6)


def test_a_part_of_the_workspace_is_the_same_for_all_samples() -> None:
    """Seven bytes, beside ten for each of three samples."""
    assert layer_costs(_analytic(workspace=10, workspace_fixed=7), GPU, 3)[0].workspace == 37


@pytest.mark.parametrize(("optimizer", "touched"), [("sgd", 3), ("momentum", 5), ("adam", 7)])
def test_analytic_update_is_memory_traffic(optimizer: str, touched: int) -> None:
    """A step reads parameter, gradient and state, and writes parameter and state."""
    cost = layer_costs(_analytic(), GPU, 1, optimizer=optimizer)[0]
    assert cost.update == 4000 * touched * 20 // 1000


def test_neither_profile_nor_estimate_is_an_error_that_teaches() -> None:
    """It says what is profiled, and what to add."""
    with pytest.raises(InputError, match=r"no profile for 'other' \(profiled: gpu\).*speed"):
        layer_costs(_profiled(1), DeviceKind("other"), 1)
    with pytest.raises(InputError, match=r"no peak for float32; known peaks: float16"):
        layer_costs(_analytic(forward_flops=1), DeviceKind("other", peak={"float16": 1}, bandwidth=1), 1)
    with pytest.raises(InputError, match=r"no memory bandwidth"):
        layer_costs(_analytic(forward_flops=1), DeviceKind("other", peak={"float32": 1}), 1)


def test_micro_batches_divide_the_batch_within_the_measured_range() -> None:
    """Between the smallest and the largest measured size every divisor counts."""
    assert available_micro_batches(_profiled(2, 12), [GPU], 24) == (2, 3, 4, 6, 8, 12)
    assert available_micro_batches(_profiled(2, 12), [GPU], 36) == (2, 3, 4, 6, 9, 12)


def test_micro_batches_must_suit_every_kind() -> None:
    """Two kinds with different measured ranges share their common part."""
    profiles = tuple(Profile(k, b, (_cost(b),), MEASURED) for k, b in [("gpu", 1), ("gpu", 8), ("cpu", 4), ("cpu", 16)])
    model = Model("m", (Layer("a", 1),), profiles)
    assert available_micro_batches(model, [GPU, DeviceKind("cpu")], 16) == (4, 8)


def test_no_micro_batch_is_an_error_that_teaches() -> None:
    """The measured range and the batch are named."""
    with pytest.raises(InputError, match=r"micro-batches of 4 to 8 samples, and none of these divides a batch of 11"):
        available_micro_batches(_profiled(4, 8), [GPU], 11)


def test_without_profiles_powers_of_two_are_considered() -> None:
    """An estimate serves any size."""
    assert available_micro_batches(_analytic(), [GPU], 48) == (1, 2, 4, 8, 16)
