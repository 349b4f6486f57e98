"""Section of the space that was searched, for which the bound holds, and of what was not."""

from pipeplan.core.searched import Searched
from pipeplan.report.page.markup import listing, paragraph
from pipeplan.report.page.skeleton import Section

UNKNOWN = "The plan's file does not say what was searched when it was made; the answer of `pipeplan solve` lists it."


def searched(space: Searched | None) -> Section:
    """Both as lists; of a plan by itself it is not known."""
    if space is None:
        return Section("searched", "What was searched", paragraph(UNKNOWN))
    body = paragraph("The bound holds for all plans that have these:") + listing(space.parts())
    body += "<h3>What was not searched</h3>"
    body += paragraph("Plans with one of these were not looked at, and may be faster:") + listing(space.not_searched)
    return Section("searched", "What was searched", body)
