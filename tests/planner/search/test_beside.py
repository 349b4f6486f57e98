"""Nodes that the process beside a search advances: the same nodes, and no bound is lost while they are away."""

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pipeplan.core.job import Job
from pipeplan.io.load import load_cluster, load_model
from pipeplan.search import nodes_of
from pipeplan.search.branch_and_bound import Node, PlanSearch, Turn
from pipeplan.search.local_search import Improver, LocalSearch, Recall, Request, Workplace
from pipeplan.search.nodes import beside, layouts
from pipeplan.search.nodes.aggregate import AggregateNode
from pipeplan.search.nodes.beside import Advanced, Batch, BatchSearch, Shared, dumps, loads
from pipeplan.search.nodes.device_groups import SpaceNode
from pipeplan.search.nodes.joined_spaces import JoinedSpacesNode
from pipeplan.search.nodes.least_ways import LeastWaysNode, RoundsNode, in_rounds, together
from pipeplan.search.nodes.rows import RowsNode
from pipeplan.search.space import space
from pipeplan.search.space.spaces import Spaces
from pipeplan_formulations.common.report import Limits
from referee.beside import ProcessHere

JOB = Job(8, micro_batches=(8,), teams=(2, 4), zero=(0, 1), chunks=(1, 2))
VALUE = 10**9


def opened() -> Spaces:
    """Teams of two and four devices, one or two stages on each."""
    return Spaces(load_model("gpt2-small"), load_cluster("8-v100-pcie"), JOB)


def spaces_of(node: Node) -> Iterator[Any]:
    """All spaces of a node, and spaces of ways."""
    if isinstance(node, JoinedSpacesNode):
        yield from (member.space for member, _ in node.members)
    elif isinstance(node, LeastWaysNode):
        yield from (own.space for way in node.ways for own in way)
    elif isinstance(node, RoundsNode):
        yield from node.ways
    elif isinstance(node, SpaceNode | AggregateNode):
        yield node.space


@pytest.fixture(params=["few", "many"])
def nodes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Spaces, list[Node]]:
    """Root nodes that are shared, of rows of modes or of large spaces, and of several stages on each device."""
    monkeypatch.setattr(beside, "AFTER", 0.0)
    monkeypatch.setattr(space, "PAIRS", 0)
    if request.param == "many":
        for module, name in ((space, "FEW"), (layouts, "SMALL"), (layouts, "SMALL_CELLS")):
            monkeypatch.setattr(module, name, 0)
    spaces = opened()
    alone = list(nodes_of(own for each in spaces.teams.values() for own in each))
    every = [*together(alone), *alone, *in_rounds(spaces.teams.values())]
    kinds = {LeastWaysNode, RowsNode, RoundsNode, *([JoinedSpacesNode] if request.param == "many" else [])}
    assert {type(node) for node in every if node.shared} >= kinds
    assert request.param == "few" or any(node.shared and node.turn is Turn.UNTIL_A_PLAN for node in every)
    return spaces, [node for node in every if node.shared]


def test_nodes_of_all_kinds_come_back_with_the_same_spaces(nodes: tuple[Spaces, list[Node]]) -> None:
    """As they are, but for what each process makes for itself."""
    spaces, every = nodes
    assert any(own.unfolding is not None for node in every for own in spaces_of(node) if isinstance(node, SpaceNode))
    again = loads(dumps(every), spaces)
    assert [(type(node), node.bound, node.rank) for node in again] == [
        (type(node), node.bound, node.rank) for node in every
    ]
    known = {id(own) for own in (*spaces, *spaces.teams.values())}
    for node in again:
        assert all(id(own) in known for own in spaces_of(node))


def searching(value: int | None, **limits: float) -> PlanSearch:
    """A search that knows a plan of this value."""
    search = PlanSearch(Limits(**limits), cluster_of=lambda _: load_cluster("8-v100-pcie"))
    search.value = value
    return search


class Elsewhere:
    """A process that was sent requests, with the answers that it has ready."""

    def __init__(self, running: bool = True) -> None:
        self.running, self.requests, self.ready = running, list[Request | Recall](), list[object]()

    def asks(self, request: Request | Recall) -> bool:
        """Keep it."""
        self.requests.append(request)
        return self.running

    def answers(self, wait: float = 0.0) -> Iterator[object]:
        """What is ready."""
        while self.ready:
            yield self.ready.pop()


