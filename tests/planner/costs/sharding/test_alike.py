"""Which ways are left out because another one is nearly as good in every figure."""

from random import Random
from types import SimpleNamespace

import numpy as np
import pytest

from pipeplan.core.cluster import DeviceKind
from pipeplan.core.model import Layer, LayerCost, Model, Profile, Provenance
from pipeplan.costs.sharding.alike import MISSING, figures, unlike


@pytest.mark.parametrize("seed", range(40))
def test_what_is_left_out_has_another_that_is_nearly_as_good(seed: int) -> None:
    """By at most one part in four; the least in sum come first, and what is kept beforehand counts too."""
    random = Random(seed)
    rows = [np.array([random.randint(0, 40) for _ in range(2)]) for _ in range(8)]
    before = [np.array([random.randint(0, 60) for _ in range(2)]) for _ in range(random.randint(0, 2))]
    kept = list(before)
    found = unlike(rows, kept, 4)
    assert found == sorted(found) and len(kept) == len(before) + len(found)
    known = list(before)
    for k in sorted(range(8), key=lambda k: rows[k].sum()):
        near = any((other <= rows[k] + rows[k] // 4).all() for other in known)
        assert near != (k in found)
        known += [] if near else [rows[k]]


@pytest.mark.parametrize("again", [True, False])
def test_figures_are_sums_over_layers(again: bool) -> None:
    """Passes, with another forward too where layers may be recomputed, updates, bytes, the largest workspace."""
    one = LayerCost(10, 20, 8, 12, 3, 2, workspace=7, update=5)
    other = LayerCost(100, 200, 80, 120, 30, 20, workspace=4, update=50)
    said = Provenance("analytic", "by hand")
    layers = tuple(Layer(name, parameters) for name, parameters in (("a", 64), ("b", 32), ("c", 16)))
    profiles = Profile("x", 1, (one, one, other), said), Profile("y", 2, (one, other, other), said)
    teams = SimpleNamespace(kinds=(DeviceKind("x"), DeviceKind("y")), sizes=(1, 2), again=again)
    row = {
        "x": [30 + 30 + 300, *[40 + 40 + 400] * again, 60, 36, 24, 7, 112],
        "y": [30 + 300 + 300, *[40 + 400 + 400] * again, 105, 63, 42, 7, 112],
    }
    missing = [MISSING] * (6 + again)
    expected = [*row["x"], *missing, *missing, *row["y"]]
    assert figures(Model("m", layers, profiles), teams).tolist() == expected
