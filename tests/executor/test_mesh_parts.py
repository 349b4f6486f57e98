"""What one process of a mesh does with its parts: of tables, of masks, of sums and of gathered weights."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product as combinations
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from pipeplan.core.cluster import Link
from pipeplan.core.operators import TOKEN
from pipeplan.core.strategies import BY_HEADS, BY_KEYS, PARTIAL, UNSPLIT, WHOLE, AxisStrategy, Strategy
from pipeplan.costs.sharding.shapes import Mesh
from pipeplan.frontend.operators.record import Call
from pipeplan_executor.sharding.kernels import ON_CPU
from pipeplan_executor.sharding.mesh import attention, calls, gradients, weights, whole
from pipeplan_executor.sharding.mesh.cross_entropy import _Classes, _CrossEntropy
from pipeplan_executor.sharding.mesh.layers import MeshLayers
from pipeplan_executor.sharding.mesh.moves import divided, joined
from pipeplan_executor.sharding.mesh.products import Part, product
from pipeplan_executor.sharding.mesh.weights import Cut, MeshWeight
from pipeplan_executor.sharding.shards import ParameterShard

Run = Callable[[Any], Any]


def on_all(sizes: tuple[int, ...], module: Any, run: Run, patch: pytest.MonkeyPatch) -> dict[tuple[int, ...], Any]:
    """Run a function on every process of a mesh, here threads, with the collectives that a module calls."""
    places, parts = list(combinations(*map(range, sizes))), dict[tuple[int, ...], Tensor]()
    barrier = Barrier(len(places))

    def along(part: Tensor, axes: Any, axis: int, before: int, after: int, _groups: object) -> Tensor:
        parts[axes.places] = part
        barrier.wait(60)
        row = [parts[*axes.places[:axis], n, *axes.places[axis + 1 :]] for n in range(sizes[axis])]
        barrier.wait(60)
        if before == WHOLE:
            return part.chunk(sizes[axis], after)[axes.places[axis]]
        if before != PARTIAL:
            return torch.cat(row, before)
        total = torch.stack(row).sum(0)
        return total if after == WHOLE else total.chunk(sizes[axis], after)[axes.places[axis]]

    patch.setattr(module, "along", along)
    mesh = Mesh(sizes, (Link(10**9),) * len(sizes))
    with ThreadPoolExecutor(len(places)) as pool:
        made = pool.map(lambda place: run(SimpleNamespace(sizes=sizes, places=place, priced=mesh)), places)
        return dict(zip(places, made, strict=True))


@pytest.mark.parametrize("axes", [(0, 1, 2), (0, 2), (1,)])
def test_gradients_are_summed_along_several_axes(axes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is scattered along axes one after the other is gathered the other way round: each number keeps its place."""
    sizes = (2, 2, 2)
    drawn = {place: torch.randn(3, 5) for place in combinations(*map(range, sizes))}
    parameter = nn.Parameter(torch.empty(3, 5))

    def run(own: Any) -> Tensor:
        mine = drawn[own.places].clone()
        gradients.MeshGradients(own, {parameter: axes}).sum([(parameter, mine)])
        return mine

    for place, found in on_all(sizes, gradients, run, monkeypatch).items():
        same = [other for other in drawn if all(k in axes or other[k] == place[k] for k in range(3))]
        assert torch.allclose(found, sum(drawn[other] for other in same), atol=1e-5)


