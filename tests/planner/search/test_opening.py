"""Teams are opened by the search: by size, in the order of their bounds, where these leave hope."""

from collections import Counter
from importlib import import_module
from typing import Any

import pytest

from helpers.instances import equal_devices, model_of
from helpers.operators import perceptrons
from pipeplan.core.cluster import Cluster, DeviceKind, Link
from pipeplan.core.errors import InfeasibleError, InputError, UndecidedError
from pipeplan.core.job import Job
from pipeplan.core.searched import CLOSED, LATE, OTHER_TEAMS, TENSOR
from pipeplan.costs.sharding.usual import USUAL, usual_teams, why_alone
from pipeplan.search.branch_and_bound import PlanSearch
from pipeplan.search.nodes.device_groups import DeviceGroupsNode
from pipeplan.search.nodes.teams import TeamsNode
from pipeplan.search.scope import searched
from pipeplan.search.space.opening import Opening
from pipeplan.search.space.spaces import Spaces
from pipeplan.solve import solve
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits, Status, Stop

FAST, SLOW = Link(10**9, 1), Link(10**3, 10**6)
CLUSTER = equal_devices(4, link=FAST)


def test_spaces_are_opened_one_by_one() -> None:
    """The same ones, in the same order, as at once; none is missing at the end."""
    at_once = Spaces(perceptrons(), CLUSTER, Job(4, teams=(1, 2, 4)))
    later = Spaces(perceptrons(), CLUSTER, Job(4, teams=(1, 2, 4)), opening=Clock(Limits()))
    assert not later.teams and later.late
    opened = [spaces.split for each in later.openings for spaces in each.open()]
    assert opened == list(later.teams) == list(at_once.teams)
    assert not later.late and not at_once.late


def test_without_time_for_teams_their_least_work_is_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan without teams is an answer, and so is that bound; if only teams are asked for there is none."""
    proved = solve(perceptrons(), CLUSTER, 4, teams=(1, 2), workers=1)
    assert proved.plan.team == 2
    monkeypatch.setattr(import_module("pipeplan.solve.solving"), "FOR_TEAMS", 0.0)
    for teams in ((1, 2), ()):
        found = solve(perceptrons(), CLUSTER, 4, teams=teams, workers=1)
        assert found.plan.team == 1
        assert 0 < found.bound <= proved.value
        assert (found.status, found.late, found.stop) == (Status.FEASIBLE, True, Stop.TIME)
        assert "not all ways to split layers over teams are known" in str(found)
        assert LATE.format(sizes="2 and 4" if not teams else "2") in found.searched.as_text()
    with pytest.raises(UndecidedError) as undecided:
        solve(perceptrons(), CLUSTER, 4, teams=(2,), workers=1)
    assert undecided.value.bound > 0


def test_the_usual_sizes_are_searched_where_none_are_named() -> None:
    """Those for which a node has room: the answer is that of the same sizes by name, and says so."""
    named = solve(perceptrons(), CLUSTER, 4, teams=(1, 2, 4), workers=1)
    found = solve(perceptrons(), CLUSTER, 4, workers=1)
    assert (found.value, found.bound, found.status) == (named.value, named.bound, Status.OPTIMAL)
    assert found.plan.team == 2 and found.job.teams == ()
    assert "teams of 1" in found.searched.as_text()
    assert OTHER_TEAMS in found.searched.not_searched and OTHER_TEAMS not in named.searched.not_searched
    alone = solve(perceptrons(), CLUSTER, 4, teams=(1,), workers=1)
    assert alone.value > found.value and alone.plan.team == 1
    assert f"{TENSOR}, as only teams of 1 are asked for" in alone.searched.not_searched


@pytest.mark.parametrize(
    ("devices", "sizes"), [(1, ()), (2, (1, 2)), (3, (1, 2)), (5, (1, 2, 4)), (8, (1, 2, 4, 8)), (9, (1, 2, 4, 8))]
)
def test_usual_sizes_are_those_that_a_node_has_room_for(devices: int, sizes: tuple[int, ...]) -> None:
    """Powers of two up to eight, so that no device more takes one away."""
    assert usual_teams(perceptrons(), equal_devices(devices), Job(4)) == sizes
    assert max(USUAL) == 8


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"objective": "bottleneck"}, "teams are planned for the time of steps"),
        ({"order": "given"}, "devices are taken in a given order"),
        ({"pin": (("l0", "d1"),)}, "a layer is pinned to one device"),
        ({"teams": (1,)}, "only teams of 1"),
        ({"model": model_of([1, 1])}, "operators of its layers are not known"),
        ({"cluster": Cluster.uniform(2, DeviceKind("unit", on_chip=100), FAST)}, "on-chip memory"),
        ({"cluster": equal_devices(1)}, "only one device"),
    ],
)
def test_the_answer_says_why_there_are_no_teams(options: dict, why: str) -> None:
    """Where they do not suit the job, which asks for none by name, nothing is refused."""
    model, cluster = options.pop("model", perceptrons()), options.pop("cluster", CLUSTER)
    job = Job(4, **options)
    assert job.teams or not usual_teams(model, cluster, job)
    assert why in why_alone(model, cluster, job)
    assert not Spaces(model, cluster, job).openings


def test_one_device_in_each_node_has_no_usual_teams() -> None:
    """The reason names the option that searches teams over nodes."""
    nodes = tuple(each for _ in range(2) for each in equal_devices(1, link=FAST).nodes)
    apart = Cluster("apart", equal_devices(1).kinds, nodes, SLOW)
    assert "--teams 2 searches teams over whole nodes" in why_alone(perceptrons(), apart, Job(4))


def test_teams_whose_bound_leaves_no_hope_are_never_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search ends with a proof, and the answer says that they were ruled out; no way is priced."""
    monkeypatch.setattr(Opening, "bound", property(lambda _: 10**15))
    monkeypatch.setattr(TeamsNode, "advance", lambda *_: pytest.fail("a size is opened"))
    found = solve(perceptrons(), CLUSTER, 4, workers=1)
    alone = solve(perceptrons(), CLUSTER, 4, teams=(1,), workers=1)
    assert (found.value, found.status, found.late) == (alone.value, Status.OPTIMAL, False)
    assert CLOSED.format(sizes="2 and 4") in found.searched.as_text()
    assert not any(sentence.startswith(TENSOR) for sentence in found.searched.not_searched)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"memory": 1300}, "What would fit"), ({"depths": (9,)}, "fewer stages"), ({"replicas": (5,)}, "ask for fewer")],
)
def test_teams_of_which_no_plan_fits_are_never_opened(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], words: str
) -> None:
    """Where all ways together have none; what would fit is still a plan with teams if these need least."""
    monkeypatch.setattr(Opening, "open", lambda *_: pytest.fail("a size is opened"))
    with pytest.raises(InfeasibleError, match=words) as usual:
        solve(perceptrons(), CLUSTER, 4, workers=1, **options)
    monkeypatch.undo()
    with pytest.raises(InfeasibleError) as named:
        solve(perceptrons(), CLUSTER, 4, teams=(1, 2, 4), workers=1, **options)
    assert str(usual.value).splitlines()[0] == str(named.value).splitlines()[0]
    assert ("teams of" in str(usual.value).splitlines()[0]) == ("memory" in options)


