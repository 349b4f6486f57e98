"""Loops of operators: how matrices are split decides what the strategies of a layer send."""

from collections import Counter
from collections.abc import Callable, Mapping

import pytest

from helpers.distributed.models import tiny_decoder
from helpers.fused_models import tiny_fused
from helpers.layer_operators import LayersOperators, eager, layers_operators, llama_like, post_norm
from helpers.mesh_exchanges import BACKWARD, FORWARD, mesh_exchanges
from pipeplan.core.cluster import Link
from pipeplan.core.operators import OperatorGraph
from pipeplan.core.strategies import UNSPLIT
from pipeplan.costs.sharding.exchanges import Exchange
from pipeplan.costs.sharding.given import GivenSplit, given_strategies, usual_rooflines
from pipeplan.costs.sharding.problem import MeshProblem
from pipeplan.costs.sharding.shapes import Mesh
from pipeplan.frontend.workload import Workload

TEAM, LINK = 2, Link(10**9)


def followed(graph: OperatorGraph, wanted: Callable[[str, list[str]], str | None]) -> tuple[dict[str, str], int, bool]:
    """Split operators, and follow what they make to their readers.

    ``wanted(name, loops)`` chooses the loop of an operator with weights that reads whole tensors only.

    Returns
    -------
    tuple
        The loop of each split operator, the number of sums, and whether a whole tensor is read in parts.

    Raises
    ------
    LookupError
        If something split is read otherwise, or leaves the layer.
    """
    split: dict[str, str] = {}
    sums, sliced = 0, False
    axis: dict[str, int] = {}
    for each in graph.operators:
        loops = [loop for loop, parts in each.loops.items() if parts % TEAM == 0]
        cut = [loop for loop in loops if any(loop in weight.loops for weight in each.weights)]
        given = {row[axis[source]] for source, row in each.reads.items() if source in axis}
        if len(given) > 1 or not given <= set(cut if each.weights else loops):
            raise LookupError(each.name)
        loop = next(iter(given)) if given else wanted(each.name, cut) if cut else None
        if loop is None:
            continue
        split[each.name] = loop
        parts = any(loop in row and source not in axis for source, row in each.reads.items())
        if parts and given and not each.weights:
            raise LookupError(f"{each.name} is whole, and so is what it reads")
        sliced |= parts
        if loop in each.makes:
            axis[each.name] = each.makes.index(loop)
        else:
            sums += 1
    if graph.operators[-1].name in axis:
        raise LookupError("output")
    return split, sums, sliced


def sent(
    model: LayersOperators, layer: str, split: Mapping[str, str]
) -> tuple[Counter[Exchange], Counter[Exchange], set[str]]:
    """What the strategies of a layer send forward and backward, and the operators that they split."""
    graph = model.graph(layer)
    cuts = {
        weight.name: graph.shard_axis(weight.name, weight.loops.index(split[each.name]))
        for each in graph.operators
        for weight in each.weights
        if split.get(each.name) in weight.loops
    }
    rooflines = usual_rooflines(graph, 2)
    strategies = given_strategies(graph, GivenSplit(cuts), TEAM, rooflines, LINK)
    assert strategies is not None
    found = list(mesh_exchanges(MeshProblem(rooflines, Mesh((TEAM,), (LINK,)), only=strategies), strategies))
    forward, backward = (Counter(each.kind for each in found if each.when == when) for when in (FORWARD, BACKWARD))
    return (
        forward,
        backward,
        {name for name, (strategy, _) in strategies.operators.items() if strategy[0].loop != UNSPLIT},
    )


@pytest.mark.parametrize(
    ("build", "layer", "pairs"),
    [
        (tiny_decoder, "block0", {"query_key_value": "out", "widen": "out"}),
        (llama_like, "1", {"query": "out", "key": "out", "value": "out", "gate": "out", "up": "out"}),
        (eager, "1", {"query": "out", "key": "out", "value": "out", "gate": "out", "up": "out"}),
        (tiny_fused, "sliced", {"fused": "out", "gate_up": "out"}),
        (tiny_fused, "nested", {"fused": "out", "gate_up": "out"}),
        (tiny_fused, "selected", {"self_attn": "out", "self_attn#2": "out", "linear1": "out"}),
    ],
    ids=["decoder", "llama", "eager", "sliced", "nested", "selected"],
)
def test_megatrons_pairs_sum_once_each_way(build: Callable[[], Workload], layer: str, pairs: Mapping[str, str]) -> None:
    """Where the first matrices are split by columns, the last follow by rows; each pair sums once, nothing gathers."""
    model = layers_operators(build, loss=False)
    split, sums, sliced = followed(model.graph(layer), lambda name, _: pairs.get(name))
    assert (sums, sliced) == (2, False)
    forward, backward, operators = sent(model, layer, split)
    assert forward == backward == Counter({Exchange.SUM: 2})
    assert operators >= split.keys()


def test_what_is_whole_is_added_to_parts_of_a_sum() -> None:
    """The gradients of three products, and that of the sum beside them, cost one sum; attention is split by heads."""
    model, pairs = layers_operators(post_norm, loss=False), dict.fromkeys(("query", "key", "value"), "out")
    split, sums, sliced = followed(model.graph("1"), lambda name, _: pairs.get(name))
    assert (sums, sliced) == (1, False)
    forward, backward, operators = sent(model, "1", split)
    assert forward == backward == Counter({Exchange.SUM: 1})
    assert "safe softmax" in operators