@pytest.mark.parametrize("dimensions", [(0, 0), (0, 1), (1, 1)])
def test_weights_are_gathered_along_several_axes(dimensions: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The innermost axis first; the sum of their gradients is scattered the other way round."""
    cuts = tuple(Cut(axis, dimension, gathered=True) for axis, dimension in enumerate(dimensions))
    weight, every = MeshWeight("w", "map", (4, 4), cuts, (WHOLE, WHOLE), ()), torch.randn(4, 4)
    drawn = {place: torch.randn(4, 4) for place in combinations(range(2), range(2))}

    def kept(tensor: Tensor, place: Sequence[int]) -> Tensor:
        for axis, dimension in enumerate(dimensions):
            tensor = tensor.chunk(2, dimension)[place[axis]]
        return tensor

    def run(own: Any) -> tuple[Tensor, Tensor]:
        return weight.whole(kept(every, own.places), own), weight.scattered(drawn[own.places], own)

    total = torch.stack([*drawn.values()]).sum(0)
    for place, (found, gradient) in on_all((2, 2), weights, run, monkeypatch).items():
        assert torch.equal(found, every)
        assert torch.allclose(gradient, kept(total, place), atol=1e-5)


@pytest.mark.parametrize("partial", [False, True])
def test_a_kept_part_gets_its_part_of_the_gradient(partial: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the sum where each process has a part of the layer's gradient, else of the whole one that each has."""
    drawn = torch.randn(2, 4, 3) if partial else torch.randn(1, 4, 3).repeat(2, 1, 1)

    def run(own: Any) -> Tensor | None:
        (place,) = own.places
        use = whole.Use(ParameterShard((4, 3), 0, 2, place), partial)
        return use.back(drawn[place], own)

    expected = (drawn.sum(0) if partial else drawn[0]).chunk(2)
    for (place,), found in on_all((2,), whole, run, monkeypatch).items():
        assert torch.allclose(found, expected[place])


@pytest.mark.parametrize("once", [(), (0,), (1,), (0, 1)])
def test_a_whole_gradient_beside_parts_of_a_sum_counts_once(once: tuple[int, ...]) -> None:
    """Of the processes whose gradients are summed, along one axis or two, the first one adds it."""
    use, gradient = whole.Use(once=once), torch.ones(2)
    for place in combinations(range(2), range(2)):
        added = use.back(gradient, SimpleNamespace(places=place))  # type: ignore[arg-type]
        assert (added is gradient) == all(place[axis] == 0 for axis in once)


@pytest.mark.parametrize("groups", [(), (2, 1, 1), (1, 3)])
def test_parts_of_groups_are_joined_group_by_group(groups: tuple[int, ...]) -> None:
    """What is divided and joined is what it was, whatever the groups."""
    tensor = torch.arange(16.0).reshape(8, 2)
    parts = divided(tensor, 0, 2, groups)
    assert torch.equal(joined(parts, 0, groups), tensor)


@pytest.mark.parametrize("places", list(combinations(range(2), range(2))))
def test_sums_that_were_not_used_count_on_one_process_of_an_axis(places: tuple[int, int]) -> None:
    """Along an axis without parts all processes keep them; along two axes with parts one of all processes does."""
    one, both, other = (nn.Parameter(torch.ones(2)) for _ in range(3))
    own = gradients.MeshGradients(SimpleNamespace(places=places), {one: (0,), both: (0, 1)})  # type: ignore[arg-type]
    sums = [(each, torch.ones(2)) for each in (one, both, other)]
    own.keep_once(sums)
    assert [float(each.sum()) for _, each in sums] == [2.0 * (places[0] == 0), 2.0 * (places == (0, 0)), 2.0]


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_a_shared_weight_is_summed_along_the_axes_of_all_its_layers(order: str) -> None:
    """Also if only one of them has parts of its gradient, the first or the last."""
    shared, summed = nn.Parameter(torch.ones(2, 2)), {"a": (0,), "b": ()}
    found = MeshLayers.__new__(MeshLayers)
    vars(found).update(_parameters={"a.w": shared, "b.w": shared}, _aliases={id(shared): ["a.w", "b.w"]}, _kept={})
    vars(found).update(_programs=summed, _known={}, _sums={}, _axes=None, shards={}, cuts={})
    vars(found)["_weights"] = lambda name: {"w": MeshWeight("w", name, (2, 2), (), (WHOLE,), summed[name])}
    for name in order:
        found._place(name, {"w": f"{name}.w"})
    assert found._sums == {id(shared): {0}}


@pytest.mark.parametrize("padding", [0, 3, 7])
def test_padding_has_no_gradient_in_split_tables(padding: int) -> None:
    """Whichever process has the row: gradients of the parts are those of the table table."""
    table = nn.Parameter(torch.randn(8, 5))
    numbers = torch.arange(8).repeat(2)
    made = functional.embedding(numbers, table, padding)
    made.square().sum().backward()
    call = Call(
        torch.ops.aten.embedding.default, (table, numbers, padding), {}, (table, numbers), (True, False), (made,)
    )
    parts = [nn.Parameter(rows.detach().clone()) for rows in table.chunk(2)]
    given = Part(numbers, numbers)
    rows = [
        product(call, [Part(own, own.detach(), parameter=own), given], 4 * place, True, None)[0]
        for place, own in enumerate(parts)
    ]
    torch.stack(rows).sum(0).square().sum().backward()
    assert torch.equal(torch.cat([own.grad for own in parts if own.grad is not None]), table.grad)


def test_masks_have_the_rows_of_all_tokens_of_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Along axes by heads a process has the queries of all tokens, so their rows; along others those of its tokens."""
    query, mask = torch.randn(1, 2, 4, 3), torch.zeros(1, 1, 4, 4)
    asked: dict[int, Strategy] = {}

    def operand(tensor: Tensor, strategy: Strategy) -> Tensor:
        asked[id(tensor)] = strategy
        return tensor

    monkeypatch.setattr(attention, "_Attention", SimpleNamespace(apply=lambda *given: given[0]))
    keys = AxisStrategy(TOKEN, by=BY_KEYS)
    given = (query, query.clone(), query.clone(), mask)
    call = Call(ON_CPU, given[:3], {"attn_mask": mask}, given, (True, True, True, False), (query,))
    strategy: Strategy = (keys, AxisStrategy(TOKEN, by=BY_HEADS))
    attention.attention(call, operand, SimpleNamespace(kept=None), strategy)  # type: ignore[arg-type]
    assert [asked[id(tensor)] for tensor in given] == [strategy, strategy, strategy, (keys, AxisStrategy(UNSPLIT))]


class _Seen(TorchDispatchMode):
    """Operations that run."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations.append(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_computed_as_the_device_can(device: str, causal: bool) -> None:
    """A program is recorded with the CPU's operation, which other devices do not have."""
    heads = [torch.randn(2, 2, 6, 4, dtype=torch.float64) for _ in range(3)]
    mask = None if causal else torch.randn(6, 6, dtype=torch.float64)
    whole = ON_CPU(*heads, 0.0, causal, attn_mask=mask, scale=0.3)
    parts = {id(tensor): tensor.to(device) for tensor in (*heads, *([] if mask is None else [mask]))}
    given = (*heads, 0.0, causal)
    call = Call(ON_CPU, given, {"attn_mask": mask, "scale": 0.3}, tuple(heads), (True,) * 3, tuple(whole))
    with _Seen() as seen:
        made = calls.results(call, lambda tensor: parts[id(tensor)])[0]
    assert (ON_CPU in seen.operations) == (device == "cpu")
    assert made.shape == whole[0].shape
    assert device == "meta" or torch.allclose(made, whole[0], atol=1e-12)


@pytest.mark.parametrize("weighted", [True, False])
def test_a_mean_loss_counts_rows_by_the_weights_of_their_classes(weighted: bool) -> None:
    """As torch's does: it is the sum of weighted losses, divided by the weights of all rows that are not ignored."""
    logits, target = torch.randn(6, 4, dtype=torch.float64), torch.tensor([0, 3, 1, 3, 2, 3])
    weight = torch.rand(4, dtype=torch.float64) if weighted else None
    own = _Classes(SimpleNamespace(sizes=(), places=()), (), 4, logits.dtype)  # type: ignore[arg-type]
    found = _CrossEntropy.apply(logits, own, own.rows(target, weight, 1, True))
    assert torch.allclose(found, functional.cross_entropy(logits, target, weight, ignore_index=1))
