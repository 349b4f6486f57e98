"""Prices of the layers on the stages' devices."""

import pytest

from helpers.instances import equal_devices, model_of
from pipeplan.core.job import Job
from pipeplan.costs.kept import Kept
from pipeplan.costs.pricing import price

MODEL = model_of([5, 7, 6, 4], saved=[8] * 4, output=[2] * 4, parameters=[40] * 4)


def test_what_like_stages_share_is_priced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Baselines price one stage per device of a whole cluster, so a row is made for each kind and ring, not stage."""
    asked: list[int] = []
    gradients = Kept.gradients

    def counted(kept: Kept, kind: object, replicas: int) -> object:
        asked.append(replicas)
        return gradients(kept, kind, replicas)  # type: ignore[arg-type]

    monkeypatch.setattr(Kept, "gradients", counted)
    cluster = equal_devices(40)
    chain = price(MODEL, cluster, cluster.devices, 1, Job(batch=40))
    assert chain.stages == 40
    assert chain.gradients.shape == chain.forward.shape == (40, 4)
    assert asked == [1]
