"""Does any plan fit? The search of `pipeplan.solve` without the heuristics, stopped at the first plan.

No is answered with a proof: what stays for a step is more than all memory, or every shape of the searched space was
looked at.
"""

from dataclasses import dataclass

from pipeplan.core.cluster import Cluster
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.core.options import SEED, WORKERS
from pipeplan.core.plan import Plan
from pipeplan.search import opened
from pipeplan.search.branch_and_bound import Prover
from pipeplan.search.build_plan import draft
from pipeplan.search.infeasible import overfull
from pipeplan.search.space.space import Space
from pipeplan_formulations.common.report import Limits, Stop

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
    prover = Prover(Limits(time_limit, ANY, workers, seed), cluster=cluster, backend=backend, outside=space.outside)
    for node in opened(space):
        prover.push(node)
    prover.run()
    if prover.stop is Stop.INTERRUPT:
        raise KeyboardInterrupt
    if prover.incumbent is None:
        return Fit(None, proved=prover.refuted)
    return Fit(draft(model, cluster, job, prover.incumbent, prover.bound), proved=True)


def too_little(space: Space) -> bool:
    """Whether all devices together cannot hold what stays for a step: parameters, gradients, optimiser state.

    Replicas hold more of it, even where they share the optimiser's state out; a plan holds all of it at least once.
    """
    return overfull(space) is not None
