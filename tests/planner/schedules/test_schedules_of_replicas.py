"""Lists of the schedule families for stages with replicas, and 1F1B with given in-flight counts."""

import pytest

from pipeplan.core.errors import InputError
from pipeplan.schedules import FAMILIES, one_forward_one_backward


def test_lists_of_replicas_as_drawn() -> None:
    """Replica j of r takes micro-batches j, j + r, … in the family's order, then all replicas reduce and update."""
    written = one_forward_one_backward((2, 1), 8, (3, 2))
    assert written.family == "1f1b"
    assert written.as_text() == (
        "0F0 0F2 0F4 0B0 0F6 0B2 0B4 0B6 0R 0U",
        "0F1 0F3 0F5 0B1 0F7 0B3 0B5 0B7 0R 0U",
        "1F0 1F1 1B0 1F2 1B1 1F3 1B2 1F4 1B3 1F5 1B4 1F6 1B5 1F7 1B6 1B7 1U",
    )
    assert FAMILIES["gpipe"].write((1, 2), 3).as_text()[1:] == ("1F0 1F2 1B0 1B2 1R 1U", "1F1 1B1 1R 1U")
    assert FAMILIES["1f1b-sno"].write((3,), 2).as_text() == ("0F0 0B0 0R 0U", "0F1 0B1 0R 0U", "0R 0U")


def test_in_flight_counts_of_replicas() -> None:
    """A stage wants what all devices behind it and its own want, shared out over its replicas and rounded up."""
    counts = {name: each.in_flight((2, 3, 1), 100) for name, each in FAMILIES.items()}
    assert counts == {
        "gpipe": (50, 34, 100),
        "1f1b-sno": (3, 2, 1),
        "1f1b-so": (5, 2, 1),
        "1f1b-as": (3, 2, 1),
        "fbp-as": (6, 3, 2),
    }
    assert FAMILIES["1f1b-so"].in_flight((2, 3, 1), 4) == (2, 2, 1)


@pytest.mark.parametrize(
    ("replicas", "in_flight", "says"),
    [
        ((1, 1), (1, 2), r"forward 2, stage 0 makes only 1 .* at least 2 on stage 0, or at most 1 on stage 1"),
        ((1, 3, 1), (4, 2, 6), r"each of 1 replicas of stage 2, and 4 on each of 1 of stage 0.*at most 4 on stage 2"),
        ((2,), (0,), "at least one micro-batch in flight"),
        ((2, 1), (3,), "every one of the 2 stages"),
    ],
)
def test_vectors_that_wait_for_ever_are_refused(
    replicas: tuple[int, ...], in_flight: tuple[int, ...], says: str
) -> None:
    """The error names the two stages and the least change of either."""
    with pytest.raises(InputError, match=says):
        one_forward_one_backward(replicas, 40, in_flight)
