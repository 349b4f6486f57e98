"""`RankStages`: the stages of one rank as modules, with this process's weights or shards of them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pipeplan.core.grouped_axis import axis_and_groups
from pipeplan.core.strategies import LayerStrategies
from pipeplan.frontend.batch import Batch
from pipeplan.frontend.capture.flow import Tensors
from pipeplan.frontend.profile.passes import autocast
from pipeplan_executor.runtime.process_groups import replica_groups
from pipeplan_executor.sharding.processes import Processes
from pipeplan_executor.sharding.shards import ParameterShard
from pipeplan_executor.sharding.tensor_parallel_group import TensorParallelGroup, find_tensor_parallel_group
from pipeplan_executor.stages.fully_sharded import FullySharded, sharded_stages
from pipeplan_executor.stages.split import Fitted, build_stage
from pipeplan_executor.stages.stage_module import StageModule

if TYPE_CHECKING:
    from pipeplan_executor.sharding.mesh.layers import MeshLayers

Loss = Callable[[Tensors, Batch], Tensor]


class RankStages:
    """The stages of this process's rank.

    Parameters
    ----------
    fitted : Fitted
    processes : Processes
    loss : callable
        Of the last stage's outputs.
    seed, weights, device, dtype, precision
        See `pipeplan_executor.Pipeline`.

    Attributes
    ----------
    tensor_group : TensorParallelGroup
    numbers : list of int
    replicas : dict of int to ProcessGroup
        By stage.
    fully : dict of int to FullySharded
        Those whose replicas keep shares of parameters.
    modules : dict of int to StageModule
    shards : dict of str to ParameterShard
        The parts of parameters that the processes of a rank share out, by name.
    """

    def __init__(
        self,
        fitted: Fitted,
        processes: Processes,
        loss: Loss,
        *,
        seed: int,
        weights: str | Path | None,
        device: torch.device,
        dtype: torch.dtype | None,
        precision: str | None,
    ) -> None:
        plan = fitted.plan
        self.tensor_group = find_tensor_parallel_group(processes, device, plan.mesh)
        self.numbers = sorted({action.stage for action in plan.schedule.orders[self.tensor_group.rank]})
        on_mesh: dict[int, MeshLayers] = {}
        self.shards: dict[str, ParameterShard] = {}
        for n in self.numbers:
            if plan.stages[n].mesh or plan.slices:
                earlier = next(iter(on_mesh.values()), None)
                on_mesh[n] = mesh_layers(fitted, n, self.tensor_group, precision, device, loss, earlier)
                self.shards |= on_mesh[n].shards
        self.replicas, sharded = replica_groups(plan.schedule.homes, processes), sharded_stages(plan)
        self.fully = {n: FullySharded(plan.zero, self.replicas[n], device) for n in self.numbers if n in sharded}
        self.modules: dict[int, StageModule] = {}
        for n in self.numbers:
            self.modules[n] = build_stage(
                fitted,
                n,
                seed=seed,
                weights=weights,
                device=device,
                dtype=dtype,
                shards=self.shards,
                sharded_layers=on_mesh.get(n),
                fully=self.fully.get(n),
                others=[*self.modules.values()],
            )


def mesh_layers(
    fitted: Fitted,
    stage: int,
    group: TensorParallelGroup,
    precision: str | None,
    device: torch.device,
    loss: Loss,
    earlier: "MeshLayers | None" = None,
) -> "MeshLayers":
    """Return the wrapper of a stage's layers on a mesh.

    ``loss``: of the last stage's outputs. ``earlier``: the wrapper of an earlier stage of this process.
    """
    from pipeplan_executor.sharding.mesh.layers import MeshLayers
    from pipeplan_executor.sharding.mesh.moves import MeshAxes

    planned, whole = fitted.plan.stages[stage], LayerStrategies()
    strategies = dict.fromkeys(planned.layers, whole) if fitted.sliced is not None else {}
    strategies |= {name: layer for name, layer in fitted.plan.strategies if name in planned.layers}
    axes, context = MeshAxes(group.mesh, planned.links, planned.sharing), partial(autocast, precision, device)
    known = dict(fitted.blank.named_parameters(remove_duplicate=False))
    kept = {
        name: ParameterShard(tuple(known[name].shape), axis, group.size, group.tensor_rank, groups=groups)
        for name, along in fitted.kept.items()
        for axis, groups in [axis_and_groups(along)]
    }
    end = loss, fitted.targets
    given = fitted.blank, fitted.sequence, fitted.flow.tensors, strategies, axes, kept, context
    return MeshLayers(*given, *end, fitted.sliced, earlier)
