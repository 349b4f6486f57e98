"""Checks of logs of training beside those of a plain torch loop."""

import pytest

from helpers.distributed.training_workers import Seen

EXACT = 1e-10


def assert_equal_training(ours: Seen, theirs: Seen, apart: float) -> None:
    """Losses and norms are equal in float64, weights no further apart, and losses change from step to step."""
    assert ours.losses == pytest.approx(theirs.losses, rel=EXACT)
    assert ours.norms == pytest.approx(theirs.norms, rel=EXACT)
    assert apart < EXACT
    assert len(set(ours.losses)) > 1
