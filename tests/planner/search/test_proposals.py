"""Peers choose teams and levels by their own objective, and their plans are timed as those of the search."""

from math import inf

import pytest

from helpers.instances import equal_devices
from helpers.judged import baselines
from helpers.operators import perceptrons
from pipeplan.analysis.compare import SOLVER, compare
from pipeplan.baselines.partitioners import NotApplicable
from pipeplan.baselines.planners import PLANNERS
from pipeplan.core.cluster import Link
from pipeplan.core.job import Job
from pipeplan.search.proposals import Proposal, Proposals, homes
from pipeplan.search.space.spaces import Spaces

PEERS = [name for name, planner in PLANNERS.items() if planner.splits]
FAST, SLOW = (equal_devices(4, link=Link(bandwidth, 1)) for bandwidth in (10**12, 10**6))
JOB = Job(4, teams=(1, 2, 4), optimizer="adam")


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_chooses_the_split_by_its_own_objective(name: str) -> None:
    """At every micro-batch size its proposals are of the space where its value is least, of all levels and ways."""
    spaces = Spaces(perceptrons(), FAST, JOB)
    proposals = Proposals()
    proposals.begin(spaces)
    assert {0, 1} == {home.job.level for home in homes(spaces)}
    assert {1, 2, 4} == {1 if home.split is None else home.split.teams[0] for home in homes(spaces)}
    for size in spaces.lowest.sizes:
        values = {}
        for home in homes(spaces):
            try:
                found = PLANNERS[name].arrange(home.model, home.cluster, home.job, size)
            except NotApplicable:
                continue
            values[home.split, home.job.level] = min(one.value or inf for one in found)
        (proposal,) = proposals.of(spaces, name, size)
        assert isinstance(proposal, Proposal)
        assert proposal.home is not None
        assert values[proposal.home] == min(values.values())


@pytest.mark.parametrize("name", PEERS)
def test_teams_are_chosen_where_layers_do_not_fit(name: str) -> None:
    """A layer's state fits on two devices only, so a peer's plan has a team; Galvatron counts whole MiB."""
    tight = equal_devices(2, memory=2500, link=Link(10**12, 1))
    found = baselines(Spaces(perceptrons(1), tight, Job(1, teams=(1, 2), optimizer="adam", zero=(0,))), 1e6)[name]
    if name == "galvatron":
        assert found.why.startswith("Galvatron has no even stages that fit")
        return
    assert found.evaluated is not None, found.why
    split = found.evaluated.candidate.chain.split
    assert split is not None
    assert split.teams[0] > 1
    assert not found.outside


def test_a_comparison_has_a_row_per_peer() -> None:
    """Each has a plan of the searched space, no better than the bound, whose time the answer does not exceed."""
    table = compare(perceptrons(), SLOW, Job(4, teams=(1, 2, 4), optimizer="adam", schedules=("gpipe",)), time_limit=20)
    rows = {row.method: row for row in table.rows}
    for name in ("galvatron", "uniap"):
        value = rows[name].value
        assert value is not None
        assert not rows[name].outside
        assert table.bound <= (rows[SOLVER].value or 0) <= value
