"""Baseline planners, which choose replicas and devices as well as boundaries, all with one signature.

Partitioners, in contrast, cut a chain for one device per stage. To add a planner, write a file with
``PLANNER``, a `BaselinePlanner`, and add its name to `_FILES`. Other packages announce a `BaselinePlanner`, or its
``arrange`` alone, as an entry point ``pipeplan.planners``.
"""

from functools import partial
from importlib import import_module
from typing import Any

from pipeplan.baselines.partitioners.partitioner import refuse
from pipeplan.baselines.planners.planner import Arrangement, BaselinePlanner, unlike
from pipeplan.core.errors import InputError
from pipeplan.core.figures import shown
from pipeplan.core.plug_ins import Registry, summary_of

__all__ = ["PLANNERS", "Arrangement", "BaselinePlanner", "unlike"]

_FILES = (
    *("data_parallel", "data_parallel_overlapped", "fully_sharded", "gpipe", "pipedream"),
    *("alpa", "galvatron", "uniap", "bapipe"),
)


def _adapted(found: Any, name: str, source: str) -> BaselinePlanner:
    if isinstance(found, BaselinePlanner):
        return found
    if not callable(found):
        raise InputError(
            f"it is neither a BaselinePlanner nor a function of model, cluster, job and micro-batch: {shown(found)}"
        )
    return BaselinePlanner(name, summary_of(found), f"{source}, plugged in", (), found)


def _broken(name: str, why: str) -> BaselinePlanner:
    return BaselinePlanner(name, why, why, (), partial(refuse, why=why))


PLANNERS: Registry[BaselinePlanner] = Registry(
    "pipeplan.planners", (import_module(f"{__name__}.{file}").PLANNER for file in _FILES), _adapted, _broken
)
"""Every baseline planner by its name."""
