"""Pages of answers: which sections each has, in their order."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from pipeplan.analysis.compare import Comparison
from pipeplan.analysis.frontier import Frontier
from pipeplan.analysis.judge.judgement import Judgement
from pipeplan.analysis.sweep.table import Table
from pipeplan.core.plan import Plan
from pipeplan.core.timeline import Timeline
from pipeplan.core.units import format_time
from pipeplan.core.wording import counted
from pipeplan.costs.sources import Costs
from pipeplan.report.page.markup import listing
from pipeplan.report.page.sections.answer import answer, of_plan, stages
from pipeplan.report.page.sections.binds import binds
from pipeplan.report.page.sections.frontier import frontier
from pipeplan.report.page.sections.judged import beside, judged
from pipeplan.report.page.sections.measured import Measured, peaks, run
from pipeplan.report.page.sections.memory import memory
from pipeplan.report.page.sections.methods import SIMULATED, Method, methods, of_comparison, of_result
from pipeplan.report.page.sections.searched import searched
from pipeplan.report.page.sections.sweep import sweep
from pipeplan.report.page.sections.time_line import time_lines
from pipeplan.report.page.skeleton import Page, Section
from pipeplan.search.result import MEANING, Result


def solve_page(result: Result) -> Page:
    """Page of an answer of `pipeplan.solve`."""
    plan = result.plan
    beside_it = methods(of_result(result), result.bound, MEANING[result.job.objective])
    sections = [answer(result), *_of(plan, result.timeline), beside_it, searched(result.searched)]
    figure = MEANING[result.job.objective].capitalize()
    return Page(_title(plan), f"{figure} {format_time(result.value)}, {plan.proof}.", sections)


def compare_page(comparison: Comparison) -> Page:
    """Page of an answer of `pipeplan.compare`: its table first, then its best plan."""
    best = comparison.best
    figure = best.job.objective.figure
    sections = [
        answer(best, comparison.bound),
        methods(of_comparison(comparison), comparison.bound, figure),
        *_of(best.plan, best.timeline),
        searched(comparison.searched),
    ]
    return Page(f"{comparison.model} on {comparison.cluster}: methods compared", comparison.headline, sections)


def judge_page(judgement: Judgement) -> Page:
    """Page of a judged plan beside the proved one."""
    plan, result = judgement.plan, judgement.result
    lines = [("judged", plan, judgement.timeline)]
    lines += [] if result is None else [(judgement.best, result.plan, result.timeline)]
    bound = 0 if result is None else result.bound
    fits = "; it does not fit" if judgement.overflows else ""
    lead = f"{judgement.objective.figure.capitalize()} {format_time(judgement.value)}{fits}."
    if result is not None:
        lead += f" The {judgement.best} takes {format_time(result.value)}."
    sections = [
        judged(judgement),
        methods(beside(judgement), bound, judgement.objective.figure, "Beside the proved plan"),
        time_lines(lines),
        memory(plan, judgement.timeline),
        binds(plan)[0],
        searched(None if result is None else result.searched),
    ]
    return Page(f"{plan.model} on {plan.cluster}: a plan judged", lead, sections)


def frontier_page(found: Frontier) -> Page:
    """Page of a frontier."""
    sections = [frontier(found), _costs(found.costs), searched(found.searched)]
    return Page(
        f"{found.model} on {found.cluster}: time against {found.over}",
        f"Batch {found.batch}. {found.headline}.",
        sections,
    )


def sweep_page(name: str, found: Table) -> Page:
    """Page of the table of a sweep."""
    solved = sum(record.outcome == "solved" for record in found.records)
    lead = f"{counted(len(found.records), 'cell')}, {solved} of them with a plan."
    return Page(f"Sweep {name}", lead, sweep(found))


def run_page(plan: Plan, predicted: Timeline, measured: Measured) -> Page:
    """Page of a run: predicted beside measured."""
    lines = [("predicted", plan, predicted)]
    lines += [("measured", plan, measured.timeline)] if measured.timeline.spans else []
    sections = [
        run(plan, measured),
        time_lines(lines),
        *([peaks(plan, measured)] if measured.peaks else []),
        stages(plan),
    ]
    return Page(f"{plan.model} on {plan.cluster}: a run", _lead(plan), sections)


def plans_page(plans: Mapping[str, tuple[Plan, Timeline]]) -> Page:
    """Page of saved plans, by the names of their files: one whole, or several beside each other."""
    if len(plans) == 1:
        [(plan, timeline)] = plans.values()
        return Page(_title(plan), _lead(plan), [of_plan(plan), *_of(plan, timeline), searched(None)])
    found = [Method(name, plan.value, SIMULATED, plan.headline) for name, (plan, _) in plans.items()]
    sections = [methods(found, 0, "time", "Plans beside each other")]
    for number, (name, (plan, timeline)) in enumerate(plans.items(), start=1):
        own = [of_plan(plan, f"answer-{number}"), *_of(plan, timeline, f"-{number}")]
        sections += [replace(one, title=f"{name}: {one.title}") for one in own]
    return Page(counted(len(plans), "plan"), ", ".join(plans), sections)


def _of(plan: Plan, timeline: Timeline, suffix: str = "") -> Iterator[Section]:
    """What every plan has: its stages, time line, memory, and what binds."""
    binding, busy = binds(plan, f"binds{suffix}")
    yield stages(plan, busy, f"stages{suffix}")
    yield time_lines([("", plan, timeline)], f"time-line{suffix}")
    yield memory(plan, timeline, f"memory{suffix}")
    yield binding


def _title(plan: Plan) -> str:
    return f"{plan.model} on {plan.cluster}"


def _lead(plan: Plan) -> str:
    figure = "step" if plan.period is None else "period"
    return f"{figure.capitalize()} {format_time(plan.value)}, {plan.proof}."


def _costs(costs: Costs) -> Section:
    return Section("costs", "Where the times come from", listing(costs.lines()))
