"""Fractional chain partition: a sequence of layers on a line of devices; neighbours may share a layer.

Two back ends solve it: `exact` without path cuts, `cbc` with them.
"""

from pipeplan_formulations.fractional import cbc, exact
from pipeplan_formulations.fractional.instance import FractionalPartition, Positions
from pipeplan_formulations.fractional.rounding import rounded

__all__ = ["FractionalPartition", "Positions", "cbc", "exact", "rounded"]
