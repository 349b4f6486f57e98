"""Loops of operators against the executor: what the graphs say of splits is what it sends.

Collectives are those of a process group without other processes: they are counted, and values do not matter.
"""

import copy
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from helpers.distributed.models import tiny_convolutions, tiny_decoder, tiny_mlp, tiny_tied
from helpers.fused_models import tiny_fused
from helpers.layer_operators import LayersOperators, eager, fused, layers_operators, llama_like, post_norm
from pipeplan.core.operators import OperatorGraph
from pipeplan.core.weight_names import shard_name
from pipeplan.frontend.batch import tensors
from pipeplan.frontend.capture.private import TorchDispatchMode
from pipeplan.frontend.workload import Workload
from pipeplan_executor.sharding import TensorParallel
from pipeplan_executor.sharding.layers import ShardedLayers
from pipeplan_executor.sharding.shards import find_shards
from pipeplan_executor.stages.materialise import put

TEAM = 2


class Collectives(TorchDispatchMode):
    """Counts collectives."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        space, _, name = func._schema.name.partition("::")
        if "c10d_functional" in space and not name.startswith(("wait", "_wrap")):
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def mesh() -> Iterator[DeviceMesh]:
    """A team of two of which only this process exists."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=TEAM)
    yield init_device_mesh("cpu", (TEAM,))
    dist.destroy_process_group()


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


def run(
    model: LayersOperators, layer: str, split: Mapping[str, str], mesh: DeviceMesh
) -> tuple[Counter[str], Counter[str], set[str]]:
    """Run the layer, split so; return the collectives forward and backward, and the operations that gathered."""
    number = model.sequence.names.index(layer)
    graph = model.graph(layer)
    cuts = {
        shard_name(layer, weight.name): graph.shard_axis(weight.name, weight.loops.index(split[each.name]))
        for each in graph.operators
        for weight in each.weights
        if split.get(each.name) in weight.loops
    }
    shards = find_shards(model.workload.module, None, TensorParallel(TEAM, cuts))
    sharded = ShardedLayers(mesh, shards)
    part, names = copy.deepcopy(model.sequence.layers[number]), model.sequence.parameters[number]
    for local, full in names.items():
        if full in shards:
            whole = model.workload.module.get_parameter(full).detach()
            put(part, local, nn.Parameter(shards[full].of(whole)), lasting=True)
    given = tuple(each.detach().requires_grad_(each.requires_grad) for each in model.inputs[number])
    with Collectives() as forward:
        made = sharded.gathered(tensors(sharded.wrapped(layer, part, names)(*given)))
    roots = [each for each in made if each.requires_grad]
    with Collectives() as backward, sharded.backward():
        torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
    drawn = {"aten.bernoulli_.float"}  # on every rank alike, without sending anything
    return forward.counts, backward.counts, set(sharded.dispatch.gathered) - drawn


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
def test_megatrons_pairs_sum_once_each_way(
    build: Callable[[], Workload], layer: str, pairs: Mapping[str, str], mesh: DeviceMesh
) -> None:
    """Where the first matrices are split by columns, the last follow by rows; each pair sums once, nothing gathers."""
    model = layers_operators(build, loss=False)
    split, sums, sliced = followed(model.graph(layer), lambda name, _: pairs.get(name))
    assert (sums, sliced) == (2, False)
    forward, backward, gathered = run(model, layer, split, mesh)
    assert forward == {"all_reduce": 2}
    assert backward == {"all_reduce": 2}
    assert not gathered


def test_what_is_whole_is_added_to_parts_of_a_sum(mesh: DeviceMesh) -> None:
    """The gradients of three products, and that of the sum beside them, cost one sum; attention is split by heads."""
    model, pairs = layers_operators(post_norm, loss=False), dict.fromkeys(("query", "key", "value"), "out")
    split, sums, sliced = followed(model.graph("1"), lambda name, _: pairs.get(name))
    assert (sums, sliced) == (1, False)
    assert split["safe softmax"]
    assert run(model, "1", split, mesh) == ({"all_reduce": 1}, {"all_reduce": 1}, set())


@pytest.mark.parametrize(
    "build",
    [tiny_decoder, tiny_tied, tiny_mlp, llama_like, eager, post_norm, fused, tiny_fused, tiny_convolutions],
)
def test_random_splits_send_what_graphs_say(build: Callable[[], Workload], mesh: DeviceMesh) -> None:
    """Forward sums are those of the graph, and nothing is gathered; backward too, if whole tensors are not sliced."""
    model = layers_operators(build, loss=False)
    generator = random.Random(1)
    seen: set[str] = set()
    for layer in dict.fromkeys(filter(None, model.found.names)):
        for _ in range(12):
            try:
                split, sums, sliced = followed(model.graph(layer), lambda _, cut: generator.choice([*cut, None]))
            except LookupError:
                continue
            if not split or f"{layer} {split}" in seen:
                continue
            seen.add(f"{layer} {split}")
            forward, backward, gathered = run(model, layer, split, mesh)
            assert forward == Counter(all_reduce=sums), split
            assert not gathered, split
            assert sliced or set(backward) <= {"all_reduce"}, split
    assert seen
