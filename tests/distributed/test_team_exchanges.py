"""What the members of a team send each other, beside what plans are priced with, for splits worth searching."""

from collections.abc import Callable

import pytest

from helpers.distributed import exchange_workers, models
from helpers.distributed.exchange_workers import BACKWARD, FORWARD, MEMBERS
from pipeplan.frontend.workload import Workload
from pipeplan_executor import launch

EXACT = (models.tiny_decoder, models.tiny_vgg, models.tiny_mlp)
MOST = 6
"""Splits, with and without split tokens."""


@pytest.mark.parametrize("build", EXACT, ids=lambda build: build.__name__)
def test_members_send_what_was_predicted(build: Callable[[], Workload]) -> None:
    """Kinds, counts and bytes of all collectives: in a forward, in a backward, at the end of a step."""
    cases = exchange_workers.cases(build, MOST)
    found = launch(exchange_workers.seen, MEMBERS, build, tuple(case.plan for case in cases))
    assert sum(sum(sums.values()) for case in cases for sums in case.sent)  # there is something to compare
    for case, sent in zip(cases, found, strict=True):
        assert not exchange_workers.compared(build, case, sent), case.plan.shards


def test_tied_tables_send_at_most_what_was_predicted() -> None:
    """A table that is read as an embedding and as a head: the executor saves moves that the plan is priced with."""
    cases = exchange_workers.cases(models.tiny_tied, MOST)
    found = launch(exchange_workers.seen, MEMBERS, models.tiny_tied, tuple(case.plan for case in cases))
    exact = 0
    for case, sent in zip(cases, found, strict=True):
        wrong = exchange_workers.compared(models.tiny_tied, case, sent)
        exact += not wrong
        for when in (FORWARD, BACKWARD):
            more, less = wrong.get(when, {}).get("more", {}), wrong.get(when, {}).get("less", {})
            assert sum(size * n for (_, size), n in more.items()) <= sum(size * n for (_, size), n in less.items())
    assert exact >= len(cases) // 2
