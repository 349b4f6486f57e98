"""Operations on parts of groups: the first of two ranks has its part of what the operation makes of whole tensors."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Partial, Placement, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from pipeplan_executor.sharding.group_operations import GroupOperations
from pipeplan_executor.sharding.grouped import Grouped, by_rank, divides, in_order, part_of
from pipeplan_executor.sharding.operations import traits
from pipeplan_executor.sharding.parts import local, placed

A = torch.ops.aten
THIRDS, UNEVEN = (1, 1, 1), (2, 1, 1)


@pytest.fixture(scope="module")
def mesh() -> Iterator[DeviceMesh]:
    """Two ranks, of which only the first exists."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield init_device_mesh("cpu", (2,))
    dist.destroy_process_group()


def part(whole: Tensor, how: Placement) -> Tensor:
    """What the first rank has of a whole tensor."""
    if type(how) is Grouped:
        return part_of(whole, how, 2, 0)
    return whole.chunk(2, how.dim)[0] if type(how) is Shard else whole


def numbers(*shape: int) -> Tensor:
    """Different numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


X, THREE = Grouped(2, THIRDS), numbers(2, 3, 12)
G, EIGHT = Grouped(1, UNEVEN), numbers(6, 8)
MADE: list[tuple[Any, list[tuple[Tensor, Placement]], tuple[Any, ...], Any]] = [
    # what is called, tensors and their placements, other arguments, and the placement of what is made
    (A.add.Tensor, [(THREE, X), (numbers(12), Replicate())], (), X),
    (A.mul.Tensor, [(numbers(3, 1), Replicate()), (THREE, X)], (), X),
    (A.gelu.default, [(THREE, X)], (), X),
    (A.clone.default, [(EIGHT, G)], (), G),
    (A.zeros_like.default, [(EIGHT, G)], (), G),
    (A.detach.default, [(EIGHT, G)], (), G),
    (A.t.default, [(EIGHT, G)], (), Grouped(0, UNEVEN)),
    (A.transpose.int, [(THREE, X)], (0, -1), Grouped(0, THIRDS)),
    (A.permute.default, [(THREE, X)], ([2, 0, 1],), Grouped(0, THIRDS)),
    (A.unsqueeze.default, [(THREE, X)], (1,), Grouped(3, THIRDS)),
    (A.unsqueeze.default, [(THREE, X)], (-1,), X),
    (A.squeeze.dim, [(numbers(1, 12), Grouped(1, THIRDS))], (0,), Grouped(0, THIRDS)),
    (A.select.int, [(THREE, X)], (1, 2), Grouped(1, THIRDS)),
    (A.unbind.int, [(THREE, X)], (0,), Grouped(1, THIRDS)),
    (A.split.Tensor, [(THREE, X)], (4, 2), Shard(2)),
    (A.split.Tensor, [(THREE, X)], (2, 1), X),
    (A.split.Tensor, [(THREE, X)], (8, -1), (Grouped(2, (1, 1)), Shard(2))),
    (A.split_with_sizes.default, [(EIGHT, G)], ([4, 4], 1), (Shard(1), Grouped(1, (1, 1)))),
    (A.slice.Tensor, [(THREE, X)], (2, 4, 8), Shard(2)),
    (A.slice.Tensor, [(THREE, X)], (-1, 4, 2**62), Grouped(2, (1, 1))),
    (A.slice.Tensor, [(THREE, X)], (0, 0, 1), X),
    (A.slice_backward.default, [(THREE, X)], ([4, 3, 12], 0, 1, 3, 1), X),
    (A.select_backward.default, [(numbers(2, 12), Grouped(1, THIRDS))], ([2, 3, 12], 1, 2), X),
    (A.view.default, [(THREE, X)], ([6, 12],), Grouped(1, THIRDS)),
    (A.view.default, [(THREE, X)], ([2, 3, 3, 4],), Shard(3)),
    (A.view.default, [(THREE, X)], ([2, 3, 3, 2, 2],), Shard(3)),
    (A.view.default, [(THREE, X)], ([2, 3, 6, -1],), X),
    (A.view.default, [(numbers(3, 12, 2), Grouped(1, THIRDS))], ([3, 24],), Grouped(1, THIRDS)),
    (A.view.default, [(numbers(5, 2, 8), Shard(2))], ([5, 8, 2],), Grouped(1, (1, 1))),
    (A.mm.default, [(numbers(5, 6), Replicate()), (EIGHT, G)], (), G),
    (A.mm.default, [(EIGHT.t(), Grouped(0, UNEVEN)), (numbers(6, 3), Replicate())], (), Grouped(0, UNEVEN)),
    (A.addmm.default, [(numbers(8), Replicate()), (numbers(5, 6), Replicate()), (EIGHT, G)], (), G),
    (A.addmm.default, [(numbers(5, 1), Replicate()), (numbers(5, 6), Replicate()), (EIGHT, G)], (), G),
    (A.sum.dim_IntList, [(EIGHT, G)], ([0],), Grouped(0, UNEVEN)),
    (A.sum.dim_IntList, [(EIGHT, G)], ([0], True), G),
    (A.cat.default, [(THREE, Shard(2)), (THREE, Replicate()), (THREE, X)], (2,), Grouped(2, (3, 3, 1, 1, 1))),
]


@pytest.mark.parametrize(("func", "given", "rest", "wanted"), MADE, ids=lambda each: str(each)[:40])
def test_parts_of_groups_suffice(
    mesh: DeviceMesh, func: Any, given: list[tuple[Tensor, Placement]], rest: tuple[Any, ...], wanted: Any
) -> None:
    """Nothing is sent: the part of the result is made of the parts of the operands."""
    args: list[Any] = [placed(part(whole, how).contiguous(), mesh, (how,)) for whole, how in given]
    wholes: list[Any] = [whole for whole, _ in given]
    if func is A.cat.default:
        args, wholes = [args], [wholes]
    made = GroupOperations(mesh).run(func, traits(func), [*args, *rest], {}, forward=False)
    expected = func(*wholes, *rest)
    several = isinstance(expected, tuple | list)
    assert several == isinstance(made, tuple | list)
    rows = zip(made, expected, strict=True) if several else [(made, expected)]
    for number, (found, whole) in enumerate(rows):
        how = wanted[number] if isinstance(wanted, tuple) else wanted
        assert found.placements == (how,)
        assert found.shape == whole.shape
        assert torch.allclose(local(found, (how,)), part(whole, how))


@pytest.mark.parametrize("last", [False, True])
def test_sums_over_groups_are_parts_of_sums(mesh: DeviceMesh, last: bool) -> None:
    """Products along groups, and sums over them, are added up over the ranks; the first one has the bias."""
    one, bias = numbers(5, 8), numbers(6)
    args = [placed(part(one, G), mesh, (G,)), placed(part(EIGHT.t(), how := Grouped(0, UNEVEN)), mesh, (how,))]
    whole = part(one, G) @ part(EIGHT.t(), how)
    func, rest = (A.addmm.default, [bias, *args]) if last else (A.mm.default, args)
    made = GroupOperations(mesh).run(func, traits(func), rest, {}, forward=True)
    assert made.placements == (Partial(),)
    assert torch.allclose(local(made, (Partial(),)), whole + bias if last else whole)
    summed = GroupOperations(mesh).run(A.sum.dim_IntList, traits(A.sum.dim_IntList), [args[0], [1]], {}, forward=True)
    assert torch.allclose(local(summed, (Partial(),)), part(one, G).sum(1))


def called(func: Any, *args: Any) -> Callable[[GroupOperations, bool], Any]:
    """Call an operation."""
    return lambda operations, forward: operations.run(func, traits(func), args, {}, forward)


def test_what_needs_the_whole_is_left(mesh: DeviceMesh) -> None:
    """Ranges that are no groups, indices of an axis, shapes that break it, other groups, operations of others."""
    x, g = placed(part(THREE, X), mesh, (X,)), placed(part(EIGHT, G), mesh, (G,))
    other = placed(part(numbers(8, 2), Grouped(0, (1, 1))), mesh, (Grouped(0, (1, 1)),))
    left = [
        called(A.slice.Tensor, x, 2, 0, 6),
        called(A.slice.Tensor, x, 2, 0, 8, 2),
        called(A.split.Tensor, x, 5, 2),
        called(A.select.int, x, 2, 0),
        called(A.view.default, x, [72]),
        called(A.view.default, x, [2, 3, 2, 6]),
        called(A.mm.default, g, other),
        called(A.mm.default, g, placed(numbers(8, 2), mesh, (Replicate(),))),
        called(A._softmax.default, g, 1, False),
        called(A.cat.default, [g, g], 0),
    ]
    assert [each(GroupOperations(mesh), False) for each in left] == [None] * len(left)
    halves = [placed(part(THREE, Shard(2)), mesh, (Shard(2),))] * 2
    assert called(A.cat.default, halves, 2)(GroupOperations(mesh), True) is None  # the planner knows none in a forward


def test_gradients_of_slices_and_views_come_back(mesh: DeviceMesh) -> None:
    """Those of a range, and of indices that were groups, are again in the groups of the forward."""
    operations, x = GroupOperations(mesh), placed(part(THREE, X), mesh, (X,))
    middle = called(A.slice.Tensor, x, 2, 4, 8)(operations, True)
    back = called(A.slice_backward.default, middle, [2, 3, 12], 2, 4, 8, 1)(operations, False)
    whole = torch.zeros(2, 3, 12)
    whole[..., 4:8] = THREE[..., 4:8]
    assert back.placements == (X,) and torch.equal(local(back, (X,)), part(whole, X))
    apart = called(A.view.default, x, [2, 3, 3, 4])(operations, True)
    together = called(A.view.default, apart, [2, 3, 12])(operations, False)
    assert together.placements == (X,) and torch.equal(local(together, (X,)), part(THREE, X))


def test_writes_stay_in_place(mesh: DeviceMesh) -> None:
    """An operation that writes into a part returns the tensor that it got."""
    x = placed(part(THREE, X).clone(), mesh, (X,))
    made = called(A.mul_.Tensor, x, placed(THREE, mesh, (Replicate(),)))(GroupOperations(mesh), True)
    assert made is x
    assert torch.equal(local(x, (X,)), part(THREE * THREE, X))


@pytest.mark.parametrize("groups", [THIRDS, UNEVEN, (1, 2, 3)])
@pytest.mark.parametrize("ranks", [2, 4])
def test_parts_make_up_the_whole(groups: tuple[int, ...], ranks: int) -> None:
    """Parts of all ranks, in their order, are the whole; a layout by rank has them one after the other."""
    whole, how = numbers(2, 48, 3), Grouped(1, groups)
    parts = [part_of(whole, how, ranks, rank) for rank in range(ranks)]
    assert torch.equal(in_order(parts, how), whole)
    assert torch.equal(torch.cat(parts, 1), by_rank(whole, how, ranks))
    assert how == Grouped(1, list(groups)) and hash(how) == hash(Grouped(1, groups)) and how != Shard(1)
    assert divides(how, 48, ranks) and not divides(how, 48, 32)
