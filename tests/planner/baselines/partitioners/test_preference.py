"""Schedule family that BaPipe's table would choose."""

import pytest

from helpers.chains import make_chain
from pipeplan.baselines.partitioners import preferred_family
from pipeplan.core.cluster import Overlap
from pipeplan.schedules import FAMILIES


@pytest.mark.parametrize(
    ("overlap", "limit", "send", "expected"),
    [
        (Overlap.NONE, 1000, 0, "1f1b-sno"),
        (Overlap.COPY, 60, 0, "1f1b-so"),
        (Overlap.COPY, 59, 0, "1f1b-sno"),
        (Overlap.STREAM, 1000, 4, "1f1b-as"),
        (Overlap.STREAM, 80, 5, "fbp-as"),
        (Overlap.STREAM, 79, 5, "1f1b-as"),
    ],
)
def test_choice(overlap: Overlap, limit: int, send: int, expected: str) -> None:
    """Two stages of 20 bytes and 4 ns forward: SO needs 3 in flight, FBP 4, and a link is short of 4 ns at 5 ns."""
    chain = make_chain([2, 2, 2, 2], devices=2, saved=10, send=send, limit=limit, overlap=overlap)
    assert preferred_family(chain, 8, (0, 2, 4)) == expected
    assert overlap in FAMILIES[expected].suits


def test_two_lanes_need_two_workspaces() -> None:
    """FBP runs a forward beside a backward, so its stages hold their workspace twice."""
    chain = make_chain([2, 2, 2, 2], devices=2, saved=10, send=5, workspace=3, limit=85, overlap=Overlap.STREAM)
    assert preferred_family(chain, 8, (0, 2, 4)) == "1f1b-as"


def test_empty_stages_do_not_count() -> None:
    """A single stage that holds everything needs one micro-batch in flight, not the five of a pipeline of three."""
    chain = make_chain([1, 1], devices=3, saved=10, limit=20)
    assert preferred_family(chain, 8, (0, 2, 2, 2)) == "1f1b-so"
