"""The least way of several is no slower, no larger and no better than any of them, priced or not."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import fields, replace
from itertools import chain, product
from random import Random
from typing import Any

import pytest

from helpers.quick import QUICK
from pipeplan.core.errors import InfeasibleError, InputError, UndecidedError
from pipeplan.core.model import LayerCost, Model
from pipeplan.core.splits import Split
from pipeplan.costs.sharding.least_way import least_model, least_way
from pipeplan.costs.sharding.places import team_cluster
from pipeplan.costs.sharding.question import TeamQuestion, every_way
from pipeplan.search import nodes_of
from pipeplan.search.branch_and_bound import PlanSearch
from pipeplan.search.infeasible import least_sufficient_memory, promising
from pipeplan.search.nodes.least_ways import LeastWaysNode, bounds_ways, lower_bound, together
from pipeplan.search.space.rounds import split_families
from pipeplan.search.space.spaces import Spaces
from pipeplan.solve import solve
from pipeplan_formulations.common.report import Limits
from pipeplan_formulations.common.sentinels import UNLIMITED
from referee.bridge import objects
from referee.placed import SPLIT
from referee.questions import question
from referee.slices import in_parts

Rounds = tuple[str, ...] | None
"""Families of several stages of each team; none are the usual ones."""

SEEDS, MANY = range(1_480_000, 1_480_600), range(1_480_000, 1_492_000)
"""Seeds of questions, of which a twelfth is about teams, with two or three graphs of operators each."""


def with_teams(seeds: Iterable[int], rounds: Rounds = None) -> Iterator[tuple[Any, Any, Any]]:
    """Drawn questions about teams, without slices: of unlike devices, with losses, recomputation, levels of ZeRO.

    ``rounds``: about one and two stages of each team, under these families or the usual ones.
    """
    for seed in seeds:
        document = question(seed)
        if max(document["job"].get("teams") or [1]) > 1 and not document["job"].get("slices"):
            if rounds is not None:
                document["job"] |= {"chunks": [1, 2], "schedules": [*rounds], "depths": [], "zero": []}
                document["job"].pop("objective" if rounds else "", None)
                in_parts(Random(seed), document)
                document["cluster"]["nodes"] *= 2
            with suppress(InputError):
                model, cluster, job = objects(document)
                yield model, cluster, job.of(model)


def every_priced(seeds: Iterable[int], rounds: Rounds = None) -> Iterator[tuple[TeamQuestion, list[TeamQuestion]]]:
    """The least way at each micro-batch size, with all ways that are priced there."""
    for model, cluster, job in with_teams(seeds, rounds):
        with suppress(InputError):
            for team, ways in every_way(model, cluster, job).items():
                priced: dict[Any, list[tuple[Split, Model]]] = {}
                for split, own in ways.ways():
                    priced.setdefault((split.placements, split.passes), []).append((split, own))
                for between, size in product(priced, ways.teams.sizes):
                    least = least_way(ways, between, size, job, bool(split_families(job)))
                    assert least is not None
                    there = team_cluster(cluster, team)
                    asked = replace(job, teams=(), unlike_teams=False, micro_batches=(job.batch // size,))
                    yield least, [TeamQuestion(split, own, there, asked) for split, own in priced[between]]


def figures(model: Model, size: int) -> list[tuple[int, ...]]:
    """What plans are priced by: costs of every layer on every kind, parameters, shared bytes and the most of both."""
    rows = [cost for profile in model.profiles if profile.micro_batch == size for cost in profile.costs]
    names = (field.name for field in fields(LayerCost))
    found = list(zip(*([getattr(cost, name) for cost in rows] for name in names), strict=True))
    return [*found, tuple(layer.parameters for layer in model.layers)]


def shared(model: Model) -> dict[tuple[str, ...], tuple[int, int]]:
    """Bytes that layers share, and those of the first of them."""
    size = {layer.name: layer.parameters for layer in model.layers}
    return {tie.layers: (tie.parameters, size[tie.layers[0]]) for tie in model.ties}


def at_most(one: Model, other: Model, size: int) -> int:
    """Check that a model takes no more of anything than another one; return how many figures are equal."""
    pairs = list(zip(chain(*figures(one, size)), chain(*figures(other, size)), strict=True))
    assert all(a <= b for a, b in pairs)
    known = shared(other)
    for layers, (own, first) in shared(one).items():
        bytes_, whole = known[layers]
        assert own <= bytes_ and own * whole <= bytes_ * first
    return sum(a == b for a, b in pairs)


def test_no_way_takes_less_than_the_least_way() -> None:
    """Of any layer, kind and micro-batch size; single ways reach it."""
    seen = equal = 0
    split = every_priced(SEEDS[150:300] if QUICK else MANY[:1000], ("zb-v",))
    for least, priced in chain(every_priced(SEEDS[:150] if QUICK else MANY), split):
        size = least.model.profiles[0].micro_batch
        for own in priced:
            equal += at_most(least.model, own.model, size)
            seen += 1
        together_ = least_model([own.model for own in priced], size)
        assert all(at_most(together_, own.model, size) for own in priced)
    assert seen > 20 and equal


def values(seeds: Iterable[int], rounds: Rounds = None) -> Iterator[tuple[TeamQuestion, list[TeamQuestion], int]]:
    """Least ways, the ways that are priced, and the best plan that was found of these."""
    for least, priced in every_priced(seeds, rounds):
        spaces = Spaces(least.model, least.cluster, least.job, least.split)
        if all(map(bounds_ways, spaces)):
            found = []
            for own in priced:
                with suppress(InfeasibleError, InputError, UndecidedError):
                    job = replace(own.job, teams=(1,))
                    found.append(solve(own.model, own.cluster, job=job, workers=1, time_limit=10).value)
            if found:
                yield least, priced, min(found)


def search_below(value: int, spaces: Spaces) -> PlanSearch:
    """A search whose best plan takes a nanosecond more than the value."""
    search = PlanSearch(Limits(), cluster_of=spaces.cluster_of)
    search.value = value + 1
    return search


def test_no_way_has_a_plan_where_the_least_way_has_none() -> None:
    """Under limits around the least memory of each way, without a plan to beat."""
    empty = full = 0
    for least, priced in every_priced(SEEDS[:100] if QUICK else MANY[:3000]):
        for own in priced[:2]:
            found = least_sufficient_memory(Spaces(own.model, own.cluster, replace(own.job, memory=None), own.split))
            for memory in () if found is None else (found[0] // 2, found[0] * 3 // 4, found[0] - 1, found[0]):
                spaces = Spaces(least.model, least.cluster, replace(least.job, memory=memory), least.split)
                if memory <= 0 or not all(map(bounds_ways, spaces)):
                    continue
                none = lower_bound(spaces, PlanSearch(Limits(), cluster_of=spaces.cluster_of)) == UNLIMITED
                empty, full = empty + none, full + (not none)
                if none:
                    at_size = replace(least.job, memory=memory, teams=(1,))
                    with pytest.raises(InfeasibleError):
                        solve(own.model, own.cluster, job=at_size, workers=1, time_limit=10)
    assert empty > 10 and full > 10


@pytest.mark.parametrize("rounds", [None, (), ("1f1b-sno", *SPLIT)])
def test_no_plan_is_below_the_bound_of_the_least_way(rounds: Rounds) -> None:
    """Neither of all strategies, nor of the ways that are priced, together or in halves, with several stages or one."""
    seen = raised = 0
    for least, priced, value in values(SEEDS[150:400] if QUICK else MANY[600:3000], rounds):
        spaces = Spaces(least.model, least.cluster, least.job, least.split)
        bound = lower_bound(spaces, search_below(value, spaces))
        assert bound <= value
        seen, raised = seen + 1, raised + (bound > min(space.lower_bounds(size).evenly_shared(space.cluster)
                                                       for space in spaces for size in space.sizes))  # fmt: skip
        every = [space for own in priced for space in Spaces(own.model, own.cluster, own.job, own.split)]
        waiting, left = list(together(nodes_of(promising(every)))), list[int]()
        while waiting:
            node = waiting.pop()
            if isinstance(node, LeastWaysNode) and len(node.ways) > 1:
                step = node.advance(search_below(value, spaces))
                left += [] if step.rest is None else [step.rest]
                waiting += step.nodes
                seen += 1
            else:
                left.append(node.bound)
        assert min(left) <= value
    assert seen > 5 and raised
