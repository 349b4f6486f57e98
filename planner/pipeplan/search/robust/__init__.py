"""Choice of plans whose times vary, by the mean or a quantile of perturbed steps instead of the nominal step.

::

    plans found ──▶ contenders ──▶ steps of each, perturbed alike ──▶ mean, quantile ──▶ the least
                    (nominal       in lockstep where no links are
                     close by)     shared, else by an event loop
"""

from pipeplan.core.perturbation import Robust, as_robust
from pipeplan.simulate.perturbed.sample import step_times

__all__ = ["Robust", "as_robust", "step_times"]
