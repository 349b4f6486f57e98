"""Baseline planners, which choose replicas and devices as well as boundaries, all with one signature.

They stand beside the balancers, which cut a chain for one device per stage. To add one, write a file with
``STRUCTURE``, a `BaselinePlanner`, and add its name to `_FILES`.
"""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from pipeplan.baselines.planners.planner import Arrangement, BaselinePlanner, unlike

__all__ = ["PLANNERS", "Arrangement", "BaselinePlanner", "unlike"]

_FILES = ("data_parallel", "gpipe", "pipedream", "bapipe")

PLANNERS: Mapping[str, BaselinePlanner] = MappingProxyType(
    {each.name: each for file in _FILES for each in [import_module(f"{__name__}.{file}").STRUCTURE]}
)
"""Every peer by its name."""
