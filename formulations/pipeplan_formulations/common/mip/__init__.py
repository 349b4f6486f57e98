"""Mixed-integer linear models, and an adapter for each solver.

A new solver is one file beside `cpsat` and `cbc`, and one name in `SOLVERS`: every problem and the program offer it.
"""

from collections.abc import Mapping
from types import MappingProxyType

from pipeplan_formulations.common.mip.cbc import CBC
from pipeplan_formulations.common.mip.cpsat import CPSAT
from pipeplan_formulations.common.mip.model import MipSolver

SOLVERS: Mapping[str, MipSolver] = MappingProxyType({solver.name: solver for solver in (CPSAT, CBC)})
"""Solvers of linear models, by name."""
