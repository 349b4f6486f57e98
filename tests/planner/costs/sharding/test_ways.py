"""Ways of teams along one axis: what they cost, and that no choice of strategies is better than all of them."""

from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest

from helpers.instances import equal_devices
from helpers.operators import attention_block, block, of_many_tokens, pair, perceptrons
from pipeplan.core.cluster import Link
from pipeplan.core.job import Job, Recompute
from pipeplan.core.operators import TOKEN, OperatorGraph
from pipeplan.core.splits import CONTEXT, SEQUENCE
from pipeplan.core.strategies import AxisStrategy
from pipeplan.costs.sharding.alike import figures
from pipeplan.costs.sharding.coordinates import COORDINATES
from pipeplan.costs.sharding.layer_ways import COMPARED_AGAIN, KEEPS, LayerWays, parallelism
from pipeplan.costs.sharding.placements import ends_of
from pipeplan.costs.sharding.problem import MeshProblem
from pipeplan.costs.sharding.question import team_questions
from pipeplan.costs.sharding.splits import MeshTeams
from pipeplan.costs.sharding.teams import Teams
from pipeplan.costs.sharding.ways import TeamWays, _with_and_without
from pipeplan_formulations.common.clock import Clock, OutOfTimeError
from pipeplan_formulations.common.report import Limits
from pipeplan_formulations.sharding import frontier

GRAPHS = [block(), attention_block(), attention_block(causal=True, products=False)]


def ways_of(graph: OperatorGraph, bandwidth: int) -> TeamWays:
    """The ways of teams of two whose layers may be recomputed."""
    cluster = equal_devices(2, link=Link(bandwidth, 1))
    return TeamWays(Teams(perceptrons(3, graph=graph), cluster, 2, (1, 2), "sgd", False, again=True))


def layers(ways: TeamWays, tokens: bool) -> list[LayerWays]:
    """A layer in the middle at each micro-batch size, between whole tensors or parts of their tokens."""
    (kind,) = ways.teams.kinds
    ends = ends_of(*ways._between[-1 if tokens else 0], 1)
    return [ways.layer(1, kind, size, *ends) for size in ways.teams.sizes]


@pytest.mark.parametrize("graph", GRAPHS)
def test_ways_are_compared_with_another_forward_too(graph: OperatorGraph) -> None:
    """Where layers may be recomputed, the last figure has the forward twice, without what no way changes."""
    ways = ways_of(graph, 10**8)
    for layer in layers(ways, False):
        for main in ways._worthwhile("pair", *ways._between[0]):
            time, *_, again = layer.figures(main)
            assert again - time == layer.device(main).forward - layer.rooflines.constant("forward")


