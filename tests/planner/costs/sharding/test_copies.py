"""Copies on meshes: one gather for several operators that read a tensor."""

from dataclasses import replace

import pytest

from helpers.mesh_exchanges import mesh_exchanges
from helpers.operators import attention_block
from pipeplan.core.cluster import DeviceKind, Link
from pipeplan.core.model import LayerCost
from pipeplan.core.strategies import WHOLE, AxisStrategy, Copy, LayerStrategies, Signature
from pipeplan.costs.sharding.coordinates import COORDINATES, combined, in_order
from pipeplan.costs.sharding.device_costs import _copies_at, device_cost
from pipeplan.costs.sharding.exchanges import Exchange
from pipeplan.costs.sharding.problem import MeshProblem
from pipeplan.costs.sharding.rooflines import Rooflines
from pipeplan.costs.sharding.shapes import Mesh
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits
from pipeplan_formulations.sharding import frontier

KEPT = LayerCost(0, 0, 0, 0, saved=448, output=0)
TIME = combined(("forward", "backward"), ("parameters", "saved"))


def on_two(shares: bool = True) -> MeshProblem:
    """A block whose input and output are split along tokens, on two devices, a byte a nanosecond, and it takes none."""
    graph = attention_block(products=False)
    own = Rooflines(graph, KEPT, graph.parameters, DeviceKind("unit"), None, 1)
    return MeshProblem(own, Mesh((2,), (Link(10**9),)), (0,), (0,), tokens=True, gathers=False, shares=shares)


def leanest(problem: MeshProblem) -> tuple[int, LayerStrategies]:
    """Least time with the fewest bytes, and how it runs."""
    found = frontier(problem.sharding.project(TIME), Clock(Limits()))
    return int(found.points[-1, 0]), problem.layer_strategies(found.choice(len(found.points) - 1))


def test_queries_keys_and_values_share_a_gather() -> None:
    """Columns of three matrices read one copy: two gathers of 32 bytes are spared forward, and two backward."""
    (alone, without), (shared, strategies) = leanest(on_two(False)), leanest(on_two())
    assert not without.copies
    assert strategies.copies == {"norm": Copy((WHOLE,), ("query", "key", "value"))}
    assert alone - shared == 4 * 32
    sent = [each for each in mesh_exchanges(on_two(), strategies) if each.tensor == "norm"]
    assert [(each.kind, each.when) for each in sent] == [
        (Exchange.GATHER, "forward"), (Exchange.GATHER, "backward"), (Exchange.SCATTER, "backward")
    ]  # fmt: skip


def test_a_copy_takes_room_from_its_first_reader_to_its_last() -> None:
    """And not before or behind them."""
    problem = on_two()
    _, strategies = leanest(problem)
    first, last = (problem.index[name] for name in ("query", "value"))
    assert _copies_at(problem, strategies) == [(first, last, problem.tensors["norm"].size)]


def test_a_chosen_copy_costs_what_it_costs_among_all() -> None:
    """With one signature of each operator, and with its copies, a problem has the costs of the choice."""
    problem = on_two()
    found = frontier(problem.sharding.project(TIME), Clock(Limits()))
    for point in range(len(found.points)):
        choice = found.choice(point)
        only = replace(problem, only=problem.layer_strategies(choice))
        assert only.sharding.evaluate((0,) * len(only.sharding.costs)) == problem.sharding.evaluate(choice)


