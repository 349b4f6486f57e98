"""The questions of a frontier, each asked once: answers are kept, in a file where one is named.

The file is written whole after each answer; a second call with the same question goes on where the first stopped.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from pipeplan.cluster import Cluster
from pipeplan.errors import InputError
from pipeplan.explain.feasible import ANY, fit
from pipeplan.files.atomic import write_whole
from pipeplan.files.plan_file import plan_data, plan_from_data
from pipeplan.job import Job
from pipeplan.model import Model
from pipeplan.plan import Plan

FORMAT = "pipeplan-frontier/1"


class Verdict(StrEnum):
    """``PLAN``: there is one. ``INFEASIBLE``: proved that there is none. ``OPEN``: not decided in the time given."""

    PLAN = "plan"
    INFEASIBLE = "infeasible"
    OPEN = "open"


@dataclass(frozen=True)
class Answer:
    """What was found for one budget: the plan with its value and bound in nanoseconds, or why there is none."""

    verdict: Verdict
    value: int = 0
    bound: int = 0
    plan: Plan | None = None
    why: str = ""


@dataclass
class Answers:
    """Asks, and remembers.

    Attributes
    ----------
    model, cluster, job
        The question of the frontier.
    over : str
        What it is drawn over; part of what a file must agree with.
    time_limit, gap : float
        For each answer.
    path : Path or None
        Where answers are kept.
    told : callable
        Hears of every new answer, and what was asked.

    Raises
    ------
    InputError
        If the file belongs to another question.
    """

    model: Model
    cluster: Cluster
    job: Job
    over: str
    time_limit: float
    gap: float
    backend: str = "cpsat"
    path: Path | None = None
    told: Callable[[str, Answer], None] = lambda *_: None
    _known: dict[str, Answer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path is not None and self.path.exists():
            self._known = self._read(self.path)

    def best(self, key: str, cluster: Cluster, job: Job) -> Answer:
        """The best plan, up to the gap, within the time."""
        return self._ask(key, cluster, job, self.gap)

    def any(self, key: str, cluster: Cluster, job: Job) -> Answer:
        """Whether there is a plan at all."""
        return self._ask(f"any {key}", cluster, job, ANY)

    def _ask(self, key: str, cluster: Cluster, job: Job, gap: float) -> Answer:
        if key not in self._known:
            found = fit(self.model, cluster, job, time_limit=self.time_limit, gap=gap, backend=self.backend)
            if found.result is not None:
                result = found.result
                answer = Answer(Verdict.PLAN, result.value, result.bound, result.plan)
            else:
                answer = Answer(Verdict.INFEASIBLE if found.proved else Verdict.OPEN, why=found.why)
            self._known[key] = answer
            if self.path is not None:
                write_whole(self.path, self._text())
            self.told(key, answer)
        return self._known[key]

    @property
    def fingerprint(self) -> str:
        """A hash of everything that the answers depend on, but for how long they were searched."""
        question = [asdict(self.model), asdict(self.cluster), asdict(self.job), self.over]
        return hashlib.sha256(json.dumps(question, default=dict, sort_keys=True).encode()).hexdigest()[:16]

    def _text(self) -> str:
        rows: dict[str, Any] = {
            key: {
                "verdict": answer.verdict.value,
                "value": answer.value,
                "bound": answer.bound,
                "why": answer.why,
                "plan": None if answer.plan is None else plan_data(answer.plan),
            }
            for key, answer in self._known.items()
        }
        return json.dumps({"format": FORMAT, "question": self.fingerprint, "answers": rows}, indent=1)

    def _read(self, path: Path) -> dict[str, Answer]:
        try:
            data = json.loads(path.read_text())
            belongs = (data["format"], data["question"]) == (FORMAT, self.fingerprint)
            rows = data["answers"].items() if belongs else ()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path} holds no frontier: {error}; name another file") from error
        if not belongs:
            raise InputError(f"{path} holds answers to another question; remove it, or name another file")
        return {
            key: Answer(
                Verdict(row["verdict"]),
                row["value"],
                row["bound"],
                None if row["plan"] is None else plan_from_data(row["plan"], str(path)),
                row["why"],
            )
            for key, row in rows
        }
