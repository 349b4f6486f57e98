"""A plan written by hand: whether it fits, how long it takes, and how far it is from the proved one."""

from pipeplan.analysis.judge.judgement import Judgement
from pipeplan.core.units import format_time
from pipeplan.report.page.markup import listing, paragraph, table
from pipeplan.report.page.sections.answer import figures
from pipeplan.report.page.sections.methods import ANSWER, OUTSIDE, SIMULATED, TOO_LARGE, Method
from pipeplan.report.page.skeleton import Section


def judged(found: Judgement) -> Section:
    """The verdict in words, and the stages with their limits."""
    plan, samples = found.plan, found.objective.samples(found.plan.batch)
    bound = 0 if found.result is None or found.outside else found.result.bound
    lines = [str(each) + "." for each in found.overflows]
    fits = [f"With {each.options} it fits, and takes {format_time(each.value)}." for each in found.remedies]
    return Section(
        "answer",
        "The judged plan",
        paragraph(f"Judged: {found.headline}.", "run")
        + figures(found.objective.figure, found.value, bound, plan.yardstick.throughput(samples, found.value))
        + (paragraph("It does not fit:", "fault") + listing(lines) if lines else paragraph("It fits."))
        + listing([*fits, *found.of_search(), *found.verdict()])
        + table(found.table(), "Stages of the judged plan"),
    )


def beside(found: Judgement) -> list[Method]:
    """Return the judged plan and the proved one, then the heuristics beside that."""
    plan = found.plan.headline.partition(": ")[2]
    kind = TOO_LARGE if found.overflows else OUTSIDE if found.outside else SIMULATED
    judged = Method("judged plan", found.value, kind, plan)
    if found.result is None:
        return [judged]
    proved = found.result.plan.headline.partition(": ")[2]
    return [Method(found.best, found.result.value, ANSWER, proved), judged]
