"""Plans whose times vary: chosen by the mean or a quantile of perturbed steps instead of the nominal one.

::

    plans tried ──▶ contenders ──▶ each one's steps, perturbed alike ──▶ mean, quantile ──▶ the least
                   (close enough       lockstep where no wires are
                    nominal)       shared, event loop otherwise
"""

from pipeplan.core.perturbation import Robust, as_robust
from pipeplan.simulate.perturbed.sample import step_times

__all__ = ["Robust", "as_robust", "step_times"]
