"""Checks of the arguments of a search: limits, back end, workers, seed; for the command line and the API."""

from pipeplan.core.cluster import Cluster
from pipeplan.core.errors import InputError
from pipeplan.core.figures import real, shown, whole
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan_formulations.common.mip import SOLVERS
from pipeplan_formulations.common.report import Limits

BACKENDS = (*SOLVERS, "exact")
"""Solvers of partition problems."""
LONGEST = 1e8
"""Largest time limit of a search, in seconds: three years."""
MOST_WORKERS = 1024
SEEDS = 2**31 - 1
"""The largest seed that the solvers accept."""
WORKERS, SEED = 2, 0
"""Defaults."""


def require_question(model: object, cluster: object, job: object) -> None:
    """Refuse arguments that are not a `Model` (None is allowed), a `Cluster` and a `Job`, like the name of one.

    Raises
    ------
    InputError
        With the call that makes one.
    """
    for value, kind, way in (
        (model, Model, "pipeplan.load_model(name or path) reads one"),
        (cluster, Cluster, "pipeplan.load_cluster(name or path) reads one"),
        (job, Job, "Job(batch=N) makes one"),
    ):
        if not isinstance(value, kind) and not (kind is Model and value is None):
            raise InputError(f"a {kind.__name__} is needed, not {shown(value)}; {way}")


def asked_limits(
    time_limit: float, gap: float = 0.0, backend: str = "cpsat", workers: int = WORKERS, seed: int = SEED
) -> Limits:
    """Check the limits of a search and return them.

    Raises
    ------
    InputError
        If one of them is not a number, is not finite or lies outside its range, or the backend is unknown.
    """
    seconds = real(time_limit, "the time limit (seconds)", most=LONGEST)
    share = real(gap, "the relative gap (0.01 stops within 1 %)", most=1.0)
    if backend not in BACKENDS:
        raise InputError(f"backend {shown(backend)} is not known; choose from {', '.join(BACKENDS)}")
    threads = whole(workers, "the number of workers", 1, MOST_WORKERS)
    number = whole(seed, "the seed", 0, SEEDS)
    return Limits(seconds, share, threads, number)
