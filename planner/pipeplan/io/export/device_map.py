"""Layers of a plan by stage and by device, as JSON.

::

    device map    {"embedding": 0, "block.0": 0, "block.1": 1, "head": [2, 3]}       two replicas of the last stage
    stages        [["embedding", "block.0"], ["block.1"], ["head"]]
"""

import json

from pipeplan.core.errors import InputError
from pipeplan.core.plan import Plan


def device_map_text(plan: Plan) -> str:
    """Return the device of each layer, by its index in the cluster; a list where replicas share the layer's stage.

    Raises
    ------
    InputError
        If devices of the plan are teams, or two stages share a layer.
    """
    if plan.team > 1:
        raise InputError(
            "a device map gives each layer to a device, and devices of this plan are teams that split layers; keep "
            "the plan file, which says how"
        )
    _require_whole(plan)
    homes = {
        layer: stage.devices[0] if stage.replicas == 1 else list(stage.devices)
        for stage in plan.stages
        for layer in stage.layers
    }
    return json.dumps(homes, indent=2) + "\n"


def stages_text(plan: Plan) -> str:
    """Return the layers of each stage.

    Raises
    ------
    InputError
        If two stages share a layer.
    """
    _require_whole(plan)
    return json.dumps([list(stage.layers) for stage in plan.stages], indent=2) + "\n"


def _require_whole(plan: Plan) -> None:
    for number, stage in enumerate(plan.stages):
        if stage.shares:
            raise InputError(
                f"stage {number} holds a part of layer {stage.shares[0][0]!r}, and this format has whole layers only; "
                "solve without intra_layer, or keep the plan file"
            )
