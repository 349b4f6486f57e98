"""Sources of a result's costs, and the noun for the numbers that its proof is based on."""

from dataclasses import replace

import pytest

from helpers.instances import equal_devices, model_of, two_kinds_of_device
from pipeplan import load_cluster, load_model
from pipeplan.core.cluster import DeviceKind
from pipeplan.core.model import Model, Provenance, Work
from pipeplan.costs.sources import sources
from pipeplan.solve import solve


def profiled(how: str, source: str, *sizes: int) -> Model:
    """A chain with profiles of these sizes, from there."""
    model = model_of([2, 3, 4], sizes=sizes or (1,))
    origin = Provenance(how, source, "2026-11-20", {"torch": "2.13.0"})  # type: ignore[arg-type]
    return replace(model, profiles=tuple(replace(profile, provenance=origin) for profile in model.profiles))


def test_estimates_are_called_estimates() -> None:
    """Of catalogue devices the roofline is named with its efficiency, and the proof is one for estimates."""
    text = str(solve(load_model("vgg-16"), load_cluster("4-v100-nvlink"), batch=4, gap=0.5))
    assert "costs: roofline estimates at 50 % of the peaks of v100-16gb; transfers" in text
    result = solve(load_model("vgg-16"), load_cluster("4-v100-nvlink"), batch=4, depths=(1,), replicas=(1,))
    assert "proved for these estimates" in str(result)
    assert result.as_json()["costs"]["estimated"] is True  # type: ignore[index, call-overload]


def test_measurements_carry_their_date_and_machine() -> None:
    """A measured profile is named with date, device and version, and nothing is called an estimate."""
    result = solve(profiled("measured", "Tesla V100"), equal_devices(2), batch=4)
    assert "costs: measured 2026-11-20 on Tesla V100 (torch 2.13.0)" in str(result)
    assert "proved for these measurements" in str(result)
    assert "estimate" not in str(result)


def test_imported_costs_name_their_file() -> None:
    """They are neither measurements of ours nor estimates."""
    result = solve(profiled("imported", "PipeDream profile x"), equal_devices(1), batch=4)
    assert "costs: imported 2026-11-20 from PipeDream profile x (torch 2.13.0)\n" in str(result)
    assert "proved for these costs" in str(result)


@pytest.mark.parametrize(
    ("sizes", "interpolated", "extrapolated", "estimated"),
    [((1, 2, 4), (), (), False), ((1, 2, 3, 4), (3,), (), False), ((2, 8), (), (8,), True)],
)
def test_sizes_without_a_profile_are_named(
    sizes: tuple[int, ...], interpolated: tuple[int, ...], extrapolated: tuple[int, ...], estimated: bool
) -> None:
    """Between profiled sizes costs are interpolated, beyond them extrapolated; only the latter are estimates."""
    costs = sources(profiled("measured", "box", 1, 2, 4), equal_devices(2), sizes)
    (source,) = costs.sources
    assert (source.interpolated, source.extrapolated, costs.estimated) == (interpolated, extrapolated, estimated)
    assert ("interpolated for micro-batches of 3" in costs.as_text()) is bool(interpolated)
    assert ("extrapolated for micro-batches of 8" in costs.as_text()) is bool(extrapolated)
    assert (costs.name == "measurements") is not (bool(interpolated) or estimated)


def test_every_kind_is_told_apart() -> None:
    """A kind that is taken as so many times as fast as another is no measurement; kinds of one sort stand together."""
    costs = sources(profiled("measured", "box"), two_kinds_of_device(), (1,))
    assert "unit: measured" in costs.as_text()
    assert "slow: measured 2026-11-20 on box (torch 2.13.0), taken as 0.5 times as fast" in costs.as_text()
    assert costs.name == "estimates"
    both = sources(load_model("gnmt-8"), load_cluster("4-v100-4-p100"), (1,))
    assert "of the peaks of v100-16gb and p100" in both.as_text()


@pytest.mark.parametrize("kinds", [(), ("unit",), ("slow",), ("unit", "slow")])
def test_uncounted_operations_are_named_where_any_kind_is_estimated(kinds: tuple[str, ...]) -> None:
    """Of two kinds none, one or both are profiled: times of what is not profiled lack what is not counted."""
    plain = model_of([2, 3], kinds=("unit", "slow"))
    work = Work(1, 1, 1, 1, 1, uncounted=("custom",))
    plain = replace(plain, layers=(replace(plain.layers[0], work=work), *plain.layers[1:]))
    model = replace(plain, profiles=tuple(each for each in plain.profiles if each.device in kinds))
    cluster = two_kinds_of_device()
    cluster = replace(cluster, kinds={name: DeviceKind(name) for name in cluster.kinds})
    costs = sources(model, cluster, (1,))
    assert costs.uncounted == (("l0",) if len(kinds) < 2 else ())
    assert costs.estimated is (len(kinds) < 2)
