"""Checks of the arguments of a search: limits, back end, workers, seed; for the command line and the API."""

from pipeplan.core.cluster import Cluster
from pipeplan.core.errors import InputError
from pipeplan.core.figures import real, shown, whole
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan_formulations.common.report import Limits

BACKENDS = ("cpsat", "cbc", "exact")
"""Who may solve partition problems."""
LONGEST = 1e8
"""Seconds that a search may take at most: three years."""
MOST_WORKERS = 1024
SEEDS = 2**31 - 1
"""The largest seed that the solvers take."""
WORKERS, SEED = 2, 0
"""Unless told otherwise."""


def require_question(model: object, cluster: object, job: object) -> None:
    """Refuse what is no `Model` (None is left unchecked), `Cluster` or `Job`, like the name of one.

    Raises
    ------
    InputError
        Saying how to get one.
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
    """The limits, checked.

    Raises
    ------
    InputError
        If one of them is no number, is not finite or lies outside its range, or there is no such backend.
    """
    seconds = real(time_limit, "the time limit (seconds)", most=LONGEST)
    share = real(gap, "the relative gap (0.01 stops within 1 %)", most=1.0)
    if backend not in BACKENDS:
        raise InputError(f"backend {shown(backend)} is not known; choose from {', '.join(BACKENDS)}")
    threads = whole(workers, "the number of workers", 1, MOST_WORKERS)
    number = whole(seed, "the seed", 0, SEEDS)
    return Limits(seconds, share, threads, number)
