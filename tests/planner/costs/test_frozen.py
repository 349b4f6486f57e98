"""Frozen weights: bytes without gradients, state or sums, in memory, times, estimates and ties."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.instances import equal_devices, model_of
from pipeplan.analysis.explain.feasible import limits_never_bind
from pipeplan.core.cluster import DeviceKind, Link
from pipeplan.core.errors import InfeasibleError, InputError
from pipeplan.core.job import Job
from pipeplan.core.model import Layer, Model, Tie, Work
from pipeplan.core.plan import Plan
from pipeplan.costs.layers import layer_costs
from pipeplan.costs.pricing import price
from pipeplan.costs.sharded import Passes, Units
from pipeplan.io.model_file import model_data, model_from_data
from pipeplan.io.plan_file import plan_data, plan_from_data
from pipeplan.simulate.claims import validate_claims
from pipeplan.solve import solve

MIB = 2**20


def adapters(frozen: int = 16 * MIB, trained: int = MIB // 8, layers: int = 8) -> Model:
    """Layers with a frozen matrix and small trained ones beside it."""
    model = model_of([10**6] * layers, parameters=[trained] * layers)
    return replace(model, layers=tuple(replace(layer, frozen=frozen) for layer in model.layers))


def test_frozen_weights_must_lie_somewhere() -> None:
    """Eight matrices of 16 MiB fit two devices of 80 MiB in two stages of four, and none of 64 MiB."""
    with pytest.raises(InfeasibleError, match=r"frozen weights, gradients and optimiser state take 132\.00 MiB"):
        solve(adapters(), equal_devices(2, 64 * MIB), batch=4, optimizer="adam", zero=(0,))
    plan = solve(adapters(), equal_devices(2, 80 * MIB), batch=4, optimizer="adam", zero=(0,)).plan
    assert [(len(stage.layers), stage.memory.frozen) for stage in plan.stages] == [(4, 64 * MIB)] * 2
    assert [stage.memory.static for stage in plan.stages] == [64 * MIB + 4 * 4 * MIB // 8] * 2


@pytest.mark.parametrize(("level", "kept"), [(0, 96), (1, 96), (2, 96), (3, 48)])
def test_replicas_share_frozen_weights_out_at_level_3_only(level: int, kept: int) -> None:
    """Two replicas keep them whole below level 3, and a half each there; gradients and state are of trained ones."""
    model, cluster = adapters(96, 8, 1), equal_devices(2, link=Link(10**9, 1))
    plan = solve(model, cluster, batch=2, optimizer="adam", zero=(level,), replicas=(2,)).plan
    parts = plan.stages[0].memory
    assert parts.frozen == kept
    assert (parts.gradients, parts.optimizer) == (8 if level < 2 else 4, 16 if level < 1 else 8)
    validate_claims(plan)
    assert plan_from_data(plan_data(plan), "plan").stages == plan.stages


def test_sums_and_gathers_of_updates_leave_frozen_weights_out() -> None:
    """Replicas of a model with frozen weights sum and gather as much as without them."""
    cluster = equal_devices(2, link=Link(10**9, 1))
    for level in (0, 1, 2):
        job = Job(2, zero=(level,), replicas=(2,))
        own, bare = (
            price(model, cluster, [cluster.devices], 1, job) for model in (adapters(96, 8, 2), adapters(0, 8, 2))
        )
        for name in ("reduce", "gather", "update", "lost", "forward", "backward", "workspace"):
            assert getattr(own, name).tolist() == getattr(bare, name).tolist(), (level, name)


def sharded(model: Model) -> tuple[list[int], tuple[int, int]]:
    """Workspaces of layers on two replicas at level 3, and the nanoseconds of a forward and a backward."""
    cluster = equal_devices(2, link=Link(10**9, 0))
    chain = price(model, cluster, [cluster.devices], 1, Job(2, zero=(3,), replicas=(2,), overlap_reduction=False))
    passes = chain.passes[0]
    assert passes is not None
    return chain.workspace[0].tolist(), passes.of(0, len(model.layers))


def test_gathers_at_level_3_carry_frozen_weights_and_sums_do_not() -> None:
    """Weights of 8 + 96 bytes are gathered in each pass, 8 bytes of gradients are summed; all stand there in turn."""
    workspaces, (forward, backward) = sharded(adapters(96, 8, 2))
    assert forward == 2 * 10**6 + 2 * 52
    assert backward == 4 * 10**6 + 2 * 52 + 2 * 4
    # the first: gathered beside gradients of the second; that: gathered behind the first
    assert workspaces == [2 * 104 + 8, 3 * 104]


def test_layers_above_all_that_is_trained_gather_once() -> None:
    """A frozen layer without a backward is gathered in the forward only, and is not there in others' backwards."""
    model = replace(
        model_of([10, 10], [0, 20], parameters=[0, 8]),
        layers=(Layer("l0", 0, frozen=96), Layer("l1", 8, ("l0",))),
    )
    workspaces, (forward, backward) = sharded(model)
    assert (forward, backward) == (20 + 48 + 4, 20 + 4 + 4)
    assert workspaces == [2 * 96, 2 * 8 + 96]


