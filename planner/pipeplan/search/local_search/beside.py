"""A local search in a process of its own, on another core.

::

    search  ──▶ question, then every plan it simulates, and what it works on ──▶  process
            ◀── better plans, as soon as they are found ──────────────────────

Both directions are pickles in a pipe. The process ends when its input does: however the search ends, none is left over.
It rests once it has found nothing for longer than it was given, and than all that it took before, until the search
sends a better plan. Half-way it begins with ideas about what the search works on, which take seconds each; as long as
they took it climbs before the next one.
"""

import math
import os
import pickle
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from threading import Thread
from typing import IO, Any

from pipeplan.core.collector import collect_seldom
from pipeplan.core.splits import Splitting
from pipeplan.costs.chain import Boundaries
from pipeplan.search.evaluate import EvaluatedPlan
from pipeplan.search.local_search.pool import LocalSearch
from pipeplan.search.space.in_flight import FREE, free_family
from pipeplan.search.space.outside import unasked
from pipeplan.search.space.spaces import Spaces

IDEAS = 0.5
"""Share of the way to a rest behind which ideas are tried."""
COMMAND = "from pipeplan.search.local_search.beside import main; main()"


@dataclass(frozen=True)
class Hint(ABC):
    """What the process is sent to start from, in the space of a split, a level of ZeRO and a number of slices."""

    split: Splitting | None
    zero: int
    slices: int

    @abstractmethod
    def give(self, search: LocalSearch, spaces: Spaces) -> None:
        """Hand it to the local search; what is in none of its spaces is left out."""


@dataclass(frozen=True)
class Message(Hint):
    """A plan without its costs: devices of each stage, micro-batch size, the rest, the value."""

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
            devices,
            each.chain.micro_batch,
            each.family.name,
            each.in_flight,
            plan.boundaries,
            plan.value,
        )

    def plan(self, spaces: Spaces) -> EvaluatedPlan | None:
        """The plan; None if it is not one of these spaces."""
        space = spaces.find(self.split, self.zero, self.slices)
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

    def give(self, search: LocalSearch, spaces: Spaces) -> None:
        """Climb from the plan."""
        plan = self.plan(spaces)
        if plan is not None:
            search.add(plan)


class LocalSearchProcess:
    """A running process. Where none can be started, nothing is ever found.

    What is sent is pickled at once, as the search goes on to fill the caches of these objects while a thread writes.
    """

    def __init__(self, spaces: Spaces, seed: int, patience: float = math.inf) -> None:
        self._spaces, self._known = spaces, len(spaces.questions)
        self._out: SimpleQueue[bytes | None] = SimpleQueue()
        self._in: SimpleQueue[Message] = SimpleQueue()
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

    def knows(self, hint: Hint) -> bool:
        """Whether the teams of a hint were open when the process began."""
        return hint.split is None or len(self._spaces.questions) == self._known

    def send(self, hint: Hint) -> None:
        """Send what to start from."""
        self._out.put(pickle.dumps(hint))

    def found(self) -> Iterator[EvaluatedPlan]:
        """Yield the plans found since the last call."""
        with suppress(Empty):
            while True:
                plan = self._in.get_nowait().plan(self._spaces)
                if plan is not None:
                    yield plan

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
            self._in.put(message)


def main() -> None:
    """Search until standard input ends: there, a question, then messages of plans."""
    collect_seldom()
    pipe, out = sys.stdin.buffer, sys.stdout.buffer
    model, cluster, job, questions, seed, patience = pickle.load(pipe)
    spaces = Spaces(model, cluster, job, questions=questions)
    search = LocalSearch(spaces, seed)
    given: SimpleQueue[Hint] = SimpleQueue()

    def read() -> None:
        for message in _messages(pipe):
            given.put(message)
        os._exit(0)

    Thread(target=read, daemon=True).start()
    rest, owed = Rest(patience), 0.0
    while True:
        while not search.ready or not given.empty() or (rest.due(search.least) and not search.has_ideas):
            given.get().give(search, spaces)
        began = time.process_time()
        if search.has_ideas and rest.due(search.least, 1.0 if owed > 0 else IDEAS):
            better = search.try_idea()
            owed += time.process_time() - began
        else:
            better = search.improve()
            owed -= min(time.process_time() - began, owed)
        if better is not None:
            pickle.dump(Message.of(better), out)
            out.flush()


class Rest:
    """When to rest: ``patience`` processor seconds behind the last better plan, or as many as that took if more."""

    def __init__(self, patience: float) -> None:
        self._patience, self._least = patience, math.inf
        self._began = self._last = time.process_time()

    def due(self, least: float, share: float = 1.0) -> bool:
        """Whether to rest now, with a best plan of this value, or whether that share of the way is gone."""
        now = time.process_time()
        if least < self._least:
            self._least, self._last = least, now
        return now - self._last > share * max(self._patience, self._last - self._began)


def _messages(pipe: IO[bytes]) -> Iterator[Any]:
    """Yield the messages of a pipe until it ends."""
    with suppress(EOFError, OSError, pickle.UnpicklingError):
        while True:
            yield pickle.load(pipe)
