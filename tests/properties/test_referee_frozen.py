"""Mutations of the prices of frozen weights that the referee must notice."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from helpers.noticed import noticed
from pipeplan.costs.chain import SharedWeights
from pipeplan.costs.kept import Kept
from pipeplan.costs.sharded import Units
from referee import questions


def shared(document: dict[str, Any]) -> bool:
    """Layers share frozen weights."""
    return any(tie.get("frozen") for tie in document["model"].get("ties", ()))


def frozen(document: dict[str, Any]) -> bool:
    """Some layers have frozen weights, which none shares."""
    return any(layer.get("frozen") for layer in document["model"]["layers"]) and not shared(document)


def frozen_above(document: dict[str, Any]) -> bool:
    """Some of them are above all that is trained."""
    first = document["model"]["layers"][0]
    return bool(first.get("frozen") and not first["parameters"] and not document["model"].get("ties"))


def at(level: int, document: dict[str, Any], parts: str = "replicas") -> None:
    """Two replicas, or stages, at a level of ZeRO, without limits."""
    document["job"] = {"batch": 4, "micro_batches": [4], "extrapolate": True, "zero": [level]}
    document["job"] |= {"depths": [2]} if parts == "stages" else {"replicas": [2], "depths": [1]}
    document["solve"] |= {"gap": 0.0, "time_limit": 60.0, "backend": "cpsat"}
    for kind in document["cluster"]["devices"].values():
        kind.pop("memory", None)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """All models have frozen weights, and none is in teams."""
    monkeypatch.setattr(questions, "FROZEN", 1.0)
    monkeypatch.setattr(questions, "TEAMS", 0.0)


def test_frozen_weights_without_bytes_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if what is not trained took no memory."""
    monkeypatch.setattr(Kept, "frozen", lambda own, kind: 0 * own.parameters(kind))
    assert "bytes" in noticed(frozen, partial(at, 0))


def test_frozen_weights_with_gradients_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if each frozen number had a gradient."""
    gradients = Kept.gradients
    wrong = lambda own, kind, replicas: gradients(own, kind, replicas) + own.frozen(kind)  # noqa: E731
    monkeypatch.setattr(Kept, "gradients", wrong)
    assert "bytes" in noticed(frozen, partial(at, 1))


def test_frozen_weights_that_stay_whole_at_level_3_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if level 3 shared out no more than what is trained."""
    monkeypatch.setattr(Kept, "frozen_kept", lambda own, kind, replicas: own.frozen(kind))
    assert "bytes" in noticed(frozen, partial(at, 3))


def test_frozen_weights_that_nobody_gathers_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the gathers of level 3 carried parameters only."""
    units = Kept.units
    monkeypatch.setattr(Kept, "units", lambda own, kind, frozen=False: units(own, kind))
    assert "the step takes" in noticed(frozen, partial(at, 3))


def test_frozen_weights_that_are_summed_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if gradients of frozen weights were summed at level 3."""
    units = Kept.units
    monkeypatch.setattr(Kept, "units", lambda own, kind, frozen=False: units(own, kind, own.job.level == 3))
    assert "the step takes" in noticed(frozen, partial(at, 3))


def test_backwards_of_nothing_that_gather_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if frozen layers above all that is trained were gathered for a backward."""
    monkeypatch.setattr(Kept, "returns", lambda own, kind, backward: np.ones(len(backward), bool))
    assert noticed(frozen_above, partial(at, 3))


def test_gathers_without_buffers_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if weights arrived in place."""
    with_buffers = Units.with_buffers

    def wrong(own: Units, workspace: Any, replicas: int, at_once: int, every: bool, *frozen: Any) -> Any:
        return with_buffers(own, workspace, replicas, at_once, every)

    monkeypatch.setattr(Units, "with_buffers", wrong)
    assert "bytes" in noticed(frozen, partial(at, 3))


def test_copies_of_frozen_weights_without_bytes_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a stage could read what another one has."""
    monkeypatch.setattr(SharedWeights, "resident", property(lambda own: 2 * own.parameters + own.optimizer))
    assert "peaks" in noticed(shared, partial(at, 0, parts="stages"))
