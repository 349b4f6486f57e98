"""Ways to split layers that are not known yet are bounded by their least work, whenever the search is stopped."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest

from helpers.instances import equal_devices
from helpers.operators import COST, perceptrons
from helpers.quick import QUICK
from pipeplan.core.cluster import Link
from pipeplan.core.errors import InfeasibleError, InputError, UndecidedError
from pipeplan.core.job import Job
from pipeplan.core.model import LayerCost
from pipeplan.costs.layers import layer_costs
from pipeplan.costs.sharding.least import COUNTED, IN_HALVES, least_steps, least_work
from pipeplan.costs.sharding.question import TeamQuestion, every_team, every_way, team_questions
from pipeplan.costs.sharding.splits import MeshTeams
from pipeplan.search.space.space import Space
from pipeplan.search.space.spaces import Spaces
from pipeplan.search.space.unopened import Unopened
from pipeplan.solve import solve
from pipeplan_formulations.common.clock import Clock, OutOfTimeError
from pipeplan_formulations.common.report import Limits
from referee.bridge import objects
from referee.questions import question

SEEDS, MANY = range(7000, 7800), range(7000, 12000)
"""Seeds of questions, of which a twelfth is about teams, with two or three graphs of operators each."""


class Counted(Clock):
    """A clock that is over after so many looks, however long they take."""

    def __init__(self, looks: int) -> None:
        super().__init__(Limits())
        self.looks = looks

    def check(self) -> None:
        self.looks -= 1
        if self.looks < 0:
            raise OutOfTimeError


def with_teams(seeds: Iterable[int] = SEEDS) -> Iterator[tuple[int, Any, Any, Any]]:
    """Drawn questions about teams: of unlike devices, on meshes, with losses, recomputation and levels of ZeRO."""
    for seed in seeds:
        document = question(seed)
        if max(document["job"].get("teams") or [1]) > 1:
            with suppress(InputError):
                yield seed, *objects(document)


@pytest.fixture(scope="module")
def questions() -> list[tuple[int, Any, Any, Any]]:
    return list(with_teams())


def test_no_member_computes_less_than_the_least_work(questions: Any) -> None:
    """Of every layer, kind, micro-batch size and way that is searched; single ways reach it."""
    seen = equal = 0
    for _, model, cluster, job in questions[: 20 if QUICK else 50]:
        with suppress(InputError):
            teams = every_team(model, cluster, job.of(model))
            for own in team_questions(model, cluster, job.of(model)):
                if not isinstance(own, TeamQuestion):
                    continue
                for profile in own.model.profiles:
                    kind, size = own.cluster.kinds[profile.device], profile.micro_batch
                    least = least_work(teams[own.split.team], cluster.kinds[kind.name], size)
                    costs = layer_costs(own.model, kind, size, extrapolate=False, optimizer=job.of(model).optimizer)
                    work = np.array([cost.forward + cost.backward for cost in costs])
                    assert (least <= work).all()
                    seen, equal = seen + work.size, equal + int((least == work).sum())
    assert seen > 200 and equal


def test_no_way_takes_less_than_the_least_steps(questions: Any) -> None:
    """Of every layer, kind, micro-batch size and way along one axis, once and in a step; single ways reach it."""
    seen, equal = 0, dict.fromkeys((0, 1, 5), 0)
    for _, model, cluster, job in questions[4:16] if QUICK else with_teams(MANY):
        with suppress(InputError):
            for ways in every_way(model, cluster, job.of(model)).values():
                for split, priced in ways.ways():
                    for profile, passes in product(priced.profiles, (COUNTED, IN_HALVES)):
                        between, kind = (split.placements, split.passes), cluster.kinds[profile.device]
                        for count in equal:
                            (rows,) = least_steps(ways, between, kind, profile.micro_batch, max(count, 1), [passes])
                            least = rows[0 if count else 1]
                            taken = np.array([_taken(cost, count, passes) for cost in profile.costs])
                            assert (least <= taken).all()
                            seen, equal[count] = seen + taken.size, equal[count] + int((least == taken).sum())
    assert seen > 200 and all(equal.values())


def test_layers_without_a_choice_leave_the_bound_of_work() -> None:
    """Where no way passes parts of the tokens, as some layer cannot, what they would take is not known."""
    model, cluster, job = objects(question(1461711))
    bounds, nothing = Unopened(model, cluster, job.of(model)), 0
    for team, ways in bounds.ways.items():
        assert bounds.of_team(team, 0) <= bounds.of_team(team)
        for between, kind, size in product(ways.between(), ways.teams.kinds, ways.teams.sizes):
            nothing += int((least_steps(ways, between, kind, size, 1, [COUNTED]) == 0).sum())
    assert nothing


def _taken(cost: LayerCost, count: int, passes: tuple[str, ...]) -> int:
    """Nanoseconds of a layer in a step of so many micro-batches; without the update in one."""
    once = sum(getattr(cost, name) for name in passes)
    return count * once + cost.update if count else once


def test_each_layer_has_the_least_work_of_its_own_times() -> None:
    """Drawn layers of equal operators and unlike times: each as in a model of it alone, whatever stands before it."""
    draw, cluster = Random("times"), equal_devices(2, link=Link(10**9, 1))
    costs = [replace(COST, forward=COST.forward * draw.randint(1, 9), backward=COST.backward * 9) for _ in range(6)]

    def least(own: list[LayerCost]) -> list[int]:
        model = perceptrons(len(own), (1,))
        model = replace(model, profiles=(replace(model.profiles[0], costs=tuple(own)),))
        teams = every_team(model, cluster, Job(2, teams=(2,)).of(model))[2]
        found: list[int] = least_work(teams, cluster.kinds["unit"], 1).tolist()
        return found

    alone = [least([cost])[0] for cost in costs]
    assert least(costs) == alone
    assert len(set(alone)) > 2


class Interrupt:
    """Ctrl-C at the so manieth report of progress."""

    def __init__(self, reports: int) -> None:
        self.reports = reports

    def __call__(self, *_: Any) -> None:
        self.reports -= 1
        if self.reports < 0:
            raise KeyboardInterrupt


def test_a_search_stopped_anywhere_claims_no_more_than_the_best_plan(
    monkeypatch: pytest.MonkeyPatch, questions: Any
) -> None:
    """Its bound is at most the proved optimum, and above 0: whichever ways are open by then."""
    module, late = import_module("pipeplan.solve.solving"), 0
    for seed, model, cluster, job in questions[: 5 if QUICK else 16]:
        with suppress(InfeasibleError, InputError, UndecidedError):
            best = solve(model, cluster, job=job, workers=1, time_limit=20)
            if best.bound != best.value:
                continue
            random = Random(seed)
            for looks in random.sample(range(12), 3):
                opened = partial(_until, looks if random.random() < 0.7 else 1000)
                monkeypatch.setattr(module, "Spaces", opened)
                stop = Interrupt(random.choice((0, 1, 3, 10, 1000)))
                try:
                    found = solve(model, cluster, job=job, workers=1, time_limit=20, on_progress=stop)
                    bound, late = found.bound, late + found.late
                except UndecidedError as error:
                    bound, late = error.bound, late + 1
                assert 0 < bound <= best.value
                monkeypatch.undo()
    assert late


def _until(looks: int, *rest: Any, opening: Clock, **how: Any) -> Spaces:
    """Spaces whose teams are open after so many looks at the clock."""
    return Spaces(*rest, opening=Counted(looks), **how)


def test_each_bound_is_at_most_the_best_plan_of_its_teams(questions: Any) -> None:
    """Of teams of one size, and of mixes: what is opened last is bounded by what it has."""
    seen = mixed = 0
    unlike = [each for each in questions if each[3].unlike_teams]
    for _, model, cluster, job in [*questions[16 : 20 if QUICK else 30], *unlike[-1 if QUICK else 0 :]]:
        with suppress(InfeasibleError, InputError, UndecidedError):
            found = solve(model, cluster, job=job, workers=1, time_limit=20)
            split = found.plan.teams
            bounds = Unopened(model, cluster, job.of(model))
            if len(set(split)) == 1 and split[0] > 1:
                seen += 1
                assert 0 < bounds.of_team(split[0]) <= found.value
            if job.unlike_teams:
                mixed += 1
                assert 0 < bounds.of_mixes <= found.value
    assert seen and mixed


def test_no_choice_more_raises_a_bound_of_mixes(questions: Any) -> None:
    """Mixes have all teams, and single devices where these are asked for: their bound is at most that of each alone.

    Meshes are in no mix.
    """
    single = larger = 0
    for _, model, cluster, job in questions[:: 3 if QUICK else 1]:
        with suppress(InputError):
            own = job.of(model)
            bounds = Unopened(model, cluster, own)
            for team, ways in bounds.ways.items():
                if not MeshTeams.of(ways.teams, own.batch, own.mesh_axes):
                    assert bounds.of_mixes <= bounds.of_team(team)
            if 1 in own.teams:
                space = Space(model, cluster, replace(own, teams=(1,)))
                alone = min(space.lower_bounds(size).of_any(cluster) for size in space.sizes)
                assert bounds.of_mixes <= alone
                single, larger = single + 1, larger + any(alone < bounds.of_team(team) for team in bounds.sizes)
    assert single and larger
