"""Answers for the budgets of a frontier: each is solved once, and saved if a file is named.

The file is written whole after each answer. A second call for the same problem goes on where the first stopped.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from pipeplan.analysis.explain.feasible import fit
from pipeplan.analysis.frontier.subsets import kind_counts
from pipeplan.core.cluster import Cluster
from pipeplan.core.errors import InfeasibleError, InputError, PipeplanError, UndecidedError
from pipeplan.core.figures import shown
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.core.plan import Plan
from pipeplan.core.units import format_bytes
from pipeplan.io.atomic import write_whole
from pipeplan.io.plan_file import plan_data, plan_from_data
from pipeplan.io.schema import Strict, check
from pipeplan.io.text import parse_data, read_text
from pipeplan.solve import solve
from pipeplan_formulations.common.report import Limits, Stop

FORMAT = "pipeplan-frontier/1"


class Verdict(StrEnum):
    """Kind of answer. ``PLAN``: found. ``INFEASIBLE``: proved that there is none. ``OPEN``: undecided in time."""

    PLAN = "plan"
    INFEASIBLE = "infeasible"
    OPEN = "open"


@dataclass(frozen=True)
class Answer:
    """Answer for one budget: the plan with its value and bound in nanoseconds, or the reason why there is none.

    What is undecided has a bound too: no plan takes less.
    """

    verdict: Verdict
    value: int = 0
    bound: int = 0
    plan: Plan | None = None
    why: str = ""


def answers_path(path: object) -> Path | None:
    """Return the file of the answers, if one is named."""
    if path is None:
        return None
    if not isinstance(path, str | Path) or not str(path):
        raise InputError(f"path names a file for the answers, and {shown(path)} is none; leave it out to keep none")
    try:
        Path(path).is_file()
    except OSError as error:  # a name that is too long
        raise InputError(f"no path of answers: {shown(str(path))}: {error.strerror}") from error
    return Path(path)


@dataclass
class Answers:
    """Solver of the problems of a frontier, with a cache of its answers.

    Attributes
    ----------
    model, cluster, job
        The problem of the frontier.
    over : str
        The axis of the frontier; a file must agree in it.
    limits : Limits
        For each answer.
    path : Path or None
        File of the answers.
    on_progress : callable
        Called with what was asked, in words, and the answer of every problem that was solved.
    interrupted : Answer or None
        The best answer known when a signal ended a search.

    Raises
    ------
    InputError
        If the file belongs to another problem.
    """

    model: Model
    cluster: Cluster
    job: Job
    over: str
    limits: Limits
    backend: str = "cpsat"
    path: Path | None = None
    on_progress: Callable[[str, Answer], None] = lambda *_: None
    interrupted: Answer | None = None
    _known: dict[str, Answer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path is not None and self.path.is_file():  # a device or a FIFO holds no earlier answers
            self._known = self._read(self.path)

    def best(self, key: str, cluster: Cluster, job: Job) -> Answer:
        """Find the best plan, up to the gap, within the time limit."""
        return self._remembered(key, f"the best plan {self._within(cluster, job)}", lambda: self._best(cluster, job))

    def any(self, key: str, cluster: Cluster, job: Job) -> Answer:
        """Find any plan that fits, or prove that there is none."""
        asked = f"any plan {self._within(cluster, job)}"
        return self._remembered(f"any {key}", asked, lambda: self._any(cluster, job))

    def _within(self, cluster: Cluster, job: Job) -> str:
        """The limit of an answer in words: ``'on 2 v100 + 1 p100'``, ``'within 8 GiB per device'``."""
        if self.over != "memory":
            return "on " + " + ".join(f"{count} {kind}" for kind, count in kind_counts(cluster))
        return "without a limit" if job.memory is None else f"within {format_bytes(job.memory)} per device"

    def _remembered(self, key: str, asked: str, find: Callable[[], Answer]) -> Answer:
        if key not in self._known:
            answer = self._known[key] = find()
            if self.path is not None:
                write_whole(self.path, self._text())
            self.on_progress(asked, answer)
        return self._known[key]

    def _best(self, cluster: Cluster, job: Job) -> Answer:
        try:
            result = solve(
                self.model,
                cluster,
                job=job,
                time_limit=self.limits.time,
                gap=self.limits.gap,
                backend=self.backend,
                workers=self.limits.workers,
                seed=self.limits.seed,
                price_regular=False,
            )
        except InputError:
            raise
        except InfeasibleError as error:
            return Answer(Verdict.INFEASIBLE, why=str(error))
        except UndecidedError as error:
            if error.stop == Stop.INTERRUPT:
                raise KeyboardInterrupt from error
            return Answer(Verdict.OPEN, bound=error.bound, why=str(error))
        except PipeplanError as error:  # the time limit was reached before a plan was found
            return Answer(Verdict.OPEN, why=str(error))
        answer = Answer(Verdict.PLAN, result.value, result.bound, result.plan)
        if result.stop is Stop.INTERRUPT:  # Ctrl-C ends the sweep; complete answers are kept
            self.interrupted = answer
            raise KeyboardInterrupt
        return answer

    def _any(self, cluster: Cluster, job: Job) -> Answer:
        found = fit(
            self.model,
            cluster,
            job,
            time_limit=self.limits.time,
            backend=self.backend,
            workers=self.limits.workers,
            seed=self.limits.seed,
        )
        if found.plan is None:
            return Answer(Verdict.INFEASIBLE if found.proved else Verdict.OPEN, why="nothing fits")
        return Answer(Verdict.PLAN, found.plan.value, found.plan.bound, found.plan)

    @property
    def fingerprint(self) -> str:
        """Hash of everything that the answers depend on, except the search limits."""
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
            file = check(_File, parse_data(read_text(path), str(path)), str(path))
        except InputError as error:
            raise InputError(f"{path} holds no frontier; name another file. {error}") from error
        if (file.format, file.question) != (FORMAT, self.fingerprint):
            raise InputError(f"{path} holds answers to another question; remove it, or name another file")
        return {key: row.answer(str(path)) for key, row in file.answers.items()}


class _Row(Strict):
    """One answer in a file."""

    verdict: Literal["plan", "infeasible", "open"]
    value: Annotated[int, Field(ge=0)]
    bound: Annotated[int, Field(ge=0)]
    why: str
    plan: dict[str, Any] | None

    def answer(self, where: str) -> Answer:
        """The answer it describes."""
        plan = None if self.plan is None else plan_from_data(self.plan, where)
        return Answer(Verdict(self.verdict), self.value, self.bound, plan, self.why)


class _File(Strict):
    """The whole file."""

    format: str
    question: str
    answers: dict[str, _Row]
