"""The process beside a search, without a process: what it is sent is done at once, and answered a little later."""

import pickle
from collections.abc import Iterator
from dataclasses import replace
from math import inf
from typing import Any

from pipeplan.search.evaluate import EvaluatedPlan
from pipeplan.search.local_search import LocalSearch, Recall, Request, Sent, Workplace
from pipeplan.search.local_search import improver as improving
from pipeplan.search.local_search.beside import NewTeams
from pipeplan.search.nodes import beside as sharing
from pipeplan.search.space.spaces import Spaces

LATER = 3
"""Calls of `answers` until an answer comes, the last of which would wait for it."""
AT_ONCE: tuple[tuple[Any, str, Any], ...]


class ProcessHere:
    """As `ProcessBeside`, with spaces of its own; it does not search locally."""

    ended = False

    def __init__(self, spaces: Spaces, seed: int, patience: float = inf) -> None:
        question = spaces.model, spaces.cluster, spaces.job, spaces.questions
        model, cluster, job, questions = pickle.loads(pickle.dumps(question))
        own = Spaces(model, cluster, job, questions=questions)
        self._spaces, self._known = spaces, {id(each) for each in spaces.questions}
        self._place = Workplace(own, LocalSearch(own, seed))
        self._answers: list[bytes] = []
        self._calls = 0

    def send(self, sent: Sent | Request | Recall) -> None:
        """Do what is asked; it is done by the time it is recalled."""
        if isinstance(sent, Recall):
            return
        opened = tuple(each for each in self._spaces.questions if id(each) not in self._known)
        self._known |= set(map(id, opened))
        pickle.loads(pickle.dumps(NewTeams(opened))).give(self._place)
        own = pickle.loads(pickle.dumps(sent))
        if isinstance(own, Request):
            if isinstance(own, sharing.Batch) and own.number % 2 == 0:
                own = replace(own, seconds=0.0)  # it has time for none of its nodes
            self._answers.append(pickle.dumps(own.answer(self._place)))
        else:
            own.give(self._place)

    def found(self) -> Iterator[EvaluatedPlan]:
        """Nothing."""
        return iter(())

    def answers(self, wait: float = 0.0) -> Iterator[object]:
        """Yield the answers, at every third call or if they are waited for."""
        self._calls += 1
        if wait > 0 or self._calls % LATER == 0:
            while self._answers:
                yield pickle.loads(self._answers.pop(0))

    def close(self) -> None:
        """Nothing runs."""


AT_ONCE = (
    (improving, "ProcessBeside", ProcessHere),
    (improving, "BESIDE_AFTER", 0.0),
    (sharing, "AFTER", 0.0),
)
"""What is changed so that a search with two workers has one from its first plan on."""