def test_shared_frozen_weights_are_gathered_again_for_any_layer_with_a_backward() -> None:
    """The first layer has no backward, the last one that reads its 96 bytes has: both passes gather them."""
    model = replace(
        model_of([10] * 3, [0, 20, 20], parameters=[0, 8, 0]),
        layers=(Layer("l0", 0, frozen=96), Layer("l1", 8, ("l0",)), Layer("l2", 0, ("l1",))),
        ties=(Tie(("l0", "l2"), frozen=96),),
    )
    forward, backward = sharded(model)[1]
    assert (forward, backward) == (30 + 48 + 4, 40 + 48 + 4 + 4)


def test_units_of_shared_frozen_weights_reach_from_their_first_layer_to_their_last() -> None:
    """What is gathered stays between them, and is there twice where it arrives."""
    trained, gathered = Units.of(np.array([0, 2, 0]), ()), Units.of(np.array([8, 2, 0]), ((0, 2),))
    found = trained.with_buffers(np.zeros(3, np.int64), 2, 100, True, gathered, np.ones(3, np.bool_))
    assert found.tolist() == [16 + 2, 8 + 2 * 2 + 1 + 1, 16 + 2]


LAYERS = st.lists(
    st.tuples(*[st.integers(0, 20)] * 2, st.booleans(), *[st.integers(0, 40)] * 2), min_size=1, max_size=6
)


@given(LAYERS, st.sampled_from((0.0, 0.5, 1.0)))
def test_tables_sum_to_at_most_the_time_of_every_span(layers: list[tuple[int, ...]], speed: float) -> None:
    """Whatever is gathered for a forward, again for a backward, and summed: tables for bounds promise no more."""
    forward, backward, returns, gather, reduce = (np.array(row, np.int64) for row in zip(*layers, strict=True))
    own = Passes(forward, backward, gather, gather * returns, reduce * returns, True, speed, 0)
    for a, b in combinations(range(len(layers) + 1), 2):
        assert all(int(row[a:b].sum()) <= time for row, time in zip(own.least, own.of(a, b), strict=True))


def test_a_copy_of_shared_frozen_weights_takes_bytes_and_no_time() -> None:
    """The second stage holds what it reads, and no stage sums or waits for it."""
    model = model_of([10**6] * 4, parameters=[0, 4, 4, 0])
    first, *others = model.layers
    model = replace(model, layers=(replace(first, frozen=8), *others), ties=(Tie(("l0", "l3"), frozen=8),))
    cluster = equal_devices(2, link=Link(10**9, 5))
    plan = solve(model, cluster, batch=2, depths=(2,), micro_batches=(2,), optimizer="adam").plan
    assert [stage.memory.frozen for stage in plan.stages] == [8, 8]
    assert plan.pipeline.tied == ()
    assert [stage.reduce for stage in plan.pipeline.stages] == [0, 0]
    alone = solve(replace(model, ties=()), cluster, batch=2, depths=(2,), micro_batches=(2,), optimizer="adam").plan
    assert plan.step_time == alone.step_time
    together = solve(model, cluster, batch=2, depths=(1,)).plan
    assert [stage.memory.frozen for stage in together.stages] == [8]


