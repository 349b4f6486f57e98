"""Lists through several batches, worked out by hand, and what holds for all of them."""

from itertools import product

import pytest

from pipeplan.core.errors import InputError
from pipeplan.core.schedule import Kind, Schedule
from pipeplan.schedules import FAMILIES
from pipeplan.schedules.alternate import one_forward_one_backward
from pipeplan.schedules.stale import through_batches


@pytest.mark.parametrize(
    ("gathers", "second"),
    [
        ((), "1F0 1B0 1R 1F2 1B2 1U 1R1 1F4 1B4 1U1 1R2 1U2"),
        ((1,), "1F0 1B0 1R 1F2 1U 1G 1B2 1R1 1F4 1B4 1U1 1G1 1R2 1U2 1G2"),
    ],
)
def test_lists_go_on_through_batches(gathers: tuple[int, ...], second: str) -> None:
    """A sum begins behind its batch; its update comes before the second batch behind that, or a gather earlier."""
    lists = through_batches(FAMILIES["1f1b-sno"].write((1, 2), 2), 3, gathers).as_text()
    assert lists[0] == "0F0 0F1 0B0 0F2 0B1 0F3 0B2 0U 0F4 0B3 0F5 0B4 0B5 0U1 0U2"
    assert lists[1] == second


@pytest.mark.parametrize(
    ("counts", "replicas", "gathers"), product([(1, 1), (3, 1), (4, 2)], [(1, 1), (2, 2)], [(), (0,)])
)
def test_two_versions_are_enough(counts: tuple[int, int], replicas: tuple[int, int], gathers: tuple[int, ...]) -> None:
    """An update comes behind the last backward that needs the weights that it writes, and before their first use."""
    many, batches = 8, 5
    schedule = through_batches(one_forward_one_backward(replicas, many, counts), batches, gathers)
    for order in schedule.orders:
        place = {(action.kind, action.micro_batch): at for at, action in enumerate(order)}
        own = [action.micro_batch for action in order if action.kind is Kind.FORWARD]
        share = len(own) // batches
        for batch in range(batches):
            last, first = own[(batch + 1) * share - 1], own[(batch + 2) * share :][:1]
            assert place[Kind.BACKWARD, last] < place[Kind.UPDATE, batch]
            assert all(place[Kind.UPDATE, batch] < place[Kind.FORWARD, each] for each in first)


def test_only_lists_that_alternate_go_on() -> None:
    """GPipe's lists end with a batch, and a device of several stages has none to alternate."""
    with pytest.raises(InputError, match="only lists of 1F1B on one stage per device"):
        through_batches(Schedule.from_text("found", ["0F0 0F1 0B0 0F2 0F3 0B1 0B2 0B3 0U"]), 2)
