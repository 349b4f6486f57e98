"""pipeplan: plans for distributed training of a model on a cluster, each with a proven bound, and their execution.

>>> import pipeplan
>>> result = pipeplan.solve("gpt2-small", "8-v100-nvlink", batch=64)          # doctest: +SKIP
>>> result.plan.save("plan.json")                              # doctest: +SKIP
"""

from pipeplan.analysis.compare import compare
from pipeplan.analysis.explain import Explanation, explain, remedies
from pipeplan.analysis.frontier import Frontier, fewest_devices, frontier
from pipeplan.analysis.sharding import Sharded, shard
from pipeplan.analysis.sweep.run import sweep
from pipeplan.core.cluster import Cluster, Device, DeviceKind, Link, Node, Overlap
from pipeplan.core.errors import InfeasibleError, InputError, PipeplanError, PlanError
from pipeplan.core.job import Job, Objective
from pipeplan.core.model import Layer, LayerCost, Model, Profile, Provenance, Tie, Work
from pipeplan.core.plan import Plan
from pipeplan.core.schedule import Action, Kind, Schedule
from pipeplan.core.validate import validate_plan
from pipeplan.core.version import __version__
from pipeplan.frontend.profile import profile, profile_workload
from pipeplan.frontend.workload import Workload
from pipeplan.io.load import load_cluster, load_model
from pipeplan.search.result import Result
from pipeplan.search.robust import Robust
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
    "Tie",
    "Work",
    "Workload",
    "__version__",
    "compare",
    "explain",
    "fewest_devices",
    "frontier",
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
