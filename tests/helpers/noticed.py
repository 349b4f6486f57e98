"""Mutations of the planner: `noticed` asks random questions until the referee disagrees."""

from typing import Any

import pytest

from referee.bridge import ask
from referee.questions import question
from referee.verdict import judge

ASKED = 500
"""Questions among which one has to bring it to light."""


def noticed(suits: Any, change: Any = lambda document: None, first: int = 0) -> str:
    """The disagreements on the first question of a sort that has some; fails if there is none, or a planner crashes.

    ``first``: the number of a small question that shows them; others are asked if it does not any more.
    """
    for number in dict.fromkeys((first, *range(first, ASKED), *range(min(first, ASKED)))):
        document = question(number)
        if suits(document):
            change(document)
            answer = ask(document)
            assert answer["outcome"] != "crashed", answer["text"]
            faults = judge(document, answer, exact=False).faults
            if faults:
                return "; ".join(faults)
    pytest.fail("nobody noticed")
