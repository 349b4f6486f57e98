"""A process beside the search, on another core: a local search, and whatever else it is asked.

::

    search  ──▶ question, then teams as they open, every plan it simulates, what it works on, requests ──▶  process
            ◀── better plans as soon as they are found, answers ──────────────────────────────────────

Both directions are pickles in a pipe. The process ends when its input does: however the search ends, none is left over.
It rests once it has climbed in vain for longer than it was given, and than all that it climbed before, until the search
sends a better plan. Half-way it begins with ideas about what the search works on, which take seconds each; as long as
they took it climbs before the next one. Requests come first, unless a better plan is new, and behind each one it climbs
for a share of its time. Once nothing was better for as long as it was given, requests included, it climbs only until
the next one.
"""

import math
import os
import pickle
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Hashable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from threading import Thread
from typing import IO, Any

from pipeplan.core.collector import collect_seldom
from pipeplan.core.folding import Laid
from pipeplan.core.splits import Splitting
from pipeplan.costs.chain import Boundaries
from pipeplan.costs.sharding.question import AnyQuestion
from pipeplan.search.evaluate import EvaluatedPlan
from pipeplan.search.local_search.pool import LocalSearch
from pipeplan.search.space.in_flight import FREE, free_family
from pipeplan.search.space.outside import unasked
from pipeplan.search.space.space import Space
from pipeplan.search.space.spaces import Spaces

IDEAS = 0.5
"""Share of the way to a rest behind which ideas are tried."""
REQUESTS, CLIMBS = 0.05, 0.5
"""The same behind which requests are answered, and the share of their time for which it climbs before the next one."""
COMMAND = "from pipeplan.search.local_search.beside import main; main()"


@dataclass
class Workplace:
    """What the process has: the spaces, its local search, what was tried for requests, and the last `Recall`."""

    spaces: Spaces
    search: LocalSearch
    tried: set[Hashable] = field(default_factory=set)
    recalled: int = 0


class Request(ABC):
    """What the process does for the search."""

    @abstractmethod
    def answer(self, place: Workplace) -> object | None:
        """Do it and return what is sent back; None if nobody waits for that."""


@dataclass(frozen=True)
class Recall:
    """That the search would have the answer to a request of this number now; it is known while that is worked on."""

    number: int


class Sent(ABC):
    """What the process is told."""

    @abstractmethod
    def give(self, place: Workplace) -> None:
        """Hand it to the local search, or to its spaces."""


@dataclass(frozen=True)
class Hint(Sent):
    """What to start from, in the space of a `Space.key`."""

    split: Splitting | None
    zero: int
    slices: int
    laid: Laid | None

    def space(self, spaces: Spaces) -> Space | None:
        """The space; None if it is not one of these."""
        return spaces.find(self.split, self.zero, self.slices, self.laid)


@dataclass(frozen=True)
class NewTeams(Sent):
    """The questions with teams that were opened since the last ones."""

    questions: tuple[AnyQuestion, ...]

    def give(self, place: Workplace) -> None:
        """Open their spaces."""
        place.spaces.enter(self.questions)


@dataclass(frozen=True)
class Message(Hint):
    """A plan whose stages have devices of their own, without its costs: devices, micro-batch size, value, the rest."""

    devices: tuple[tuple[int, ...], ...]
    size: int
    family: str
    in_flight: tuple[int, ...]
    boundaries: Boundaries
    value: int

    @staticmethod
    def of(plan: EvaluatedPlan) -> "Message":
        """The message for a plan."""
        each = plan.candidate
        devices = tuple(tuple(device.index for device in group) for group in each.chain.groups)
        return Message(
            each.chain.split,
            each.chain.zero,
            each.chain.slices,
            each.laid,
            devices,
            each.chain.micro_batch,
            each.family.name,
            each.in_flight,
            plan.boundaries,
            plan.value,
        )

    def plan(self, spaces: Spaces) -> EvaluatedPlan | None:
        """The plan; None if it is not one of these spaces."""
        space = self.space(spaces)
        if space is None:
            return None
        groups = tuple(tuple(space.cluster.devices[index] for index in group) for group in self.devices)
        for candidate in space.candidates(groups, self.size, free=self.family == FREE):
            if self.family == FREE and candidate.free and candidate.family.alternates:
                candidate = replace(candidate, family=free_family(self.in_flight))
            if candidate.family.name == self.family:
                fits = unasked(space, candidate, self.boundaries) is None and candidate.fits(self.boundaries)
                return EvaluatedPlan(space.cluster, candidate, self.boundaries, self.value) if fits else None
        return None

    def give(self, place: Workplace) -> None:
        """Climb from the plan."""
        plan = self.plan(place.spaces)
        if plan is not None:
            place.search.add(plan)


