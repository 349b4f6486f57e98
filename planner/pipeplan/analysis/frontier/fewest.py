"""Fewest devices on which a job fits, with the proof that it fits on no fewer."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeplan.analysis.explain.changes import more_never_hurt
from pipeplan.analysis.frontier.answers import Answer, Answers, Verdict, answers_path
from pipeplan.analysis.frontier.curve import memory_of
from pipeplan.analysis.frontier.over_devices import ask, check_pins, prices
from pipeplan.analysis.frontier.subsets import Part, kind_counts, parts, sub_cluster
from pipeplan.core.cluster import Cluster
from pipeplan.core.errors import InfeasibleError, PipeplanError
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.core.options import SEED, WORKERS, asked_limits, require_callback
from pipeplan.core.plan import Plan
from pipeplan.core.searched import FIRST_DEVICES, Searched
from pipeplan.core.throughput import Throughput
from pipeplan.core.units import format_bytes, format_time
from pipeplan.costs.sources import Costs, sources
from pipeplan.solve.question import asked
from pipeplan.solve.reach import searched_for
from pipeplan_formulations.common.signals import listening


@dataclass(frozen=True)
class Fewest:
    """The least number of devices on which the job fits.

    Attributes
    ----------
    count : int
    plan : Plan
        The fastest plan found on ``count`` devices.
    value, bound : int
        Nanoseconds; no plan on these devices beats the bound.
    samples : int
        Number of them that ``value`` is the time of.
    cluster : Cluster
        The part of the cluster for which the plan was made.
    excluded : tuple of str
        The parts with one device fewer, on each of which nothing fits; so nothing fits on fewer devices either.
    proved : bool
        True if all of these are proved.
    searched, costs
        The space over which that holds, on the whole cluster, and the sources of the times.
    """

    count: int
    plan: Plan
    value: int
    bound: int
    samples: int
    cluster: Cluster
    excluded: tuple[str, ...]
    proved: bool
    searched: Searched
    costs: Costs

    @property
    def throughput(self) -> Throughput:
        """Samples, tokens and operations per second."""
        return self.plan.yardstick.throughput(self.samples, self.value)

    def __str__(self) -> str:
        devices = "1 device" if self.count == 1 else f"{self.count} devices"
        peak = format_bytes(memory_of(self.plan))
        if self.count == 1:
            proof = "one is the least there is"
        elif self.proved:
            proof = f"proved: nothing that is searched fits on {', nor on '.join(self.excluded)}"
        else:
            proof = "not proved: on fewer nothing was found in the time given"
        answer = (
            f"{devices} ({self.cluster.name}): step {format_time(self.value)}, bound {format_time(self.bound)}, "
            f"{peak} on the fullest device; {proof}"
        )
        return "\n".join([answer, f"throughput {self.throughput}", *self.costs.lines(), *self.searched.lines()])

    def as_json(self) -> dict[str, object]:
        """Plain data; times in seconds."""
        return {
            "devices": self.count,
            "cluster": self.cluster.name,
            "step_time_s": self.value / 1e9,
            "bound_s": self.bound / 1e9,
            "throughput": self.throughput.as_json(),
            "excluded": list(self.excluded),
            "proved": self.proved,
            "costs": self.costs.as_json(),
            "searched": self.searched.as_json(),
        }


@listening()
def fewest_devices(
    model: Model | str | Path | Any,
    cluster: Cluster | str | Path | None = None,
    batch: int | Job | None = None,
    *,
    job: Job | None = None,
    time_limit: float = 60.0,
    gap: float = 0.0,
    backend: str = "cpsat",
    workers: int = WORKERS,
    seed: int = SEED,
    path: str | Path | None = None,
    on_progress: Callable[[str, Answer], None] = lambda *_: None,
    example_inputs: Any = None,
    **options: Any,
) -> Fewest:
    """Find the fewest devices of the cluster on which the job has a plan, whatever its step time.

    A part of the cluster has a number of devices of each kind, the first of them in the cluster's order. Where more
    devices never hurt the number is found by bisection, and every part with one device fewer is then proved not to
    fit. If the order of devices is given, or teams or the stages of regular plans extend over nodes, it is found by
    counting up, and every smaller part is proved not to fit.

    Parameters
    ----------
    path : str or Path, optional
        As in `frontier`; the other arguments as in `pipeplan.solve`.

    Raises
    ------
    InfeasibleError
        If the job does not fit on the whole cluster. (`PipeplanError`, its base, if that is not decided in time.)

    Examples
    --------
    >>> found = pipeplan.fewest_devices("vgg-16", "4-v100-nvlink", 64, memory="4GiB", depths=(1, 2), replicas=1)
    >>> found.proved
    True
    """
    limits = asked_limits(time_limit, gap, backend, workers, seed)
    require_callback(on_progress)
    question = asked(model, cluster, batch, job=job, example_inputs=example_inputs, asker="fewest_devices", **options)
    model, cluster, job = question.model, question.cluster, question.job
    answers = Answers(model, cluster, job, "devices", limits, backend, answers_path(path), on_progress)
    check_pins(answers)
    every = parts(cluster, prices(answers, by_price=False))
    kinds = kind_counts(cluster)
    memory = {device.kind.name: device.kind.memory for device in cluster.devices}

    def by_memory(part: Part) -> tuple[bool, int]:
        sizes = [(memory[kind], n) for (kind, _), n in zip(kinds, part.counts, strict=True) if n]
        unlimited = any(size is None for size, _ in sizes)
        return not unlimited, -sum((size or 0) * n for size, n in sizes)

    def on(count: int) -> list[Part]:
        return sorted((part for part in every if part.devices == count), key=by_memory)

    def first_that_fits(count: int) -> Part | None:
        for part in on(count):
            if ask(answers, part, any_plan=True).plan is not None:
                return part
        return None

    # bisection: nothing fits on `low` devices, something fits on `high`
    low, high, monotonous = 0, len(cluster.devices), more_never_hurt(cluster, job)
    if first_that_fits(high) is None:
        whole = ask(answers, on(high)[0])
        raise InfeasibleError(whole.why) if whole.verdict is Verdict.INFEASIBLE else PipeplanError(whole.why)
    while high - low > 1:
        middle = (low + high) // 2 if monotonous else low + 1
        if first_that_fits(middle) is None:
            low = middle
        else:
            high = middle
    # the fastest plan over all parts of `high` devices that fit, and the proofs for those with fewer
    solved = [(part, ask(answers, part)) for part in on(high) if ask(answers, part, any_plan=True).plan is not None]
    part, best = min(((p, a) for p, a in solved if a.plan is not None), key=lambda pair: pair[1].value)
    fewer = [part for count in range(low if monotonous else 1, high) if count for part in on(count)]
    below = [(part, ask(answers, part, any_plan=True)) for part in fewer]
    assert best.plan is not None
    reach = searched_for(model, cluster, job).without(FIRST_DEVICES)
    return Fewest(
        count=high,
        plan=best.plan,
        value=best.value,
        bound=best.bound,
        samples=job.objective.samples(job.batch),
        cluster=sub_cluster(cluster, part),
        excluded=tuple(sub_cluster(cluster, part).name for part, _ in below),
        proved=all(answer.verdict is Verdict.INFEASIBLE for _, answer in below),
        searched=reach,
        costs=question.stated(sources(model, cluster, reach.micro_batch_sizes, job)),
    )
