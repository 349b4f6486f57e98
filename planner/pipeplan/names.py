"""Names in texts for people: those probably meant by one that was mistyped, the first few of many, plurals."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches


def near(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """Known names that look like ``name``, best first; upper and lower case count as the same letter."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    return tuple(by_lower[match] for match in get_close_matches(name.lower(), by_lower, n=3, cutoff=0.6))


def hint(name: str, known: Iterable[str]) -> str:
    """``"; did you mean 'memory'?"``, or nothing where no known name looks like it."""
    matches = near(name, known)
    return f"; did you mean {' or '.join(map(repr, matches))}?" if matches else ""


def some(names: Sequence[str], shown: int = 3) -> str:
    """The first ones, and how many more there are."""
    return ", ".join(names[:shown]) + (f" and {len(names) - shown} more" if len(names) > shown else "")


def counted(number: int, thing: str) -> str:
    """``'1 stage'``, ``'4 stages'``, ``'2 micro-batches'``."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}{'es' if thing.endswith('ch') else 's'}"
