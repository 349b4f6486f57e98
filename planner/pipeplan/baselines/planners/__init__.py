"""Peers that choose a structure: which devices share a stage, in which order. One file each, all with one signature.

They stand beside the balancers, which cut a chain for one device a stage.
"""

from collections.abc import Mapping
from types import MappingProxyType

from pipeplan.baselines.planners import bapipe, data_parallel, gpipe, pipedream
from pipeplan.baselines.planners.structure import Arrangement, Structure, unlike

__all__ = ["STRUCTURES", "Arrangement", "Structure", "unlike"]

STRUCTURES: Mapping[str, Structure] = MappingProxyType(
    {
        structure.name: structure
        for structure in (data_parallel.STRUCTURE, gpipe.STRUCTURE, pipedream.STRUCTURE, bapipe.STRUCTURE)
    }
)
"""Every peer by its name."""
