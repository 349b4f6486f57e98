"""Feasibility of a job: the search of `pipeplan.solve` without the heuristics, stopped at the first plan.

A negative answer comes with a proof. Either the static bytes exceed the memory of all devices together, or the search
went through all device groups of the space. `limits_never_bind` detects memory limits without effect; more memory then
changes nothing, and no search is needed.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

from pipeplan.core.cluster import Cluster
from pipeplan.core.job import SHARDED, Job
from pipeplan.core.model import Model
from pipeplan.core.options import SEED, WORKERS
from pipeplan.core.plan import Plan
from pipeplan.core.throughput import yardstick
from pipeplan.costs.kept import Kept
from pipeplan.costs.layers import available_micro_batches, layer_costs
from pipeplan.costs.pricing import device_limit
from pipeplan.search import root_nodes
from pipeplan.search.branch_and_bound import PlanSearch
from pipeplan.search.build_plan import build_plan, shared_out
from pipeplan.search.infeasible import promising
from pipeplan.search.space.space import Space
from pipeplan.search.space.spaces import Spaces
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits, Stop


def limits_never_bind(model: Model, cluster: Cluster, job: Job) -> bool:
    """True if every device could hold the whole model with all micro-batches of a step in flight.

    No stage of any plan needs more: it holds some of the layers, receives at most all outputs, recomputes one layer
    at a time, and runs at most two actions at once. From level 2 of ZeRO on it keeps a share beside all parameters at
    most, and has buffers of five units at most, where layers that share weights are one, and of all such beside them.
    Nothing is said of teams.
    """
    if max(job.teams, default=1) > 1:
        return False
    job = job.of(model)
    kinds = list({device.kind.name: device.kind for device in cluster.devices}.values())
    kept = Kept(model, job)
    resident = sum(
        layer.parameters + layer.frozen + kept.gradients_of(layer.parameters) + kept.state_of(layer.parameters)
        for layer in model.layers
    )
    if Spaces(model, cluster, job).levels[-1] >= SHARDED:
        own = [layer.parameters + layer.frozen for layer in model.layers]
        resident += sum(own) + (7 * sum(own) if model.ties else 5 * max(own))
    counts = {size: job.batch // size for size in _sizes(model, cluster, job)}
    for kind in kinds:
        limit = device_limit(kind, job)
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
"""Relative gap that accepts every plan."""
FOR_TEAMS = 0.5
"""Share of the time limit in which ways to split layers are sought; plans of those not found then are undecided."""


@dataclass(frozen=True)
class Fit:
    """A plan that fits, or None; ``proved`` is true with a plan, or if none is proved to exist."""

    plan: Plan | None
    proved: bool

    @property
    def verdict(self) -> bool | None:
        """True: a plan fits. False: proved that none does. None: undecided within the time limit."""
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
    """Return the first plan found to fit, a proof that none does, or neither if the time is up.

    Raises
    ------
    InputError
        If model, cluster and job do not go together.
    KeyboardInterrupt
        If the search was interrupted; a partial search decides nothing.
    """
    spaces = Spaces(model, cluster, job, opening=Clock(Limits(FOR_TEAMS * time_limit)))
    limits = Limits(time_limit, ANY, workers, seed)
    search = PlanSearch(limits, cluster_of=spaces.cluster_of, backend=backend, outside=spaces.outside)
    hopeful: list[Space] = []
    openings: Iterator[Iterable[Space]] = chain((tuple(spaces),), spaces.open_teams())
    for opened in openings:
        for space in promising(opened):
            hopeful.append(space)
            for node in root_nodes(space):
                search.push(node)
    if not hopeful:
        return Fit(None, proved=not spaces.late)
    search.run()
    if search.stop is Stop.INTERRUPT:
        raise KeyboardInterrupt
    if search.incumbent is None:
        return Fit(None, proved=search.refuted and not spaces.late)
    own = spaces.of(search.incumbent.candidate)
    plan = build_plan(own.model, own.cluster, job, search.incumbent, search.bound)
    plan = replace(shared_out(plan, model, own.split), yardstick=yardstick(model, cluster))
    return Fit(plan, proved=True)
