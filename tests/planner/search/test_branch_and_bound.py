"""The search loop: bounds cover every plan, and plans outside the searched space are never incumbents."""

from dataclasses import dataclass, field

import pytest

from helpers.instances import equal_devices
from pipeplan.baselines.deadline import check_deadline, ending
from pipeplan.search import branch_and_bound
from pipeplan.search.branch_and_bound import Node, PlanSearch, Step, Turn
from pipeplan_formulations.common.report import Limits, Stop


@dataclass(frozen=True)
class Found:
    """A plan as far as the loop uses it."""

    value: int
    label: str = "a plan"
    candidate: None = None


@dataclass
class Scripted(Node):
    """A node that submits given plans and returns a given step."""

    bound: int
    offers: tuple[int, ...] = ()
    step: Step = field(default_factory=Step.nothing)

    @property
    def rank(self) -> tuple[int, ...]:
        """The same rank for all nodes."""
        return ()

    def advance(self, search: PlanSearch) -> Step[Node]:
        """Submit the plans and return the step."""
        for value in self.offers:
            search.submit(Found(value))
        return self.step


def ran(*nodes: Scripted, gap: float = 0.0, **more: object) -> PlanSearch:
    """Run a search of these nodes to its end."""
    search = PlanSearch(Limits(10.0, gap), cluster_of=lambda _: equal_devices(1), **more)
    search.pace.finish = lambda _: 0.0
    for node in nodes:
        search.push(node)
    search.run()
    return search


def test_what_is_left_unexamined_bounds_the_answer() -> None:
    """A node that leaves plans of 5 or more unexamined prevents a proof for a plan of 8."""
    search = ran(Scripted(1, (8,), Step.leave(5)))
    assert (search.value, search.bound, search.stop) == (8, 5, Stop.EXHAUSTED)


def test_the_least_of_all_that_is_left_counts() -> None:
    """Bounds of several nodes, and of nodes below others, all count; if they exceed the plan it is proved."""
    below = Scripted(4, (), Step.leave(6))
    search = ran(Scripted(1, (8,), Step.leave(7, [below])), Scripted(2, (), Step.split([Scripted(9)])))
    assert search.bound == 6
    assert ran(Scripted(1, (8,), Step.leave(8))).stop is Stop.OPTIMALITY


def test_a_split_loses_nothing_and_adds_nothing() -> None:
    """Where all nodes below a node were advanced, the best plan is proved."""
    search = ran(Scripted(1, (), Step.split([Scripted(2, (8,)), Scripted(3, (7,))])))
    assert (search.value, search.bound, search.stop) == (7, 7, Stop.OPTIMALITY)


def test_a_plan_outside_the_space_is_never_the_incumbent() -> None:
    """`outside` is checked for every plan, however good it is."""
    search = ran(Scripted(1, (3, 8)), outside=lambda plan: "too good" if plan.value < 5 else None)
    assert (search.value, search.bound) == (8, 8)
    assert [found.value for found in search.tried] == [8]


@pytest.mark.parametrize(("step", "refuted"), [(Step.nothing(), True), (Step.leave(3), False)])
def test_that_nothing_fits_is_proved_only_where_nothing_is_left(step: Step, refuted: bool) -> None:
    """A search without a plan that left plans unexamined has proved nothing."""
    search = ran(Scripted(1, (), step))
    assert search.incumbent is None
    assert search.refuted is refuted


def test_an_interrupted_node_keeps_its_bound() -> None:
    """A node that was interrupted is still open."""

    class Interrupted(Scripted):
        def advance(self, search: PlanSearch) -> Step[Node]:
            search.submit(Found(9))
            raise KeyboardInterrupt

    search = ran(Interrupted(4))
    assert (search.value, search.bound, search.stop) == (9, 4, Stop.INTERRUPT)


def test_a_node_that_the_limit_ends_keeps_its_bound() -> None:
    """What it has not examined bounds the answer, and others go on."""

    class Long(Scripted):
        def advance(self, search: PlanSearch) -> Step[Node]:
            with ending(0.0):
                check_deadline()
            return Step.nothing()

    search = ran(Scripted(1, (9,)), Long(4))
    assert (search.value, search.bound, search.stop) == (9, 4, Stop.EXHAUSTED)


def test_a_deferred_node_counts_until_it_is_resumed() -> None:
    """A node set aside bounds the answer like an open one, and is advanced once it is resumed."""

    class Deferring(Scripted):
        def advance(self, search: PlanSearch) -> Step[Node]:
            search.defer(Scripted(5, (6,)))
            return super().advance(search)

    search = ran(Deferring(1, (8,), Step.nothing()))
    assert (search.value, search.bound) == (8, 5)
    search.resume()
    search.run()
    assert (search.value, search.bound) == (6, 6)


def test_early_nodes_count_until_they_are_advanced() -> None:
    """The least bound of those that wait bounds the answer, in whatever order they are advanced."""

    class Early(Scripted):
        turn = Turn.EARLY

    search = PlanSearch(Limits(10.0), cluster_of=lambda _: equal_devices(1))
    search.pace.finish = lambda _: 0.0
    for bound in (9, 3, 5, 7):
        search.push(Early(bound))
    bounds = []
    while search.open:
        bounds.append(search.bound)
        search.step()
    assert bounds == [min(bounds[k:]) for k in range(4)] == [3, 5, 7, 9]


def test_teams_of_which_no_plan_is_found_wait_behind_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """While there is no plan, early nodes come in the order of their ranks only until their teams had their time."""
    tried: list[tuple[int, ...]] = []

    @dataclass
    class Seeking(Scripted):
        sizes: tuple[int, ...] = (1,)
        turn = Turn.UNTIL_A_PLAN

        @property
        def teams(self) -> tuple[int, ...]:
            return self.sizes

        @property
        def rank(self) -> tuple[int, ...]:
            return self.sizes

        def advance(self, search: PlanSearch) -> Step[Node]:
            tried.append(self.sizes)
            return super().advance(search)

    def order() -> list[tuple[int, ...]]:
        tried.clear()
        ran(Seeking(1), Seeking(2), Seeking(3), Seeking(4, (8,), sizes=(2,)))
        return list(tried)

    assert order() == [(1,), (1,), (1,), (2,)]
    monkeypatch.setattr(branch_and_bound, "FOR_A_PLAN", 1e-12)
    assert order() == [(1,), (2,), (1,), (1,)]
