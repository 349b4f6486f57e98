"""Modules without values: only shapes and types are needed to describe one."""

import copy

from torch import nn


def on_meta(module: nn.Module) -> nn.Module:
    """A copy without values; the original's weights are not copied even for a moment."""
    stand_ins: dict[int, object] = {}
    for parameter in module.parameters():
        stand_ins[id(parameter)] = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
    for buffer in module.buffers():
        stand_ins[id(buffer)] = buffer.detach().to("meta")
    return copy.deepcopy(module, stand_ins)
