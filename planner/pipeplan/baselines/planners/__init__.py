"""Baseline planners, which choose replicas and devices as well as boundaries, all with one signature.

Partitioners, in contrast, cut a chain for one device per stage. To add a planner, write a file with
``PLANNER``, a `BaselinePlanner`, and add its name to `_FILES`.
"""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from pipeplan.baselines.planners.planner import Arrangement, BaselinePlanner, unlike

__all__ = ["PLANNERS", "Arrangement", "BaselinePlanner", "unlike"]

_FILES = (
    *("data_parallel", "data_parallel_overlapped", "fully_sharded", "gpipe", "pipedream"),
    *("alpa", "galvatron", "uniap", "bapipe"),
)

PLANNERS: Mapping[str, BaselinePlanner] = MappingProxyType(
    {each.name: each for file in _FILES for each in [import_module(f"{__name__}.{file}").PLANNER]}
)
"""Every baseline planner by its name."""
