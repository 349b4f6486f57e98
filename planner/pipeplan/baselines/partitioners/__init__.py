"""Heuristic partitioners of other tools, which cut a chain of layers into stages, all with one signature.

They prove no bound. They are warm starts for `pipeplan.solve` and the baselines in its report. docs/balancers.md
describes what each minimises, what it ignores, and where it fails.

To add one, write a file with ``PARTITIONERS``, a tuple of `Partitioner`, and add its name to `_FILES`.
"""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from pipeplan.baselines.partitioners.bapipe import preferred_family
from pipeplan.baselines.partitioners.partitioner import NotApplicable, Partitioner

__all__ = ["PARTITIONERS", "NotApplicable", "Partitioner", "preferred_family"]

_FILES = ("uniform", "deepspeed", "gpipe", "min_max", "bapipe")

PARTITIONERS: Mapping[str, Partitioner] = MappingProxyType(
    {each.name: each for file in _FILES for each in import_module(f"{__name__}.{file}").PARTITIONERS}
)
"""Every partitioner by its name."""
