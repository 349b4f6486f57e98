"""`Tracker`: tells a function, like that of an experiment tracker, the numbers of each training step."""

import math
from collections.abc import Callable, Mapping

from pipeplan_executor.optim.updates import Updates

OnNumbers = Callable[[Mapping[str, float]], object]


class Tracker:
    """Tells about steps.

    Parameters
    ----------
    on_step : callable or None
        Called with the numbers of a step by name; None on ranks that tell nobody.
    batch : int
        Samples of a step.
    """

    def __init__(self, on_step: OnNumbers | None, batch: int) -> None:
        self._on_step, self._batch = on_step, batch

    def tell(self, loss: float, seconds: float, step: int, updates: Updates) -> None:
        """Tell about a step that has ended; of a loss that is not known yet, or of step 0, nothing is told."""
        if self._on_step is None or not step or math.isnan(loss):
            return
        found = {"step": step, "loss": loss, "step_time_s": seconds, "samples_per_s": self._batch / seconds}
        groups = [each.optimizer.param_groups[0] for each in updates.optimizers.values() if each.optimizer]
        if groups:
            found["learning_rate"] = float(groups[0]["lr"])
        if updates.norm is not None:
            found["gradient_norm"] = float(updates.norm)
        self._on_step(found)
