"""Calibration: correction of a model and a cluster by the measurements of a plan's run, to solve again.

::

    plan ──run──▶ time lines, peaks ──observed──▶ actions, gaps, transfers ──┬─▶ costs: the model's profiles
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
from pipeplan_executor.calibrate.observed import Observed, Route, observed

__all__ = [
    "Calibration",
    "Observed",
    "Prediction",
    "Route",
    "calibrated",
    "check_belongs",
    "observed",
    "predict",
    "repriced",
]