def test_layers_share_no_more_frozen_weights_than_the_first_has() -> None:
    """Trained and frozen bytes are counted by themselves."""
    layers = (Layer("a", 4, frozen=8), Layer("b", 0, ("a",)))
    Model("tied", layers, ties=(Tie(("a", "b"), 4, 8),))
    with pytest.raises(InputError, match="share 9 bytes, but 'a' has 8 bytes of frozen weights"):
        Model("tied", layers, ties=(Tie(("a", "b"), 4, 9),))
    with pytest.raises(InputError, match="share 0 bytes"):
        Model("tied", layers, ties=(Tie(("a", "b")),))


def test_estimates_read_frozen_weights_and_train_none_of_them() -> None:
    """A frozen layer reads its bytes in both passes; without anything trained before it there is no backward."""
    work = Work(1000, 1000, 0, 100, 100)
    layers = (
        Layer("encoder", 0, work=work, frozen=4000),
        Layer("relu", 0, ("encoder",), work=Work(0, 0, 0, 100, 100)),
        Layer("adapter", 400, ("relu",), work=replace(work, weight_gradient_flops=500), frozen=4000),
        Layer("frozen", 0, ("adapter",), work=work, frozen=4000),
    )
    kind = DeviceKind("chip", peak={"float32": 10**15}, bandwidth=10**9, efficiency=1.0)
    costs = layer_costs(Model("estimated", layers), kind, 1)
    assert [cost.forward for cost in costs] == [4200, 200, 4600, 4200]
    assert [cost.input_gradient for cost in costs] == [0, 0, 4600, 4200]
    assert [cost.weight_gradient for cost in costs] == [0, 0, 500, 0]
    assert [cost.backward for cost in costs] == [0, 0, 5100, 4200]
    assert [bool(cost.update) for cost in costs] == [False, False, True, False]


def test_layers_that_read_trained_ones_pass_gradients_back() -> None:
    """Through any path, and through tied weights; without frozen weights before it, a layer is priced as ever."""
    layers = (
        Layer("bare", 0),
        Layer("a", 0, frozen=1),
        Layer("b", 4, ()),
        Layer("c", 0, ("a",)),
        Layer("d", 0, ("b", "c")),
    )
    assert Model("graph", layers).passes_back == (True, False, True, False, True)
    tied = Model("graph", layers, ties=(Tie(("b", "c"), 4),))
    assert tied.passes_back == (True, False, True, True, True)


def test_models_with_frozen_weights_are_read_as_written() -> None:
    """Layers, groups of them and ties keep their frozen bytes, and a plan tells them apart by these."""
    model = replace(adapters(), ties=(Tie(("l0", "l7"), frozen=MIB),))
    assert model_from_data(model_data(model), "file") == model
    assert "128.00 MiB of frozen weights" in model.headline
    assert "frozen" in model.table().columns
    assert model.fingerprint != adapters(8 * MIB).fingerprint != adapters(0).fingerprint


def test_limits_bind_where_frozen_weights_fill_a_device() -> None:
    """What is said never to bind leaves room for them."""
    job = Job(2)
    assert limits_never_bind(adapters(), equal_devices(1, 200 * MIB), job)
    assert not limits_never_bind(adapters(), equal_devices(1, 129 * MIB), job)


def test_plans_without_frozen_weights_have_files_of_old() -> None:
    """Programs that know no frozen weights read them."""
    plan: Plan = solve(adapters(0), equal_devices(1), batch=1).plan
    assert "frozen" not in str(plan_data(plan))
