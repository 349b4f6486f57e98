"""One error for all that was found."""

from collections.abc import Iterable

from pipeplan.core.errors import PlanError

SHOWN = 40
"""Lines that an error prints at most; the count covers the rest."""


def refuse(what: str, violations: Iterable[str]) -> None:
    """Raise a PlanError that lists the violations, if there are any."""
    found = list(violations)
    if found:
        more = f"\n  and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        count = "1 rule" if len(found) == 1 else f"{len(found)} rules"
        raise PlanError(f"{what} breaks {count}:\n  " + "\n  ".join(found[:SHOWN]) + more)
