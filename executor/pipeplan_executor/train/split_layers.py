"""Calls of a stage's layers whose parameters or tokens are split over the processes of a rank."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pipeplan.core.grouped_axis import axis_and_groups
from pipeplan.frontend.batch import Batch
from pipeplan.frontend.capture.flow import Tensors
from pipeplan.frontend.profile.passes import autocast
from pipeplan_executor.sharding.shards import ParameterShard
from pipeplan_executor.sharding.tensor_parallel_group import TensorParallelGroup
from pipeplan_executor.stages.split import Fitted

if TYPE_CHECKING:
    from pipeplan_executor.sharding.mesh.layers import MeshLayers


def mesh_layers(
    fitted: Fitted,
    stage: int,
    group: TensorParallelGroup,
    precision: str | None,
    device: torch.device,
    loss: Callable[[Tensors, Batch], Tensor],
) -> "MeshLayers":
    """Return the wrapper of a stage's layers on a mesh; ``loss``: of the last stage's outputs."""
    from pipeplan_executor.sharding.mesh.layers import MeshLayers
    from pipeplan_executor.sharding.mesh.moves import MeshAxes

    assert group.mesh is not None
    plan, own = fitted.plan, fitted.plan.stages[stage]
    words = {name: words for name, words in plan.words if name in own.layers}
    axes, context = MeshAxes(group.mesh, own.links, own.sharing), partial(autocast, precision, device)
    known = dict(fitted.blank.named_parameters(remove_duplicate=False))
    kept = {
        name: ParameterShard(tuple(known[name].shape), axis, group.size, group.tensor_rank, groups=groups)
        for name, along in fitted.kept.items()
        for axis, groups in [axis_and_groups(along)]
    }
    end = loss, fitted.targets
    return MeshLayers(fitted.blank, fitted.sequence, fitted.flow.tensors, words, axes, kept, context, *end)