def test_plans_that_may_recompute_have_all_ways_of_plans_that_do() -> None:
    """Layers of which some choice runs the forward twice: ways that are best then are among those searched."""
    model, cluster = perceptrons(1, (1,), GRAPHS[-1]), equal_devices(2, link=Link(10**7, 1))
    none, choose, full = (
        {own.split for own in team_questions(model, cluster, Job(2, teams=(2,), recompute=again).of(model))}
        for again in Recompute
    )
    assert none < full <= choose


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("bandwidth", [10**7, 10**9])
@pytest.mark.parametrize("tokens", [False, True])
def test_no_choice_is_better_than_all_ways(graph: OperatorGraph, bandwidth: int, tokens: bool) -> None:
    """Of those without kept copies, in time, sums, parameters and saved bytes, and in time with another forward."""
    ways = ways_of(graph, bandwidth)
    ends = ways._between[-1 if tokens else 0]
    main = ways._worthwhile("pair", *ends)
    for layer in layers(ways, tokens):
        sharding = replace(layer.problem, keeps=False).sharding
        chosen = [layer.chosen(strategies) for strategies in main if KEEPS not in strategies]
        listed = np.array([each.costs for each in chosen if each is not None]) @ COMPARED_AGAIN.T
        for point in frontier(sharding.project(COMPARED_AGAIN), Clock(Limits())).points:
            small = layer.rooflines.parameters, layer.rooflines.cost.saved
            room = np.array([0, sharding.largest[COORDINATES.index("summed")], *(-(-n // 1024) for n in small), 0])
            assert any(np.all(row <= point + room) for row in listed)


def test_kept_copies_split_no_loss() -> None:
    """A way that keeps copies says nothing of the loss where the layers have none."""
    assert parallelism([(block(), (KEEPS,))], passes=False) == ()


@pytest.mark.parametrize("graph", GRAPHS)
def test_ways_cost_what_their_words_cost(graph: OperatorGraph) -> None:
    """With one signature of each operator the problem of a layer has the costs of the choice, and of the device."""
    ways = ways_of(graph, 10**8)
    (kind,) = ways.teams.kinds
    found = list(ways.ways())
    assert len({split.number for split, _ in found}) == len(found) > 1
    assert any(any(split.passes) for split, _ in found)
    for split, model in found:
        for profile in model.profiles:
            strategies = split.strategies[kind.name, profile.micro_batch][1]
            layer = ways.layer(1, kind, profile.micro_batch, *ends_of(split.placements, split.passes, 1))
            problem = layer.problem
            only = MeshProblem(
                problem.rooflines, problem.mesh, strategies.input, strategies.output, gathers=False, only=strategies
            )
            costs = only.sharding.evaluate((0,) * len(only.sharding.costs))
            assert costs is not None
            assert costs[COORDINATES.index("parameters")] == model.layers[1].parameters
            of = dict(zip(COORDINATES, costs, strict=True))
            assert profile.costs[1].forward == of["forward"] + problem.layer.constant("forward")
            assert profile.costs[1].update == of["update"] + of["summed"]
            assert profile.costs[1].saved == of["saved"]


def test_of_too_many_combinations_those_that_differ_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer ways, among them those of least time, parameters and saved bytes."""
    graph = attention_block()
    model = perceptrons(3, graph=graph)
    other = replace(model.layers[0], operators="other")
    model = replace(model, layers=(other, *model.layers[1:]), operators={"pair": graph, "other": graph})
    teams = Teams(model, equal_devices(2, link=Link(10**8, 1)), 2, (1, 2), "sgd", False)

    def figures() -> np.ndarray:
        rows = []
        for _, own in TeamWays(teams).ways():
            costs = [cost for profile in own.profiles for cost in profile.costs]
            times, saved = sum(cost.forward + cost.backward for cost in costs), sum(cost.saved for cost in costs)
            rows.append((times, sum(layer.parameters for layer in own.layers), saved))
        return np.array(rows)

    every = figures()
    monkeypatch.setattr("pipeplan.costs.sharding.together.MOST", 8)
    some = figures()
    assert len(some) < len(every)
    assert some.min(0).tolist() == every.min(0).tolist()


def test_tokens_are_split_where_the_first_of_equal_layers_is_beside_none() -> None:
    """Main strategies are those of all layers with the same operators; where no tokens are split, layers are whole."""
    graph = of_many_tokens()
    graph = replace(graph, operators=(replace(graph.operators[0], loops={"token": 400}),))
    model = perceptrons(3, graph=graph)
    first, second, last = model.layers
    apart = replace(model, layers=(first, replace(second, inputs=()), last))
    teams = Teams(apart, equal_devices(2, link=Link(10**9, 1)), 2, (1, 2), "sgd", False)
    rows = [split.strategies["unit", 1] for split, _ in TeamWays(teams).ways() if any(split.passes)]
    assert {tuple(own.operators["wide"].strategy[0].loop for own in row) for row in rows} == {("", "token", "token")}


def test_ways_are_found_however_slow_the_machine_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a limit nothing depends on the time, with minutes between any two looks at the clock."""

    def found() -> list[object]:
        ways = ways_of(pair(), 10**8)
        meshes = MeshTeams(replace(ways.teams, cluster=equal_devices(4), team=4), (4,), 8)
        return [*(split for split, _ in ways.ways()), *meshes.ways()]

    expected, minutes = found(), count(step=300)
    monkeypatch.setattr("pipeplan_formulations.common.clock.time", SimpleNamespace(monotonic=lambda: next(minutes)))
    assert found() == expected


def test_the_time_limit_ends_the_search_for_ways_of_a_single_layer() -> None:
    """Also between the looks at the clock that are taken from layer to layer."""
    (layer, *_) = layers(ways_of(block(), 10**8), tokens=False)
    late = LayerWays(layer.problem, False, Clock(Limits(time=-1)))
    with pytest.raises(OutOfTimeError):
        list(late.undominated({}))


def test_ways_that_are_left_out_gain_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """For each combination there is one that takes no figure more by over a half, between the same placements."""
    ways = ways_of(attention_block(), 10**8)
    monkeypatch.setattr("pipeplan.costs.sharding.ways.NEARLY", 2)
    some = [(split.passes, figures(model, ways.teams)) for split, model in ways.ways()]
    monkeypatch.setattr("pipeplan.costs.sharding.ways.unlike", lambda rows, *_: range(len(rows)))
    every = [(split.passes, figures(model, ways.teams)) for split, model in ways.ways()]
    assert len(some) < len(every)
    for passes, row in every:
        assert any(other == passes and (one <= row + row // 2).all() for other, one in some)


def test_what_is_split_beside_weights_is_named() -> None:
    """Products and attention on parts of the tokens are a context in parts; norms on them, or features, are not."""
    graph, tokens = attention_block(), (AxisStrategy(TOKEN),)
    named = {each.name: parallelism([(graph, ((each.name, tokens),))], False) for each in graph.operators}
    assert named == {each.name: (CONTEXT,) * each.by_plan for each in graph.operators}
    assert {each.by_plan for each in graph.operators} == {True, False}
    other = next(each.name for each in graph.operators if each.by_plan)
    assert parallelism([(graph, ((other, (AxisStrategy("out"),)),))], True) == (SEQUENCE,)
    assert parallelism([(graph, ((other, (AxisStrategy("out"), *tokens)),))], True) == (SEQUENCE, CONTEXT)


def test_combinations_are_made_without_kept_copies_and_with_those_that_some_layer_has() -> None:
    """In the second round layers without any stay as they are; without any at all there is no second one."""
    main = ("wide", (AxisStrategy("out"),))
    plain, kept = (main,), (main, KEEPS)
    first = {"a": {plain: (1,)}, "b": {plain: (3,)}}
    assert [*_with_and_without(first)] == [first]
    choices = {"a": {plain: (1,), kept: (2,)}, "b": {plain: (3,)}}
    assert [*_with_and_without(choices)] == [first, {"a": {kept: (2,)}, "b": {plain: (3,)}}]