class ProcessBeside:
    """A running process. Where none can be started, nothing is ever found, and requests have no answer.

    What is sent is pickled at once, as the search goes on to fill the caches of these objects while a thread writes.
    """

    def __init__(self, spaces: Spaces, seed: int, patience: float = math.inf) -> None:
        self._spaces, self._known = spaces, {id(each) for each in spaces.questions}
        self._out: SimpleQueue[bytes | None] = SimpleQueue()
        self._plans: SimpleQueue[Message] = SimpleQueue()
        self._answers: SimpleQueue[object] = SimpleQueue()
        self._process: subprocess.Popen[bytes] | None = None
        with suppress(OSError):
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", COMMAND],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,  # Ctrl-C is for the search, which then closes the pipe
            )
            question = pickle.dumps((spaces.model, spaces.cluster, spaces.job, spaces.questions, seed, patience))
            self._out.put(question)
            Thread(target=self._write, daemon=True).start()
            Thread(target=self._read, daemon=True).start()

    def send(self, sent: Sent | Request | Recall) -> None:
        """Send what to start from, a request, or that its answer is wanted.

        Before it go the teams that were opened since the last one.
        """
        opened = tuple(each for each in self._spaces.questions if id(each) not in self._known)
        if opened:
            self._known |= set(map(id, opened))
            self._out.put(pickle.dumps(NewTeams(opened)))
        self._out.put(pickle.dumps(sent))

    def found(self) -> Iterator[EvaluatedPlan]:
        """Yield the plans found since the last call."""
        with suppress(Empty):
            while True:
                plan = self._plans.get_nowait().plan(self._spaces)
                if plan is not None:
                    yield plan

    def answers(self, wait: float = 0.0) -> Iterator[object]:
        """Yield the answers since the last call; if there are none, wait so many seconds for one."""
        with suppress(Empty):
            yield self._answers.get(timeout=wait) if wait > 0 else self._answers.get_nowait()
            while True:
                yield self._answers.get_nowait()

    @property
    def ended(self) -> bool:
        """True if no process is running."""
        return self._process is None or self._process.poll() is not None

    def close(self) -> None:
        """End the process."""
        self._out.put(None)
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _write(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(OSError), self._process.stdin as pipe:
            while (message := self._out.get()) is not None:
                pipe.write(message)
                pipe.flush()

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for message in _messages(self._process.stdout):
            (self._plans if isinstance(message, Message) else self._answers).put(message)


def main() -> None:
    """Search until standard input ends: there, a question, then what is sent."""
    collect_seldom()
    pipe, out = sys.stdin.buffer, sys.stdout.buffer
    model, cluster, job, questions, seed, patience = pickle.load(pipe)
    spaces = Spaces(model, cluster, job, questions=questions)
    search = LocalSearch(spaces, seed)
    place = Workplace(spaces, search)
    given: SimpleQueue[Sent | Request] = SimpleQueue()

    def read() -> None:
        for message in _messages(pipe):
            if isinstance(message, Recall):
                place.recalled = message.number
            else:
                given.put(message)
        os._exit(0)

    def send(message: object) -> None:
        pickle.dump(message, out)
        out.flush()

    Thread(target=read, daemon=True).start()
    climbing, work = Rest(patience), Rest(patience)
    for_ideas, for_requests = 0.0, 0.0
    requests: deque[Request] = deque()

    def idle() -> bool:
        return not search.ready or (climbing.due(search.least) and not search.has_ideas)

    def interrupted() -> bool:
        return not given.empty() and work.due(search.least)

    while True:
        while not given.empty() or (not requests and idle()):
            sent = given.get()
            if isinstance(sent, Request):
                requests.append(sent)
            else:
                sent.give(place)
        began = time.process_time()
        requests_first = search.ready and work.due(search.least, REQUESTS if for_requests <= 0 else 1.0)
        request = requests.popleft() if requests and (idle() or requests_first) else None
        idea = search.has_ideas and request is None and climbing.due(search.least, 1.0 if for_ideas > 0 else IDEAS)
        if request is not None:
            reply = request.answer(place)
        else:
            better = search.try_idea() if idea else search.improve(ends=interrupted)
            reply = None if better is None else Message.of(better)
        took = time.process_time() - began
        if reply is not None:
            send(reply)
        work.spent += took
        if request is not None:
            for_requests = CLIMBS * took
        else:
            climbing.spent += took
            for_requests -= min(took, for_requests)
            for_ideas += took if idea else -min(took, for_ideas)


@dataclass
class Rest:
    """When to rest: ``patience`` seconds behind the last better plan, or as many as that took if more.

    ``spent``: seconds so far.
    """

    patience: float
    spent: float = 0.0
    _least: float = math.inf
    _last: float = 0.0

    def due(self, least: float, share: float = 1.0) -> bool:
        """Whether to rest now, with a best plan of this value, or whether that share of the way is gone."""
        if least < self._least:
            self._least, self._last = least, self.spent
        return self.spent - self._last > share * max(self.patience, self._last)


def _messages(pipe: IO[bytes]) -> Iterator[Any]:
    """Yield the messages of a pipe until it ends."""
    with suppress(EOFError, OSError, pickle.UnpicklingError):
        while True:
            yield pickle.load(pipe)
