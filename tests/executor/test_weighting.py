"""Weights of micro-batches in the mean of their batch."""

import pytest
import torch

from pipeplan.core.errors import InputError
from pipeplan_executor.optim.updates import shares


def test_micro_batches_count_alike_unless_they_are_weighed() -> None:
    """Shares add up to one: equal ones, or in proportion to the weights of the targets."""
    targets = [torch.tensor([1, 1]), torch.tensor([0, 0]), torch.tensor([1, 5])]
    assert shares(None, targets) == [1 / 3] * 3
    assert shares(lambda part: part.sum(), targets) == [0.25, 0.0, 0.75]


@pytest.mark.parametrize("weights", [(0, 0), (-1, 2), (float("nan"), 1)])
def test_weights_that_make_no_mean_are_refused(weights: tuple[float, float]) -> None:
    """No weight at all, a negative one or none that is a number."""
    with pytest.raises(InputError, match="weigh"):
        shares(lambda part: weights[part], [0, 1])
