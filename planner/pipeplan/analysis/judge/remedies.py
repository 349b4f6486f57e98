"""`remedies`: what else a hand-written plan that does not fit may share out or recompute, so that it fits."""

from collections.abc import Iterator
from dataclasses import replace

from pipeplan.analysis.judge.hand_written import HandWritten
from pipeplan.analysis.judge.judgement import Fitting
from pipeplan.analysis.judge.priced import Priced, priced
from pipeplan.analysis.judge.settings import settings
from pipeplan.core.cluster import Cluster
from pipeplan.core.errors import InputError
from pipeplan.core.job import WHOLLY_SHARDED, Job, Recompute
from pipeplan.core.model import Model


def remedies(model: Model, cluster: Cluster, job: Job, written: HandWritten) -> tuple[Fitting, ...]:
    """Return the least level of ZeRO, and the recomputation, with which a plan of single devices fits.

    Teams are priced in many ways, so nothing is tried for them.
    """
    if max(written.team) > 1:
        return ()
    return tuple(_fitting(model, cluster, job, written))


def _fitting(model: Model, cluster: Cluster, job: Job, written: HandWritten) -> Iterator[Fitting]:
    levels = range(written.zero + 1, WHOLLY_SHARDED + 1) if max(written.replicas) > 1 else ()
    for level in levels:
        found = _priced(model, cluster, job, written, zero=level)
        if found is not None and not found.overflows:
            yield Fitting(f"--zero {level}", found.evaluated.value)
            break
    again = Recompute.FULL if written.placed else Recompute.CHOOSE
    if written.recompute is Recompute.NONE:
        found = _priced(model, cluster, job, written, recompute=again)
        if found is not None and not found.overflows:
            yield Fitting(f"--recompute {again}", found.evaluated.value)


def _priced(model: Model, cluster: Cluster, job: Job, written: HandWritten, **other: object) -> Priced | None:
    """The plan with other settings; None if no such plan can be run."""
    try:
        own = replace(written, **other)  # type: ignore[arg-type]
        return next((priced(model, own.job(job), at, own) for at in settings(model, cluster, own.job(job), own)), None)
    except InputError:
        return None