def test_sizes_without_room_are_left_out_with_a_word() -> None:
    """If others have room, or plans without teams are asked for too; alone they are refused."""
    words = "no teams of 8, for which "
    found = solve(perceptrons(), CLUSTER, 4, teams=(1, 2, 8), workers=1)
    without = solve(perceptrons(), CLUSTER, 4, teams=(1, 2), workers=1)
    assert (found.value, found.bound) == (without.value, without.bound)
    assert words in found.searched.as_text() and words not in without.searched.as_text()
    with pytest.raises(InputError, match=r"no node of .* has 8 devices"):
        solve(perceptrons(), CLUSTER, 4, teams=(8,), workers=1)
    for unlike in (False, True):
        alone = solve(perceptrons(), CLUSTER, 4, teams=(1, 8), unlike_teams=unlike, workers=1)
        assert alone.value == solve(perceptrons(), CLUSTER, 4, teams=(1,), workers=1).value
        assert words in alone.searched.as_text()


def test_where_nothing_can_be_split_plans_without_teams_are_the_answer() -> None:
    """If they are asked for too, with a word; else the question is refused. Here no length has three parts."""
    three = equal_devices(3, link=FAST)
    for unlike in (False, True):
        found = solve(perceptrons(), three, 4, teams=(1, 3), unlike_teams=unlike, workers=1)
        assert found.value == solve(perceptrons(), three, 4, teams=(1,), workers=1).value
        known = searched(Spaces(perceptrons(), three, Job(4, teams=(1, 3), unlike_teams=unlike)))
        assert "no teams of 3, over which no operator can be split" in known.as_text()
    with pytest.raises(InputError, match="can be split over them"):
        solve(perceptrons(), three, 4, teams=(3,), workers=1)


def test_small_questions_price_and_open_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the README prices teams at two of five micro-batch sizes, and places few devices with several stages.

    At one of these sizes only ways between parts of the tokens are priced. Plans without replicas are at one level.
    """
    priced, placed, questions, advance = [], [], Opening._priced, DeviceGroupsNode.advance

    def noted(own: Opening[Any], asked: Any) -> Any:
        priced.extend((size, any(passes)) for (_, passes), size in asked)
        return questions(own, asked)

    def counted(node: DeviceGroupsNode, search: PlanSearch) -> Any:
        placed.append((node.space.split is not None, node.space.model.rounds > 1))
        levels[max(map(len, node.groups)) == 1].add(node.space.job.level)
        return advance(node, search)

    levels: dict[bool, set[int]] = {True: set(), False: set()}
    monkeypatch.setattr(Opening, "_priced", noted)
    monkeypatch.setattr(DeviceGroupsNode, "advance", counted)
    found = solve("gpt2-small", "2x2-v100-10gbit", 16, memory="2GiB", workers=1)
    assert found.status is Status.OPTIMAL and sorted(priced) == [(1, False), (1, True), (2, True)]
    assert levels[True] == {0} and levels[False] >= {0, 1}
    of_teams, of_devices = (Counter(placed)[split, True] for split in (True, False))
    assert found.searched.opened < 400 and of_teams < 40 and of_devices < 60
