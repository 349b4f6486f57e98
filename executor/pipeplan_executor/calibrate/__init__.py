"""Calibration: a model and a cluster corrected by what a plan's run took, to plan again with.

::

    plan ──run──▶ time lines, peaks ──observed──▶ actions, gaps, flights ──┬─▶ costs: the model's profiles
                                                                          └─▶ links: the cluster's links and runtimes
"""

from pipeplan_executor.calibrate.calibration import (
    Calibration,
    Prediction,
    calibrated,
    check_belongs,
    predict,
    repriced,
)
from pipeplan_executor.calibrate.observed import Observed, Way, observed

__all__ = [
    "Calibration",
    "Observed",
    "Prediction",
    "Way",
    "calibrated",
    "check_belongs",
    "observed",
    "predict",
    "repriced",
]
