"""Backwards that are split without being asked for: where profiles know both parts, and these are not much longer."""

import pytest

from helpers.instances import BY_HAND
from pipeplan import solve
from pipeplan.core.model import Layer, LayerCost, Model, Profile
from pipeplan.core.searched import SPLIT_ASKED_FOR
from pipeplan.search.result import Result
from pipeplan.search.space.rounds import HALVED


def blocks(joined: int, input_gradient: int, weight_gradient: int) -> Model:
    """Eight blocks in a row whose backwards take so long, whole and in parts."""
    layers = [Layer(f"b{i}", 4, (f"b{i - 1}",) if i else (), kind="block") for i in range(8)]
    cost = LayerCost(10, joined, input_gradient, weight_gradient, saved=4, output=1)
    return Model("blocks", tuple(layers), (Profile("device", 1, (cost,) * 8, BY_HAND),))


def asked(model: Model, **options: object) -> Result:
    """The answer for six samples on four devices."""
    return solve(model, devices=4, batch=6, workers=1, **options)


def test_split_backwards_win_without_being_asked_for() -> None:
    """The answer, proved, is a V of split backwards, and says that these were searched."""
    found, whole = asked(blocks(20, 10, 10)), asked(blocks(20, 10, 10), chunks=(1, 2, 3, 4))
    assert found.value < whole.value and found.gap == whole.gap == 0
    assert found.plan.schedule.family == "zb-v"
    assert {*HALVED} <= {*found.searched.schedules} and SPLIT_ASKED_FOR in found.searched.not_searched
    assert not {*HALVED} & {*whole.searched.schedules}


@pytest.mark.parametrize(
    ("joined", "parts", "why"),
    [(16, (10, 10), "1.25 times as long"), (20, (0, 0), "does not know the time of both parts")],
)
def test_answers_say_why_backwards_are_whole(joined: int, parts: tuple[int, int], why: str) -> None:
    """Parts that take much longer, or are not known, are not searched by default; 1.2 times as long is."""
    found = asked(blocks(joined, *parts))
    assert not {*HALVED} & {*found.searched.schedules}
    assert sum(why in sentence for sentence in found.searched.not_searched) == 1
    assert {*HALVED} <= {*asked(blocks(20, 12, 12)).searched.schedules}


def test_split_backwards_without_weight_gradients_have_replicas() -> None:
    """Nothing is left to hide sums then, as in backwards that are whole and not overlapped; that rules no plan out."""
    found = asked(blocks(20, 20, 0), schedules=("zb-h1",), replicas=2, depths=2)
    assert found.plan.schedule.family == "zb-h1" and found.gap == 0