def test_a_copy_that_is_kept_costs_its_bytes_and_spares_the_second_gather() -> None:
    """Fastest with parts of all weights: the whole of what columns read is gathered once, and its bytes are saved."""
    problem = on_two()
    (least, strategies), again = fastest(problem), fastest(replace(problem, keeps=False))
    assert strategies.copies["norm"] == Copy((WHOLE,), ("query", "key", "value"), kept=True)
    sent = [(each.kind, each.when) for each in mesh_exchanges(problem, strategies) if each.tensor == "norm"]
    assert sent == [(Exchange.GATHER, "forward"), (Exchange.SCATTER, "backward")]
    assert again[0] - least == 32 * sum(copy.kept for copy in strategies.copies.values())
    other = {name: copy._replace(kept=False) for name, copy in strategies.copies.items()}
    kept, moved = (costs_of(problem, replace(strategies, copies=copies)) for copies in (strategies.copies, other))
    size = problem.tensors["norm"].size
    assert kept["saved"] - moved["saved"] == size * len(other)
    assert moved["weight_gradient"] - kept["weight_gradient"] == 32 * len(other)


def fastest(problem: MeshProblem) -> tuple[int, LayerStrategies]:
    """Least time with the fewest bytes of parameters, and how it runs."""
    matrix = combined(("parameters",), ("forward", "backward"), ("saved",))
    found = frontier(problem.sharding.project(in_order(problem.sharding, matrix)), Clock(Limits()))
    strategies = problem.layer_strategies(found.choice(0))
    own = costs_of(problem, strategies)
    return own["forward"] + own["backward"], strategies


def costs_of(problem: MeshProblem, strategies: LayerStrategies) -> dict[str, int]:
    """Costs of a layer under given strategies."""
    own = replace(problem, only=strategies).sharding
    return dict(zip(COORDINATES, own.evaluate((0,) * len(own.costs)) or (), strict=True))


@pytest.mark.parametrize("readers", [("query",), ("query", "key"), ("query", "key", "value")])
def test_readers_beside_a_copy_move_by_themselves(readers: tuple[str, ...]) -> None:
    """Of three that need the whole of a tensor each gathers it that is not among the copy's readers."""
    problem = on_two()
    _, strategies = leanest(problem)
    own = replace(strategies, copies={"norm": Copy((WHOLE,), readers)})
    costs = replace(problem, only=own).sharding
    of = dict(zip(COORDINATES, costs.evaluate((0,) * len(costs.costs)) or (), strict=True))
    every = replace(problem, only=strategies).sharding
    whole = dict(zip(COORDINATES, every.evaluate((0,) * len(every.costs)) or (), strict=True))
    assert of["forward"] - whole["forward"] == 32 * (3 - len(readers))
    assert of["weight_gradient"] - whole["weight_gradient"] == 32 * (3 - len(readers))


def test_attention_gathers_its_operands_again() -> None:
    """On whole keys of which each device holds some, attention gathers them in both passes."""
    problem = on_two()
    row, whole = AxisStrategy("token"), AxisStrategy("")
    strategies = {name: Signature((row,), (0,)) for name in ("norm", "add")}
    strategies |= {name: Signature((AxisStrategy("out"),), (1,)) for name in ("query", "key", "value")}
    strategies |= {"attention": Signature((whole,), (WHOLE,)), "out": Signature((whole,), (WHOLE,))}
    own = LayerStrategies(strategies, {"norm": (0,), "input": (0,)}, (0,), (0,))
    sent = [
        (each.kind, each.when) for each in mesh_exchanges(replace(problem, only=own), own) if each.tensor == "query"
    ]
    assert sent == [(Exchange.GATHER, "forward"), (Exchange.GATHER, "backward")]
    # a copy of one of them for attention alone takes the room of what it gathers itself
    parts = problem.tensors["query"].size, problem.tensors["key"].size, problem.tensors["value"].size
    for copies in ({}, {"query": Copy((WHOLE,), ("attention",))}):
        cost = device_cost(problem, replace(own, copies=copies), (0,) * len(COORDINATES))
        assert cost.workspace == sum(parts)
    costs = replace(problem, only=own).sharding
    of = dict(zip(COORDINATES, costs.evaluate((0,) * len(costs.costs)) or (), strict=True))
    assert of["input_gradient"] == 32 * 3 + (of["backward"] - of["weight_gradient"] - 96)
