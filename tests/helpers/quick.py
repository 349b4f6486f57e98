"""Quick runs have a part of the examples and of the cases; `make test-all` has all (HYPOTHESIS_PROFILE=whole)."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

QUICK = os.environ.get("HYPOTHESIS_PROFILE", "ci") == "ci"
SHARE, LEAST = 0.14, 12
"""Part of a property's examples that a quick run draws, and the number that it draws in any case."""
Name, Value = TypeVar("Name"), TypeVar("Value")


def rarely(*values: object) -> object:
    """Return a row of a test's parameters that quick runs leave out."""
    import pytest  # not where ranks import this module

    return pytest.param(*values, marks=pytest.mark.slow)


def examples(quick: int, whole: int) -> Any:
    """Return settings of a property with so many examples in quick runs, of which these have a part, and in all."""
    from hypothesis import settings

    return settings(max_examples=quick if QUICK else whole, deadline=None)


def few(examples: int) -> int:
    """Return how many of so many examples a quick run draws."""
    return max(round(SHARE * examples), min(LEAST, examples))


def thinned(cases: Mapping[Name, Value], every: int = 3) -> dict[Name, Value]:
    """Return the cases, of which a quick run has the first and each ``every``-th behind it."""
    return dict(part(list(cases.items()), every))


def part(cases: Sequence[Value], every: int = 2) -> tuple[Value, ...]:
    """Return the cases, of which a quick run has the first and each ``every``-th behind it."""
    return tuple(cases[:: every if QUICK else 1])
