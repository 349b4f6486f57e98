"""`Rules`: operations on shards as DTensor runs them, and how often it is asked."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from pipeplan_executor.sharding import rules as module
from pipeplan_executor.sharding.parts import WHOLE, placed, shard
from pipeplan_executor.sharding.rules import Rules

ATEN = torch.ops.aten


@pytest.fixture(scope="module")
def mesh() -> Iterator[DeviceMesh]:
    """A team of two of which only this process exists."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield init_device_mesh("cpu", (2,))
    dist.destroy_process_group()


def calls(mesh: DeviceMesh) -> list[tuple[Any, tuple[Any, ...]]]:
    """Operations on shards without communication, one of them with local sizes, one with several results."""

    def cut(axis: int, *shape: int) -> DTensor:
        placements: tuple[Placement, ...] = (Shard(axis),)
        return placed(torch.randn(shape), mesh, placements)

    whole = placed(torch.randn(3, 4), mesh, WHOLE)
    return [
        (ATEN.mm.default, (whole, cut(1, 4, 5))),
        (ATEN.mm.default, (cut(1, 3, 2), cut(0, 2, 5))),
        (ATEN.view.default, (cut(1, 3, 4), [3, 2, 4])),
        (ATEN.view.default, (cut(1, 3, 4), [3, 4, 2])),
        (ATEN.sum.dim_IntList, (cut(1, 3, 4), [0])),
        (ATEN.native_layer_norm.default, (cut(0, 3, 4), [4], None, None, 1e-5)),
    ]


def test_results_are_those_of_dtensor(mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    """Local shards and layouts are equal, also where a rule is already known; it is looked for once."""
    asked: list[Any] = []
    found = module.local_rule
    monkeypatch.setattr(module, "local_rule", lambda func, *rest: asked.append(func) or found(func, *rest))
    rules = Rules()
    for _ in range(2):
        for func, args in calls(mesh):
            own, theirs = rules.run(func, args, {}), func(*args)
            pairs = [(own, theirs)] if isinstance(own, Tensor) else list(zip(own, theirs, strict=True))
            for mine, wanted in pairs:
                assert torch.equal(shard(mine), shard(wanted))
                assert (mine.placements, mine.shape, mine.stride()) == (
                    wanted.placements,
                    wanted.shape,
                    wanted.stride(),
                )
    assert len(asked) == len(calls(mesh))


def test_equal_numbers_of_other_types_are_told_apart(mesh: DeviceMesh) -> None:
    """A product with 2 keeps integers, one with 2.0 does not, although 2 == 2.0."""
    rules, tensor = Rules(), placed(torch.ones(2, dtype=torch.int64), mesh, (Shard(0),))
    assert [rules.run(ATEN.mul.Scalar, (tensor, factor), {}).dtype for factor in (2, 2.0)] == [
        torch.int64,
        torch.float32,
    ]
