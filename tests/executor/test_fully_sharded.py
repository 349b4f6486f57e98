"""Plans at levels 2 and 3 of ZeRO that cannot be executed, and the units and shards of those that can."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor, nn

from helpers.distributed.models import tiny_mlp, tiny_thrice, tiny_tied
from helpers.plans import plan_for
from helpers.runnable_schedules import halved
from pipeplan.core.errors import InputError, PlanError
from pipeplan.core.plan import Plan
from pipeplan.core.schedule import Schedule
from pipeplan.frontend.parameters import held_by
from pipeplan.frontend.workload import Workload
from pipeplan.schedules import FAMILIES, PLACED
from pipeplan_executor.optim.optimise import restrict_to_pieces
from pipeplan_executor.sharding.shards import ParameterShard
from pipeplan_executor.stages.fully_sharded import check_sharded_plan, sharding_units
from pipeplan_executor.stages.split import fit


def sharded(build: Callable[[], Workload], schedule: Schedule, zero: int = 3) -> Plan:
    """Plan of a chain at a level of ZeRO."""
    module = build().module
    names = [name for name, _ in module.named_children()]
    shards = (0, *range(1, schedule.stages), len(names))
    return replace(plan_for(module, names, shards, schedule), zero=zero)


def alike(micro_batches: int = 4) -> Schedule:
    """One stage of two replicas."""
    return FAMILIES["gpipe"].write((2,), micro_batches)


UNLIKE = Schedule.from_text("unlike", ["0F0 0F2 0B0 0B2 0R 0U", "0F1 0B1 0F3 0B3 0R 0U"])
"""One stage of two replicas, of which one begins its second forward later."""


@pytest.mark.parametrize("zero", [2, 3])
@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        (alike(3), "those of stage 0 run 2, 1. Choose a number of micro-batches that 2 divides"),
        (FAMILIES["1f1b-sno"].write((2, 3), 4), "those of stage 1 run 2, 1, 1. Choose a number .* that 3 divides"),
        (halved(alike()), "stage 0 cannot run input_gradient, weight_gradient"),
        (halved(FAMILIES["1f1b-sno"].write((1, 2), 4)), "stage 1 cannot run input_gradient, weight_gradient"),
        (UNLIKE, "those of stage 0 run forwards and backwards in different orders"),
        (PLACED["chimera"].write(2, 4, 2), "a rank has one stage, and rank 0 has stages 0 and 1"),
        (FAMILIES["1f1b-sno"].write((1, 3, 1), 6), "1f1b-sno on stages of 1, 3, 1 replicas deadlocks. Hold more"),
    ],
)
def test_plans_without_common_passes_are_refused(schedule: Schedule, said: str, zero: int) -> None:
    """Replicas must run equal passes together; the message says why not, and at which level they can."""
    plan = sharded(tiny_mlp, schedule, zero)
    with pytest.raises(PlanError, match=f"at level {zero} of ZeRO .*{said}.*--zero 1"):
        fit(plan, tiny_mlp)
    fit(replace(plan, zero=1), tiny_mlp)


def test_weights_on_several_stages_are_refused() -> None:
    """A stage with replicas cannot sum the gradients of weights that another stage has too; one without can."""
    with pytest.raises(PlanError, match=r"at level 3 of ZeRO .* is on stages 0 and 1\. Keep .* with --zero 1"):
        fit(sharded(tiny_tied, FAMILIES["gpipe"].write((2, 1), 4)), tiny_tied)
    fit(sharded(tiny_tied, FAMILIES["gpipe"].write((1, 2, 1), 4)), tiny_tied)


def test_parameters_of_one_replica_are_not_refused() -> None:
    """A stage of one replica is not sharded, so it may have parameters without rows."""

    def build() -> Workload:
        module = nn.Sequential(Number(), nn.Linear(4, 2))
        return Workload(module, lambda n, _: (torch.zeros(n, 4), torch.zeros(n, 2)), nn.functional.mse_loss)

    fit(sharded(build, FAMILIES["gpipe"].write((1, 2), 4)), build)
    with pytest.raises(PlanError, match=r"0\.factor is a single number"):
        fit(sharded(build, FAMILIES["gpipe"].write((2, 1), 4)), build)


@pytest.mark.parametrize(("axis", "groups"), [(0, ()), (1, ()), (0, (1, 2)), (1, (1, 1)), (1, (2, 1, 1))])
def test_shards_of_shards_are_parts_of_the_whole(axis: int, groups: tuple[int, ...]) -> None:
    """Rows of a half of the rows, or of half of each group of columns; all processes together have the whole."""
    whole = torch.arange(48.0).view(6, 8)
    seen = torch.zeros_like(whole)
    for member, replica in product(range(2), range(4)):
        shard = ParameterShard((6, 8), 0, 4, replica, ParameterShard((6, 8), axis, 2, member, groups=groups))
        rows, columns = ([n for own in ranges for n in range(*own)] for ranges in shard.ranges)
        assert (len(rows), len(columns)) == shard.sizes
        assert torch.equal(shard.of(whole), whole[rows][:, columns])
        seen[torch.tensor(rows, dtype=int)[:, None], columns] += 1
    assert torch.equal(seen, torch.ones_like(whole))


def test_one_replica_runs_anything() -> None:
    """With one replica nothing is sharded, so nothing is refused."""
    check_sharded_plan(sharded(tiny_mlp, halved(FAMILIES["gpipe"].write((1,), 3))))
    check_sharded_plan(sharded(tiny_mlp, PLACED["zb-v"].write(2, 3, 2)))


class Counting(nn.Linear):
    """Layer whose forward changes a parameter."""

    def forward(self, x: Tensor) -> Tensor:
        """Count calls in the first weight."""
        with torch.no_grad():
            self.weight[0, 0] += 1
        return super().forward(x)


class Number(nn.Module):
    """Layer with a single number."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        return x * self.factor


