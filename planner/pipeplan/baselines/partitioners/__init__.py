"""Heuristic balancers: how other tools cut a chain, all with one signature.

None of them proves anything. They are warm starts for `pipeplan.solve` and the baseline in its report.
docs/balancers.md describes what each minimises, what it ignores, and where it fails.

To add one, write a file with ``BALANCERS``, a tuple of `Balancer`, and add its name to `_FILES`.
"""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from pipeplan.baselines.partitioners.balancer import Balancer, NotApplicable
from pipeplan.baselines.partitioners.bapipe import preferred_family

__all__ = ["BALANCERS", "Balancer", "NotApplicable", "preferred_family"]

_FILES = ("uniform", "deepspeed", "gpipe", "min_max", "bapipe")

BALANCERS: Mapping[str, Balancer] = MappingProxyType(
    {each.name: each for file in _FILES for each in import_module(f"{__name__}.{file}").BALANCERS}
)
"""Every balancer by its name."""
