"""Feasibility of a job: the search of `pipeplan.solve`, stopped at the first plan.

A negative answer comes with a proof. Either the static bytes exceed the memory of all devices together, or the search
went through all device groups of the space. `limits_never_bind` detects memory limits without effect; more memory then
changes nothing, and no search is needed.
"""

from dataclasses import dataclass

from pipeplan.core.cluster import Cluster
from pipeplan.core.job import SHARDED, Job
from pipeplan.core.model import Model
from pipeplan.core.options import SEED, WORKERS
from pipeplan.core.plan import Plan
from pipeplan.costs.kept import Kept
from pipeplan.costs.layers import available_micro_batches, layer_costs
from pipeplan.costs.pricing import device_limit
from pipeplan.costs.sharding.usual import usual_teams
from pipeplan.search.space.spaces import Spaces
from pipeplan.solve.question import Question
from pipeplan.solve.solving import Means, Solving
from pipeplan_formulations.common.report import Limits


def limits_never_bind(model: Model, cluster: Cluster, job: Job) -> bool:
    """True if every device could hold the whole model with all micro-batches of a step in flight.

    No stage of any plan needs more: it holds some of the layers, receives at most all outputs, recomputes one layer
    at a time, and runs at most two actions at once. From level 2 of ZeRO on it keeps a share beside all parameters at
    most, and has buffers of five units at most, where layers that share weights are one, and of all such beside them.
    Nothing is said of teams.
    """
    if max(job.teams or usual_teams(model, cluster, job), default=1) > 1:
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
    solving = Solving(Question(model, cluster, job), Means(Limits(time_limit, ANY, workers, seed), backend))
    plan = solving.first_plan()
    return Fit(plan, proved=plan is not None or solving.refuted)
