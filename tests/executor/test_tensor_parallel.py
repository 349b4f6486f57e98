"""Sharded parameters: the shard of each tensor-parallel rank, and what is refused before anything starts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers.plans import plan_for, with_teams
from pipeplan.core.errors import InputError, PipeplanError, PlanError
from pipeplan.core.grouped_axis import GroupedAxis, ShardAxis
from pipeplan.core.plan import Plan
from pipeplan.core.strategies import LayerStrategies
from pipeplan.core.timeline import Timeline
from pipeplan.frontend.parameters import named_tensors
from pipeplan.frontend.workload import Workload
from pipeplan.schedules import FAMILIES
from pipeplan_executor.cli.run import as_text
from pipeplan_executor.optim.optimise import StageOptimizer
from pipeplan_executor.optim.reduction import ShardedNames
from pipeplan_executor.sharding import TensorParallel
from pipeplan_executor.sharding.mesh.ends import check_mesh
from pipeplan_executor.sharding.processes import Processes, check_world
from pipeplan_executor.sharding.shards import ParameterShard, find_shards
from pipeplan_executor.stages.materialise import values_of
from pipeplan_executor.stages.split import Fitted, fit
from pipeplan_executor.train import runner
from pipeplan_executor.train.report import RunReport
from pipeplan_executor.train.runner import run


class First(nn.Module):
    """Takes the first of what a recurrent layer returns."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(6, 6, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        return self.cell(x)[0]


