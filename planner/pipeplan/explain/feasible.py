"""Does any plan fit? Asked of the solver, which stops at the first plan, and answers no only with a proof."""

from dataclasses import dataclass

from pipeplan.cluster import Cluster
from pipeplan.errors import InfeasibleError, InputError, PipeplanError
from pipeplan.job import Job
from pipeplan.model import Model
from pipeplan.result import Result

ANY = 1.0
"""The relative gap at which every plan is good enough."""


@dataclass(frozen=True)
class Fit:
    """``result`` if a plan fits; otherwise whether that is proved, and what the solver said."""

    result: Result | None
    proved: bool
    why: str = ""

    def __bool__(self) -> bool:
        return self.result is not None


def fit(
    model: Model, cluster: Cluster, job: Job, *, time_limit: float, gap: float = ANY, backend: str = "cpsat"
) -> Fit:
    """The first plan that fits (or the best up to ``gap``), or the proof that none does, or neither in time.

    Raises
    ------
    InputError
        If the questions make no sense together.
    """
    from pipeplan.solve import solve

    try:
        return Fit(solve(model, cluster, job=job, time_limit=time_limit, gap=gap, backend=backend), proved=True)
    except InputError:
        raise
    except InfeasibleError as error:
        return Fit(None, proved=True, why=str(error))
    except PipeplanError as error:  # the time was up
        return Fit(None, proved=False, why=str(error))
