"""`RollingEngine`: execution of batches one after the other without a flush (``staleness`` 1)."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from pipeplan.core.schedule import Action
from pipeplan.frontend.batch import Batch
from pipeplan_executor.runtime.engine import Engine, message_tensors
from pipeplan_executor.runtime.program.lower import Send, Settle
from pipeplan_executor.runtime.program.rolling import RollingSteps
from pipeplan_executor.stages.stage import Boundary, StageWork


class _Running(NamedTuple):
    """A batch whose backwards have not all run: its number in training, and the works of its version of the weights."""

    step: int
    stages: Mapping[int, StageWork]


class RollingEngine(Engine):
    """Interpreter of the steps of this rank, whose tensors may stay in transit from one batch to the next.

    Parameters
    ----------
    stages, boundaries, options
        Of `Engine`; ``stages`` are those of `infer`.
    rolling : RollingSteps
        Steps of this rank, from `pipeplan_executor.runtime.program.rolling.lower_rolling`.
    """

    def __init__(
        self, stages: Mapping[int, StageWork], boundaries: Sequence[Boundary], rolling: RollingSteps, *options: Any
    ) -> None:
        every = chain(rolling.first, *rolling.then, *rolling.last)
        super().__init__(stages, boundaries, tuple(every), *options)
        self._many, self._rolling = rolling.micro_batches, rolling
        self._batches: list[_Running | None] = [None, None]
        self._odd = False

    @property
    def is_running(self) -> bool:
        """True if a batch has begun and not ended."""
        return self._batches != [None, None]

    def begin(
        self,
        step: int,
        stages: Mapping[int, StageWork],
        inputs: Sequence[Batch | None],
        targets: Sequence[Batch | None],
    ) -> dict[int, float]:
        """Run all forwards of a batch and most of its backwards, and the end of the batch before; return its losses.

        ``step`` is its number in training, and ``stages`` are the works of its version of the weights.
        """
        steps = self._rolling.first
        if self.is_running:
            self._odd = not self._odd
            steps = self._rolling.then[self._odd]
        else:
            self._odd = False
            self._clear()
        for stage in stages.values():
            stage.clear()
        self._batches[self._odd] = _Running(step, stages)
        self._run(steps, inputs, targets)
        return {number: float(loss) for stage in stages.values() for number, loss in stage.losses.items()}

    def end(self) -> None:
        """Run what is left of the last batch."""
        self._run(self._rolling.last[self._odd], (), ())
        for send in self._rolling.ahead[self._odd]:
            assert isinstance(send, Send)
            expected = message_tensors(send.message, self._boundaries)
            self._outbox[send.message.made] = tuple(self._buffer(tensor, None) for tensor in expected)
            self._move(send)
        for arrival in self._inbox.values():
            arrival.get()
        for works, _ in self._in_transit.values():
            for work in works:
                work.wait()
        self._inbox, self._in_transit, self._batches = {}, {}, [None, None]

    def infer_on(self, stages: Mapping[int, StageWork]) -> None:
        """Let `infer` use these works."""
        self._stages = stages

    def _work(self, action: Action) -> tuple[StageWork, int]:
        batch = self._batches[action.micro_batch // self._many]
        assert batch is not None
        self._moment.step, self._moment.micro_batch = batch.step, action.micro_batch % self._many
        return batch.stages[action.stage], self._moment.micro_batch

    def _move(self, step: Any) -> None:
        if isinstance(step, Send | Settle):
            for work in self._in_transit.pop(step.message, ((), ()))[0]:  # of two batches before, in a send
                work.wait()
        if not isinstance(step, Settle):
            super()._move(step)
