"""What layers of folded chains have, run by run."""

import numpy as np
import pytest

from pipeplan.core.folding import Folding, Laid
from pipeplan.costs.folded import least_largest

WAYS = (Laid(2, False), Laid(3, False), Laid(2, True), Laid(2, False, (7, 4)), Laid(2, True, (6, 5)))


@pytest.mark.parametrize("laid", WAYS)
def test_the_largest_layer_is_the_least_over_the_rounds_that_have_one(laid: Laid) -> None:
    """In loops and in a V, alike or not, with what is left over at both ends; some runs of unlike rounds are empty."""
    folding = Folding.of(range(12), 11, laid)
    layers = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5])
    assert folding is not None
    columns = zip(*map(folding.runs, range(laid.rounds)), strict=True)
    expected = [min(max(layers[a:b]) for a, b in runs if a < b) for runs in columns]
    assert least_largest(folding, layers).tolist() == expected
