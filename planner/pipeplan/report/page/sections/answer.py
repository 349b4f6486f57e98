"""The answer in words: what to run, how long it takes, and how good that is proved to be."""

from collections.abc import Sequence
from dataclasses import replace

from pipeplan.analysis.sweep.record import job_label
from pipeplan.core.plan import Plan
from pipeplan.core.throughput import Throughput
from pipeplan.core.units import format_time
from pipeplan.report.page.markup import facts, listing, paragraph, table
from pipeplan.report.page.skeleton import Section
from pipeplan.search.result import MEANING, Result, reason


def answer(result: Result, bound: int | None = None) -> Section:
    """What `pipeplan.solve` answers, with the job that was asked; ``bound`` is that of several searches, if it is."""
    plan, job = result.plan, result.job
    if bound is not None:  # each search had one schedule
        job = replace(job, schedules=())
    return Section(
        "answer",
        "The answer",
        paragraph(what_to_run(plan), "run")
        + figures(MEANING[job.objective], result.value, result.bound if bound is None else bound, result.throughput)
        + paragraph(
            proof(result) if bound is None else f"No plan that was searched takes less than {format_time(bound)}."
        )
        + listing([f"Job: {plan.model} on {plan.cluster}, {job_label(job)}.", *result.costs.lines(), *notes(result)]),
    )


def of_plan(plan: Plan, name: str = "answer") -> Section:
    """What a saved plan says of itself."""
    figure = "step time" if plan.period is None else "period in a long run"
    throughput = plan.yardstick.throughput(plan.batch, plan.value)
    proved = f"No plan that was searched when it was made takes less than {format_time(plan.bound)}."
    return Section(
        name,
        "The plan",
        paragraph(what_to_run(plan), "run")
        + figures(figure, plan.value, plan.bound, throughput)
        + paragraph(proved if plan.bound else "No bound was proved for this plan.")
        + listing([f"Job: batch {plan.batch}, optimiser {plan.optimizer}."]),
    )


def stages(plan: Plan, busy: Sequence[float] = (), name: str = "stages") -> Section:
    """The stages of a plan as a table, with the share of the step in which their devices are busy."""
    found = plan.table()
    if busy:
        shares = (min(busy[rank] for rank in plan.pipeline.placement[s]) for s in range(len(plan.stages)))
        rows = tuple((*row, share) for row, share in zip(found.rows, shares, strict=True))
        found = type(found)({**found.columns, "busy": "share"}, rows)
    return Section(name, "Stages", table(found, f"Stages of the plan for {plan.model} on {plan.cluster}"))


def what_to_run(plan: Plan) -> str:
    """Return one sentence: the model, the cluster and the plan."""
    where, _, how = plan.headline.partition(": ")
    return f"Run {where} as {how}."


def figures(what: str, value: int, bound: int, throughput: Throughput) -> str:
    """Return the large figures: time, throughput, bound, gap."""
    rates = [(unit, rate) for unit, rate in throughput.cells().items()]
    gap = _gap(value, bound)
    proved = [] if gap is None else [("proven bound", format_time(bound)), ("gap", f"{gap:.2%}")]
    return facts([(what, format_time(value)), *proved, *rates])


def proof(result: Result) -> str:
    """Return what the bound says, and why the search ended."""
    ended = f"{reason(result)}, {result.wall:.1f} s with {result.backend}"
    if result.gap == 0:
        return f"No plan that was searched takes less time ({result.status}: {ended})."
    least = f"No plan that was searched takes less than {format_time(result.bound)}"
    return f"{least}, so a better one saves {result.gap:.2%} at most ({result.status}: {ended})."


def notes(result: Result) -> list[str]:
    """Return what else the answer has to say: the cost of regular plans, what teams leave whole, robust choices."""
    regular = [] if result.irregular is None else [result.irregular.line(result.value, result.bound)]
    robust = [] if result.robust is None else [line.strip() for line in result.robust.as_text()]
    return [*regular, *result.whole.as_text(), *robust]


def _gap(value: int, bound: int) -> float | None:
    """(value − bound) / value; None without a bound."""
    return (value - bound) / value if bound and value else None
