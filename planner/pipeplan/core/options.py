"""Checks of the arguments of a search: limits, back end, workers, seed; for the command line and the API."""

from typing import TypeVar

from pipeplan.core.choices import known
from pipeplan.core.errors import InputError
from pipeplan.core.figures import real, shown, whole
from pipeplan_formulations.common.mip import SOLVERS
from pipeplan_formulations.common.report import Limits

Thing = TypeVar("Thing")

BACKENDS = (*SOLVERS, "exact")
"""Solvers of partition problems."""
LONGEST = 1e8
"""Largest time limit of a search, in seconds: three years."""
MOST_WORKERS = 1024
SEEDS = 2**31 - 1
"""The largest seed that the solvers accept."""
TIME, WORKERS, SEED = 60.0, 2, 0
"""Defaults."""


WAYS = {
    "Model": "pipeplan.load_model(name or path) reads one, and a torch module is profiled with example_inputs",
    "Cluster": "pipeplan.load_cluster(name or path) reads one",
    "Job": "Job(batch=N) makes one",
    "Result": "pipeplan.solve() returns one",
    "Plan": "Plan.load(path) reads one, and the `plan` of a result is one",
    "Schedule": "the `schedule` of a plan is one",
    "Pipeline": "the `pipeline` of a plan is one",
}
"""Calls that make the objects of the API."""


def require(value: object, kind: type[Thing]) -> Thing:
    """Return an argument that must be of a kind.

    Raises
    ------
    InputError
        If it is not, with the call that makes one.
    """
    if not isinstance(value, kind):
        name = kind.__name__
        way = f"; {WAYS[name]}" if name in WAYS else ""
        raise InputError(f"{'an' if name[0] in 'AEIO' else 'a'} {name} is needed, not {shown(value)}{way}")
    return value


def require_callback(call: object, name: str = "on_progress") -> None:
    """Refuse a function to call that cannot be called.

    Raises
    ------
    InputError
        Naming it.
    """
    if not callable(call):
        raise InputError(f"{name} must be a function to call, not {shown(call)}")


def asked_limits(
    time_limit: float,
    gap: float = 0.0,
    backend: str = "cpsat",
    workers: int = WORKERS,
    seed: int = SEED,
    draws: bool = False,
) -> Limits:
    """Check the limits of a search and return them; ``draws`` says that steps are sampled, whatever the back end.

    Raises
    ------
    InputError
        If one of them is not a number, is not finite or lies outside its range, or the back end is unknown or would
        ignore one.
    """
    seconds = real(time_limit, "the time limit (seconds)", most=LONGEST)
    share = real(gap, "the relative gap (0.01 stops within 1 %)", most=1.0)
    known(backend, "backend", BACKENDS)
    threads = whole(workers, "the number of workers", 1, MOST_WORKERS)
    number = whole(seed, "the seed", 0, SEEDS)
    if backend == "exact":
        ignored = [f"--workers {threads}"] if threads not in (1, WORKERS) else []
        ignored += [f"--seed {number}"] if number != SEED and not draws else []
        if ignored:
            raise InputError(
                f"--backend exact runs in one thread and draws nothing, so that {' and '.join(ignored)} would be "
                "ignored; leave out one or the other"
            )
    return Limits(seconds, share, threads, number)
