"""Execution of plans with torch. Torch is loaded on first use, so that importing this package is cheap.

>>> from pipeplan_executor import run
>>> report = run(plan, "my_project:build_model", verify=True)          # doctest: +SKIP
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "BoundedLoss": "optim.lossy.sums",
    "Pipeline": "train.pipeline",
    "RunError": "processes.launcher",
    "RunReport": "train.report",
    "Saving": "train.saving",
    "TensorParallel": "sharding",
    "bounded_loss_hook": "optim.lossy.hook",
    "describe_machine": "calibrate.machine",
    "launch": "processes.launcher",
    "run": "train.runner",
}

__all__ = [
    "BoundedLoss",
    "Pipeline",
    "RunError",
    "RunReport",
    "Saving",
    "TensorParallel",
    "bounded_loss_hook",
    "describe_machine",
    "launch",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"pipeplan_executor has no {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(f"pipeplan_executor.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