def turned() -> nn.Module:
    """Linear layer with a matrix that is stored by columns."""
    layer = nn.Linear(4, 4)
    layer.weight = nn.Parameter(torch.zeros(4, 4).t())
    return layer


def mixed() -> nn.Module:
    """Linear layer with a bias of another format, which autograd never sees."""
    layer = nn.Linear(4, 4)
    layer.register_parameter("spare", nn.Parameter(torch.zeros(4, dtype=torch.float64)))
    return layer


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (Number, "a parameter needs an axis, and 0.factor is a single number"),
        (turned, "a parameter's rows must be contiguous, and those of 0.weight are not"),
        (lambda: Counting(4, 4), "a forward cannot change a parameter, and that of 0 changes 0.weight"),
        (mixed, "one number format, and those of 0 float32 and float64"),
    ],
)
def test_parameters_without_rows_are_refused(layer: Callable[[], nn.Module], said: str) -> None:
    """A parameter that `fully_shard` cannot divide is named."""

    def build() -> Workload:
        module = nn.Sequential(layer(), nn.Linear(4, 2))
        return Workload(module, lambda n, _: (torch.zeros(n, 4), torch.zeros(n, 2)), nn.functional.mse_loss)

    with pytest.raises(PlanError, match=f"at level 2 of ZeRO .*{said}.*--zero 1"):
        fit(sharded(build, alike(), 2), build)


def test_layers_that_share_parameters_are_one_unit() -> None:
    """Overlapping ties make one unit, other layers are their own."""
    module = tiny_thrice().module
    held = held_by(module, [name for name, _ in module.named_children()])
    assert sharding_units(module, held) == ((0, 2, 3), (1,), (4,), (5,))


@pytest.mark.parametrize("rows", [1, 2, 5, 6])
def test_shards_are_those_of_chunk(rows: int) -> None:
    """Shards have the rows that `torch.chunk` gives, and the last ones may be empty."""
    whole = torch.arange(2 * rows).view(rows, 2)
    shards = [ParameterShard((rows, 2), 0, 4, number) for number in range(4)]
    expected = [*whole.chunk(4), *[whole[:0]] * 4][:4]
    assert all(torch.equal(shard.of(whole), part) for shard, part in zip(shards, expected, strict=True))
    firsts = [shard.ranges[0][0][0] for shard in shards if len(shard.of(whole))]
    assert firsts == [int(p[0, 0]) // 2 for p in whole.chunk(4)]


def test_optimisers_of_whole_matrices_are_refused() -> None:
    """An optimiser that reads rows and columns gets whole ones at level 0 only, which the message says."""
    layer = nn.Linear(2, 2)
    with pytest.raises(InputError, match=r"at level 3 of ZeRO a replica updates .* \(at level 0, all\), and Adafactor"):
        restrict_to_pieces(torch.optim.Adafactor(layer.parameters()), (), 3)
