"""Feasibility of a job: the search of `pipeplan.solve` without the heuristics, stopped at the first plan.

No is answered with a proof: what stays for a step is more than all memory, or every shape of the searched space was
looked at. `ample` detects limits that no plan can reach: then more memory brings nothing, and nothing has to be solved.
"""

from dataclasses import dataclass

from pipeplan.core.cluster import Cluster
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.core.options import SEED, WORKERS
from pipeplan.core.plan import Plan
from pipeplan.costs.chain import UNLIMITED
from pipeplan.costs.layers import available_micro_batches, layer_costs, optimizer_bytes
from pipeplan.search import root_nodes
from pipeplan.search.branch_and_bound import PlanSearch
from pipeplan.search.build_plan import build_plan
from pipeplan.search.infeasible import total_memory_shortfall
from pipeplan.search.space.space import Space
from pipeplan_formulations.common.report import Limits, Stop


def ample(model: Model, cluster: Cluster, job: Job) -> bool:
    """Whether every device could hold the whole model with all micro-batches of a step in flight.

    No stage of any plan needs more: it holds some of the layers, receives at most all outputs, recomputes one layer
    at a time, and runs at most two actions at once.
    """
    kinds = list({device.kind.name: device.kind for device in cluster.devices}.values())
    resident = sum(
        2 * layer.parameters + optimizer_bytes(layer.parameters, model.dtype, job.optimizer) for layer in model.layers
    )
    counts = {size: job.batch // size for size in _sizes(model, cluster, job)}
    for kind in kinds:
        limit = min(kind.memory or UNLIMITED, job.memory or UNLIMITED)
        for size, count in counts.items():
            costs = layer_costs(model, kind, size, extrapolate=job.extrapolate, optimizer=job.optimizer)
            held = count * sum(cost.saved + cost.output for cost in costs)
            workspace = 2 * max(cost.saved + cost.workspace for cost in costs)
            if kind.runtime + resident + held + workspace > limit:
                return False
    return True


def _sizes(model: Model, cluster: Cluster, job: Job) -> tuple[int, ...]:
    if job.micro_batches:
        return tuple(job.batch // count for count in job.micro_batches)
    kinds = [device.kind for device in cluster.devices]
    return available_micro_batches(model, kinds, job.batch, extrapolate=job.extrapolate)


ANY = 1.0
"""The relative gap at which every plan is good enough."""


@dataclass(frozen=True)
class Fit:
    """A plan that fits; otherwise whether it is proved that none does."""

    plan: Plan | None
    proved: bool

    @property
    def verdict(self) -> bool | None:
        """None where the time was up first."""
        return True if self.plan is not None else False if self.proved else None


def fit(
    model: Model,
    cluster: Cluster,
    job: Job,
    *,
    time_limit: float,
    backend: str = "cpsat",
    workers: int = WORKERS,
    seed: int = SEED,
) -> Fit:
    """The first plan that is found to fit, or the proof that none does, or neither in time.

    Raises
    ------
    InputError
        If the questions make no sense together.
    KeyboardInterrupt
        If the search was interrupted: half an answer is none.
    """
    space = Space(model, cluster, job)
    if space.impossible or too_little(space):
        return Fit(None, proved=True)
    search = PlanSearch(Limits(time_limit, ANY, workers, seed), cluster=cluster, backend=backend, outside=space.outside)
    for node in root_nodes(space):
        search.push(node)
    search.run()
    if search.stop is Stop.INTERRUPT:
        raise KeyboardInterrupt
    if search.incumbent is None:
        return Fit(None, proved=search.refuted)
    return Fit(build_plan(model, cluster, job, search.incumbent, search.bound), proved=True)


def too_little(space: Space) -> bool:
    """Whether all devices together cannot hold what stays for a step: parameters, gradients, optimiser state.

    Replicas hold more of it, even where they share the optimiser's state out; a plan holds all of it at least once.
    """
    return total_memory_shortfall(space) is not None
