"""Mutations of the planner: `noticed` asks random questions until the referee disagrees."""

from typing import Any

import pytest

from referee.bridge import ask
from referee.questions import question
from referee.verdict import judge

ASKED = 500
"""Questions among which one has to bring it to light."""


def noticed(suits: Any, change: Any = lambda document: None) -> str:
    """The disagreements on the first question of a sort that has some; fails if there is none."""
    for number in range(ASKED):
        document = question(number)
        if suits(document):
            change(document)
            faults = judge(document, ask(document), exact=False).faults
            if faults:
                return "; ".join(faults)
    pytest.fail("nobody noticed")
