"""pipeplan: give it a model and a cluster; it returns a training plan with a proof of how good it is, and runs it.

>>> import pipeplan
>>> model = pipeplan.load_model("gpt2-small")
>>> cluster = pipeplan.load_cluster("8-v100-nvlink")
>>> result = pipeplan.solve(model, cluster, batch=64)          # doctest: +SKIP
>>> result.plan.save("plan.json")                              # doctest: +SKIP
"""

from importlib.metadata import PackageNotFoundError, version

from pipeplan.cluster import Cluster, Device, DeviceKind, Link, Node, Overlap
from pipeplan.compare import compare
from pipeplan.errors import InfeasibleError, InputError, PipeplanError, PlanError
from pipeplan.explain import Explanation, explain, remedies
from pipeplan.files.load import load_cluster, load_model
from pipeplan.frontier import Frontier, fewest_devices, frontier
from pipeplan.job import Job, Objective
from pipeplan.model import Layer, LayerCost, Model, Profile, Provenance, Tie, Work
from pipeplan.plan import Plan
from pipeplan.profile import profile, profile_workload
from pipeplan.result import Result
from pipeplan.robust import Robust
from pipeplan.schedule import Action, Kind, Schedule
from pipeplan.simulate import simulate
from pipeplan.solve import solve
from pipeplan.validate import validate_plan
from pipeplan.workload import Workload

try:
    __version__ = version("pipeplan")
except PackageNotFoundError:  # a checkout that was never installed
    __version__ = "0"

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
    "simulate",
    "solve",
    "validate_plan",
]
