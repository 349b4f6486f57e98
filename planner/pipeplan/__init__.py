"""pipeplan: plans for distributed training of a model on a cluster, each with a proven bound, and their execution.

>>> import pipeplan
>>> result = pipeplan.solve("gpt2-small", "8-v100-nvlink", batch=64)          # doctest: +SKIP
>>> result.plan.save("plan.json")                              # doctest: +SKIP

Names are imported when they are used, so that ``import pipeplan`` and the program start at once.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pipeplan.core.plan_files import name_plan_files

if TYPE_CHECKING:
    from pipeplan.analysis.compare import compare
    from pipeplan.analysis.explain import Explanation, explain, remedies
    from pipeplan.analysis.frontier import Frontier, fewest_devices, frontier
    from pipeplan.analysis.judge import Judgement, judge
    from pipeplan.analysis.sharding import Sharded, shard
    from pipeplan.analysis.sweep.run import sweep
    from pipeplan.core.cluster import Cluster, Device, DeviceKind, Link, Node, Overlap
    from pipeplan.core.errors import InfeasibleError, InputError, PipeplanError, PlanError
    from pipeplan.core.job import Job, Objective
    from pipeplan.core.model import Layer, LayerCost, Model, Profile, Provenance, SliceProfile, Tie, Work
    from pipeplan.core.perturbation import Robust
    from pipeplan.core.plan import Plan
    from pipeplan.core.schedule import Action, Kind, Schedule
    from pipeplan.core.validate import validate_plan
    from pipeplan.core.version import __version__
    from pipeplan.frontend.profile import profile, profile_workload
    from pipeplan.frontend.workload import Workload
    from pipeplan.io.load import load_cluster, load_model
    from pipeplan.search.result import Result
    from pipeplan.simulate import simulate
    from pipeplan.solve import solve

__all__ = [
    "Action",
    "Cluster",
    "Device",
    "DeviceKind",
    "Explanation",
    "Frontier",
    "InfeasibleError",
    "InputError",
    "Job",
    "Judgement",
    "Kind",
    "Layer",
    "LayerCost",
    "Link",
    "Model",
    "Node",
    "Objective",
    "Overlap",
    "PipeplanError",
    "Plan",
    "PlanError",
    "Profile",
    "Provenance",
    "Result",
    "Robust",
    "Schedule",
    "Sharded",
    "SliceProfile",
    "Tie",
    "Work",
    "Workload",
    "__version__",
    "compare",
    "explain",
    "fewest_devices",
    "frontier",
    "judge",
    "load_cluster",
    "load_model",
    "profile",
    "profile_workload",
    "remedies",
    "shard",
    "simulate",
    "solve",
    "sweep",
    "validate_plan",
]

_HOMES = {
    "Action": "core.schedule",
    "Cluster": "core.cluster",
    "Device": "core.cluster",
    "DeviceKind": "core.cluster",
    "Explanation": "analysis.explain",
    "Frontier": "analysis.frontier",
    "InfeasibleError": "core.errors",
    "InputError": "core.errors",
    "Job": "core.job",
    "Judgement": "analysis.judge",
    "Kind": "core.schedule",
    "Layer": "core.model",
    "LayerCost": "core.model",
    "Link": "core.cluster",
    "Model": "core.model",
    "Node": "core.cluster",
    "Objective": "core.job",
    "Overlap": "core.cluster",
    "PipeplanError": "core.errors",
    "Plan": "core.plan",
    "PlanError": "core.errors",
    "Profile": "core.model",
    "Provenance": "core.model",
    "SliceProfile": "core.model",
    "Result": "search.result",
    "Robust": "core.perturbation",
    "Schedule": "core.schedule",
    "Sharded": "analysis.sharding",
    "Tie": "core.model",
    "Work": "core.model",
    "Workload": "frontend.workload",
    "__version__": "core.version",
    "compare": "analysis.compare",
    "explain": "analysis.explain",
    "fewest_devices": "analysis.frontier",
    "frontier": "analysis.frontier",
    "judge": "analysis.judge",
    "load_cluster": "io.load",
    "load_model": "io.load",
    "profile": "frontend.profile",
    "profile_workload": "frontend.profile",
    "remedies": "analysis.explain",
    "shard": "analysis.sharding",
    "simulate": "simulate",
    "solve": "solve",
    "sweep": "analysis.sweep.run",
    "validate_plan": "core.validate",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        return _folder(name)
    value = getattr(import_module(f"pipeplan.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def _folder(name: str) -> ModuleType:
    """Import a folder of the package, like ``pipeplan.schedules``."""
    if not name.startswith("_") and find_spec(f"pipeplan.{name}"):
        return import_module(f"pipeplan.{name}")
    from pipeplan.core.wording import hint

    raise AttributeError(f"module 'pipeplan' has no attribute {name!r}{hint(name, __all__)}")


def _write_plan(plan: "Plan", path: Path) -> None:
    from pipeplan.io.plan_file import write_plan

    write_plan(plan, path)


def _read_plan(path: Path) -> "Plan":
    from pipeplan.io.plan_file import load_plan

    return load_plan(path)


name_plan_files(_write_plan, _read_plan)


def __dir__() -> list[str]:
    return [*globals(), *__all__]


class _Package(ModuleType):
    """The package, in which ``solve`` and ``simulate`` remain functions when the modules of these names are loaded."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