def strategies() -> Workload:
    """A table that is the head's matrix too, a recurrent layer, and a normed one."""
    layers = [nn.Embedding(10, 6), First(), nn.LayerNorm(6), nn.Linear(6, 10)]
    layers[3].weight = layers[0].weight

    def draw(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return torch.randint(10, (samples, 3), generator=generator), torch.zeros(samples)

    return Workload(nn.Sequential(*layers), draw, lambda outputs, _: outputs.square().mean())


@pytest.fixture(scope="module")
def plan() -> Plan:
    """One stage for each half."""
    return plan_for(strategies().module, ("0", "1", "2", "3"), (0, 2, 4), FAMILIES["gpipe"].write((1, 1), 2))


@pytest.fixture(scope="module")
def fitted(plan: Plan) -> Fitted:
    """The plan and its model."""
    return fit(plan, strategies)


def test_one_name_is_enough_where_layers_share(fitted: Fitted) -> None:
    """A parameter is sharded under each of its names, whichever one matches; negative axes count from the end."""
    shards = find_shards(fitted.blank, fitted.workload.shards, TensorParallel(2, {"3.weight": -1}), tensor_rank=1)
    assert shards == dict.fromkeys(("0.weight", "3.weight"), ParameterShard((10, 6), 1, 2, 1))
    assert shards["0.weight"].ranges == (((0, 10),), ((3, 6),))


@pytest.mark.parametrize(
    ("shards", "size", "said"),
    [
        ({"3.wait": 0}, 2, r"no parameter is called '3.wait'.* 0.weight, .* and \d more"),
        ({"2.*": 1}, 2, r"2.weight cannot be sharded along axis 1 \('2.\*'\): its shape is \(6,\)"),
        ({"0.weight": 0, "3.*": 1}, 2, r"3.weight is sharded along axis 0 by '0.weight' and along axis 1 by '3.\*'"),
        ({"3.*": 0}, 3, r"0.weight \(10 along axis 0\), 3.weight .*, 3.bias .* cannot be divided into 3 equal shards"),
        ({"3.*": 0, "0.*": GroupedAxis(0, (1, 1))}, 2, r"axis 0 by '3.\*' and along axis 0 in groups 1 : 1 by '0.\*'"),
        ({"3.*": GroupedAxis(0, (3, 2))}, 4, r"0.weight \(10 along axis 0 in groups 3 : 2\), .* into 4 equal shards"),
        ({"2.*": GroupedAxis(0, (3, 1))}, 2, r"2.weight \(6 along axis 0 in groups 3 : 1\), .* into 2 equal shards"),
        ({"1.cell.bias*": 0}, 2, "1.cell.bias_ih_l0, 1.cell.bias_hh_l0: recurrent layers"),
        (None, 2, "no shards are declared for Sequential on 2 processes per rank"),
    ],
)
def test_cuts_that_make_no_sense_never_start(
    plan: Plan, shards: dict[str, ShardAxis] | None, size: int, said: str
) -> None:
    """Patterns without match, axes that are not there, contradictions, odd lengths and recurrent layers are named."""
    with pytest.raises(InputError, match=said):
        run(plan, strategies, tensor_parallel=TensorParallel(size, shards))


@pytest.mark.parametrize(
    ("shards", "asked", "said"),
    [
        ((), None, "a team of 2 devices, and they share out no parameter: all of them would do the same work"),
        ((("3.wait", 0),), None, r"no parameter is called '3.wait'"),
        ((("1.cell.bias_ih_l0", 0),), None, "recurrent layers"),
        ((("3.weight", 0),), 1, "a team of 2 devices, and tensor parallelism is given as 1; leave it out"),
        ((("3.weight", 0),), TensorParallel(4), "is given as 4; leave it out, or solve for teams of 4"),
        ((("3.weight", 0),), TensorParallel(2, {"3.*": 0}), "leave out the shards"),
    ],
)
def test_teams_that_make_no_sense_never_start(
    plan: Plan, shards: tuple[tuple[str, int], ...], asked: TensorParallel | int | None, said: str
) -> None:
    """Teams that share out nothing, shards of no parameter, and other groups than the plan's teams are named."""
    with pytest.raises(PipeplanError, match=said):
        run(replace(with_teams(plan, 2), shards=shards), strategies, tensor_parallel=asked)


@pytest.mark.parametrize(
    ("sequence", "micro_batch", "said"),
    [
        (("0", "2"), 2, r"the output of 0, \(2, 3, 6\), into 2 parts along axis 1, which 2 does not divide"),
        (("3",), 1, "the batch or the model's output over a mesh; both are whole on every process"),
    ],
)
def test_tokens_that_cannot_be_split_never_start(
    plan: Plan, sequence: tuple[str, ...], micro_batch: int, said: str
) -> None:
    """Odd lengths and the last layer are named."""
    own = replace(with_teams(plan, 2), shards=(("3.weight", 0),), sequence=sequence, micro_batch=micro_batch)
    with pytest.raises(PlanError, match=said):
        run(own, strategies)


@pytest.mark.parametrize(("team", "layer"), [(1, "3"), (2, "0")])
def test_losses_that_cannot_be_split_never_start(plan: Plan, team: int, layer: str) -> None:
    """Those of single devices, and behind another layer than the last one."""
    own = replace(with_teams(plan, team), shards=(("3.weight", 0),) * (team > 1), vocabulary=layer)
    with pytest.raises(PlanError, match=f"which is '3' on a team of {team}; solve again"):
        run(own, strategies)


def test_split_outputs_are_single_tensors(plan: Plan) -> None:
    """Several outputs with gradients are named with their shapes; one beside a mask may be split."""
    split = replace(
        with_teams(plan, 2), strategies=(("0", LayerStrategies(output=(1,))), ("1", LayerStrategies(input=(1,))))
    )
    one, mask = torch.empty(2, 4, 8, device="meta", requires_grad=True), torch.empty(2, 4, device="meta")
    with pytest.raises(PlanError, match=r"it returns \(2, 4, 8\) and \(2, 4, 8\)"):
        check_mesh(split, ("0", "1"), ((one,), (one, one), (one,)))
    meshes = tuple(replace(stage, mesh=(2,)) for stage in split.stages)
    check_mesh(replace(split, stages=meshes), ("0", "1"), ((one,), (one, mask), (one,)))


@pytest.mark.parametrize("asked", [None, 2, TensorParallel(2, {"3.weight": 1})])
def test_teams_start_a_process_per_device(
    plan: Plan, asked: TensorParallel | int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan of two ranks in teams of two starts four processes, which shard what the plan says, asked for or not."""
    started: list[tuple[int, TensorParallel]] = []

    def launched(_: object, world: int, *arguments: Any, **__: object) -> RunReport:
        started.append((world, arguments[2].tensor_parallel))
        return RunReport((), (), (), ())

    monkeypatch.setattr(runner, "launch", launched)
    run(replace(with_teams(plan, 2), shards=(("3.weight", 1),)), strategies, tensor_parallel=asked)
    assert started == [(4, TensorParallel(2, {"3.weight": 1}))]


def test_joined_teams_are_counted(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher that started one process per rank of a plan with teams is told their number."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(PlanError, match=r"2 ranks of 2 processes, but 2 processes were .* start 4 .* for 2 devices"):
        run(replace(with_teams(plan, 2), shards=(("3.weight", 1),)), strategies)


def test_names_are_no_patterns() -> None:
    """A parameter whose name reads like a pattern is meant alone."""
    module = nn.ParameterDict({name: nn.Parameter(torch.zeros(4)) for name in ("w[0]", "w0", "w*", "w1")})
    assert set(find_shards(module, None, TensorParallel(2, {"w[0]": 0, "w*": 0}))) == {"w[0]", "w*"}


def test_a_group_has_a_process() -> None:
    """A tensor-parallel group is not empty."""
    with pytest.raises(InputError, match="a tensor-parallel group of 0 processes"):
        TensorParallel(0)


def test_the_world_is_that_of_all_groups(plan: Plan) -> None:
    """Another number of processes is refused with the right one."""
    check_world(plan, 4, Processes((2, 2)))
    with pytest.raises(PlanError, match="2 ranks of 2 processes, but 3 processes were started; start 4 "):
        check_world(plan, 3, Processes((2, 2)))


@pytest.mark.parametrize("origin", ["seed", "module", "file"])
def test_ranks_keep_their_shards(fitted: Fitted, origin: str, tmp_path: Path) -> None:
    """Concatenated shards are the whole values, for every source of them; each has memory of its own."""
    shards = {"3.weight": 1, "3.bias": 0, "2.weight": 0}
    own = nn.Sequential(*strategies().module) if origin == "module" else fitted.blank
    file = tmp_path / "weights.pt" if origin == "file" else None
    if file is not None:
        torch.save(strategies().module.state_dict(), file)
    names = list(dict(named_tensors(fitted.blank)))
    whole = values_of(fitted.blank, own, names, seed=3, weights=file)
    ranks = []
    for tensor_rank in range(2):
        own_shards = find_shards(fitted.blank, fitted.workload.shards, TensorParallel(2, shards), tensor_rank)
        found = values_of(fitted.blank, own, names, seed=3, weights=file, shards=own_shards)
        assert all(torch.equal(found[name], shard.of(whole[name])) for name, shard in own_shards.items())
        assert all(torch.equal(found[name], whole[name]) for name in set(names) - set(own_shards))
        assert all(found[name].untyped_storage().nbytes() == found[name].nbytes for name in own_shards)
        assert found["0.weight"] is found["3.weight"]
        ranks.append(found)
    for name, axis in shards.items():
        assert torch.equal(torch.cat([found[name] for found in ranks], axis), whole[name])


def test_optimisers_of_whole_matrices_are_refused() -> None:
    """An optimiser that reads rows and columns is refused, since it would get parts of them."""
    with pytest.raises(InputError, match="tensor-parallel rank updates shards of parameters, and Adafactor"):
        StageOptimizer(
            nn.Linear(2, 2),
            lambda named: torch.optim.Adafactor([parameter for _, parameter in named]),
            sharded_names=ShardedNames({"weight": {0}}),
        )


def test_predictions_are_not_compared_with_groups(plan: Plan) -> None:
    """If processes share a rank, the prediction for one process gets no percentage; that of a plan for teams does."""
    report = RunReport((1.0,), (5,), (7, 8), (Timeline((), (), (), ()),), tensor_parallel=2)
    assert "%" not in as_text(plan, report)
    assert "not for tensor-parallel groups of 2" in as_text(plan, report)
    assert "%" in as_text(plan, replace(report, tensor_parallel=1))
    in_teams = as_text(replace(with_teams(plan, 2), shards=(("3.weight", 1),)), report)
    assert in_teams.count("%") == 3
    assert "each rank is a team of 2 processes" in in_teams
    assert "every process of a rank computed all of 1, 2: " in as_text(plan, replace(report, repeated=("1", "2")))