def shared(search: PlanSearch, nodes: tuple[Spaces, list[Node]], many: int = 8) -> tuple[Elsewhere, Shared]:
    """A search of these nodes, some of which are with a process that has not answered."""
    process, spaces = Elsewhere(), nodes[0]
    search.helper = helper = Shared(cast(Improver, process), spaces)
    search.resume()
    for bound, node in enumerate(nodes[1][:many], VALUE // 2):
        search.push(replace(cast(Any, node), bound=bound))
    helper.exchange(search)
    return process, helper


def test_every_second_node_is_sent_and_its_bound_still_counts(nodes: tuple[Spaces, list[Node]]) -> None:
    """The least one stays; while all others are closed the answer is bounded by those that are away."""
    search = searching(VALUE)
    process, helper = shared(search, nodes)
    assert [node.bound - VALUE // 2 for node in helper.away] == [1, 3, 5, 7]
    assert (search.open, len(process.requests)) == (8, 1)
    while search._heap:
        search._next()
    assert (search.open, search.bound) == (4, VALUE // 2 + 1)


def test_what_comes_back_is_opened_and_what_is_closed_there_is_left(nodes: tuple[Spaces, list[Node]]) -> None:
    search = searching(VALUE)
    process, helper = shared(search, nodes)
    batch = cast(Batch, process.requests[0])
    left = [replace(cast(Any, helper.away[0]), bound=VALUE // 2 + 100)]
    process.ready = [Advanced(batch.number + 1, dumps([]), None, {}, (), ()), "of something else"]
    helper.exchange(search)
    assert len(helper.away) == 4
    process.ready = [Advanced(batch.number, dumps(left), VALUE // 2 + 50, {"some": 7}, (), ())]
    process.running = False  # nothing is sent again
    helper.exchange(search)
    assert not helper.away
    while search._heap and search._heap[0][0] < VALUE // 2 + 50:
        search._next()
    assert search.bound == VALUE // 2 + 50
    assert [entry[0] for entry in search._heap] == [VALUE // 2 + 100]
    assert search.parts["some"] == 7


@pytest.mark.parametrize("why", ["late", "dead", "refused"])
def test_nodes_that_do_not_come_back_are_advanced_here(nodes, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    """The process takes too long, has ended, or cannot be asked any more."""
    search = searching(VALUE)
    process, helper = shared(search, nodes)
    helper.exchange(search)
    assert len(helper.away) == 4
    process.running = why != "dead"
    process.asks = lambda _: False  # type: ignore[method-assign]
    if why == "late":
        later = SimpleNamespace(monotonic=lambda: helper._sent + beside.PATIENCE + 1, time=lambda: 0.0)
        monkeypatch.setattr(beside, "time", later)
    elif why == "refused":
        helper._back(search, helper.away)
    helper.exchange(search)
    assert not helper.away
    assert sorted(entry[0] for entry in search._heap) == [*range(VALUE // 2, VALUE // 2 + 8)]


def test_nothing_is_sent_without_a_plan_to_beat(nodes: tuple[Spaces, list[Node]]) -> None:
    search = searching(None)
    process, helper = shared(search, nodes)
    assert not process.requests
    assert not helper.away


def test_a_batch_has_the_bounds_that_nodes_have_here(nodes: tuple[Spaces, list[Node]]) -> None:
    """Advanced to their ends, in spaces of their own and in those of the search: equal bounds of what is left."""
    spaces, every = nodes
    value = 700 * 10**6
    for node in every[:: max(len(every) // 6, 1)]:
        own = opened()
        answer = Batch(1, dumps([node]), value, 0.0, False, 60.0, 2.0**40).answer(Workplace(own, LocalSearch(own)))
        here = searching(value, time=60.0)
        here.resume()
        [again] = loads(dumps([node]), spaces)
        here.push(again)
        others: list[Node] = []
        while here.open:
            first = here._next()
            if first.shared:
                here.expand(first)
            else:
                others.append(first)
        assert answer is not None
        known = sorted((type(each).__name__, each.bound) for each in loads(answer.nodes, spaces))
        plans = [cast(Any, message.plan(spaces)).value for message in answer.plans]
        assert plans == [message.value for message in answer.plans]
        if not plans and not answer.partitions and here.value == value:
            assert known == sorted((type(each).__name__, each.bound) for each in others)
            assert answer.rest == here._rest


@pytest.mark.parametrize("looks", [0, 1, 3])
def test_what_a_batch_has_no_time_for_comes_back(nodes, monkeypatch: pytest.MonkeyPatch, looks: int) -> None:
    """Every node that was not advanced, whatever its turn, in a search that knows a value and no plan."""
    left = iter(range(looks))
    monkeypatch.setattr(BatchSearch, "spent", property(lambda _: 0.0 if next(left, None) is not None else 99.0))
    sent, own = sorted(nodes[1], key=lambda node: node.turn is not Turn.UNTIL_A_PLAN)[:40], opened()
    advanced: list[int] = []
    monkeypatch.setattr(BatchSearch, "expand", lambda _, node: advanced.append(node.bound))
    answer = Batch(1, dumps(sent), VALUE, 0.0, False, 60.0, 2.0**40).answer(Workplace(own, LocalSearch(own)))
    assert answer is not None
    again = [node.bound for node in loads(answer.nodes, nodes[0])]
    assert len(advanced) == looks
    assert advanced == sorted(node.bound for node in sent)[:looks]
    assert sorted([*again, *advanced]) == sorted(node.bound for node in sent)


@pytest.mark.parametrize("recalled", [0, 1, 2])
def test_a_batch_goes_on_until_it_is_wanted(nodes, monkeypatch: pytest.MonkeyPatch, recalled: int) -> None:
    """After its first seconds it ends when it, or a later one, is recalled; without that it has more time."""
    monkeypatch.setattr(BatchSearch, "spent", property(lambda _: (beside.SECONDS + beside.LONGEST) / 2))
    own, advanced = opened(), list[Node]()
    monkeypatch.setattr(BatchSearch, "expand", lambda _, node: advanced.append(node))
    place = Workplace(own, LocalSearch(own), recalled=recalled)
    answer = Batch(1, dumps(nodes[1][:4]), VALUE, 0.0, False, beside.LONGEST, 2.0**40).answer(place)
    assert answer is not None
    assert len(advanced) == (0 if recalled else 4)
    assert len(loads(answer.nodes, nodes[0])) == 4 - len(advanced)


def test_the_search_wants_its_nodes_back_after_some_seconds(nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so once; the nodes stay away until there is an answer."""
    process, helper = shared(search := searching(VALUE), nodes)
    for seconds in (0.5, beside.SECONDS + 0.5, beside.SECONDS + 1):
        now = helper._sent + seconds
        monkeypatch.setattr(beside, "time", SimpleNamespace(monotonic=lambda now=now: now, time=lambda: 0.0))
        helper.exchange(search)
        assert len(helper.away) == 4
        assert process.requests[1:] == ([Recall(1)] if seconds > beside.SECONDS else [])
        monkeypatch.undo()


@pytest.mark.parametrize("openings", [False, True])
def test_slices_of_a_batch_are_those_of_the_whole_search(
    nodes, monkeypatch: pytest.MonkeyPatch, openings: bool
) -> None:
    """Of searches of up to a minute; with teams, the many nodes should take little time each."""
    monkeypatch.setattr(Spaces, "openings", [object()] if openings else [])
    for whole in (40.0, 400.0):
        process, _ = shared(searching(VALUE, time=whole), nodes)
        (batch,) = process.requests
        assert isinstance(batch, Batch)
        assert batch.whole == (None if openings else min(whole, 60.0))


def test_nodes_that_have_begun_stay(nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they have begun is not sent."""
    monkeypatch.setattr(type(nodes[1][0]), "begun", property(lambda _: True))
    _, helper = shared(searching(VALUE), (nodes[0], [node for node in nodes[1] if type(node) is type(nodes[1][0])]))
    assert not helper.away


def test_a_batch_that_nobody_waits_for_is_left() -> None:
    own = opened()
    assert Batch(1, dumps([]), VALUE, 0.0, True, 1.0, 0.0).answer(Workplace(own, LocalSearch(own))) is None


def test_what_the_end_of_a_batch_closed_is_not_said(nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bound would stay that of the answer, while the search can still advance these nodes itself."""
    monkeypatch.setattr(BatchSearch, "expand", lambda own, _: monkeypatch.setattr(type(own), "rest", 0.0))
    own = opened()
    batch = Batch(1, dumps(nodes[1][:1]), VALUE, 0.0, False, 60.0, 2.0**40)
    assert batch.answer(Workplace(own, LocalSearch(own))) is None


def test_late_nodes_come_back_untouched_while_they_wait(nodes: tuple[Spaces, list[Node]]) -> None:
    """Those of several stages on a device, until the search has resumed."""
    node = next((each for each in nodes[1] if each.turn is Turn.LATE), None)
    for late in (True, False) if node is not None else ():
        own = opened()
        batch = Batch(1, dumps([node]), VALUE, 0.0, late, 60.0, 2.0**40)
        answer = cast(Advanced, batch.answer(Workplace(own, LocalSearch(own))))
        back = loads(answer.nodes, nodes[0])
        assert late is (len(back) == 1 and isinstance(back[0], type(node)) and back[0].bound == node.bound)


@pytest.mark.parametrize("settled", [True, False])
def test_late_nodes_are_sent_once_no_better_plan_is_found(
    nodes, monkeypatch: pytest.MonkeyPatch, settled: bool
) -> None:
    """Before those that the search itself would advance; when they come back they are set aside again."""
    monkeypatch.setattr(beside, "SETTLED", -1.0 if settled else 1.0)
    search, process = searching(VALUE), Elsewhere()
    search.helper = helper = Shared(cast(Improver, process), nodes[0])
    late = [each for each in nodes[1] if each.turn is Turn.LATE][:3]
    for node in [each for each in nodes[1] if each.turn is not Turn.LATE][:4]:
        search.push(replace(cast(Any, node), bound=VALUE // 2 + 10))
    for node in late:
        search.push(replace(cast(Any, node), bound=VALUE // 2))
    assert len(search._deferred) == len(late)
    helper.exchange(search)
    [batch] = cast(list[Batch], process.requests)
    sent = loads(batch.nodes, nodes[0])
    assert (len(sent) == len(late) and not batch.late) is (settled and bool(late))
    assert all((node.turn is Turn.LATE) is (settled and bool(late)) for node in sent)
    assert search.bound == VALUE // 2 + (0 if late else 10)
    process.running = False
    helper.exchange(search)
    assert len(search._deferred) == len(late)
    assert search.bound == VALUE // 2 + (0 if late else 10)


def test_a_plan_with_several_stages_on_a_device_comes_back_by_its_partition() -> None:
    """It is simulated again, as its sums may run in an order of their own."""
    there, here = opened(), opened()
    home = next(iter(there.teams.values()))
    own = next(each for each in home if each.unfolding is not None)
    size, layers = own.sizes[0], len(own.model.layers)
    modes = max((modes for modes, _ in own.all_modes(size)), key=len)
    groups = next(iter(own.placing.of(modes)))
    boundaries = tuple(layers * k // len(groups) for k in range(len(groups) + 1))
    batch = BatchSearch(Limits(), cluster_of=there.cluster_of, place=Workplace(there, LocalSearch(there)))
    batch.value = VALUE
    batch.submit_all(own.candidates(groups, size), boundaries)
    answer = batch.answer(1)
    assert len(answer.partitions) == 1
    assert not answer.plans
    search = searching(VALUE)
    search.cluster_of = here.cluster_of
    answer.partitions[-1].submit(search, here)
    assert search.incumbent is not None
    assert search.incumbent.candidate.laid == own.key[-1]
    assert search.value == batch.value < VALUE


def test_the_double_is_told_of_teams_that_open_later() -> None:
    """It answers in their spaces, as the process does."""
    job = Job(8, micro_batches=(8,), zero=(0, 1))
    spaces = Spaces(load_model("gpt2-small"), load_cluster("8-v100-pcie"), job)
    process = ProcessHere(spaces, 0)
    for each in spaces.openings:
        list(each.open())
    node = next(each for way in spaces.teams.values() for each in nodes_of(way) if each.shared)
    process.send(Batch(1, dumps([node]), VALUE, 0.0, False, 60.0, 2.0**40))
    [answer] = process.answers(1.0)
    assert isinstance(answer, Advanced)
