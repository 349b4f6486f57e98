"""Heuristic partitioners of other tools, which cut a chain of layers into stages, all with one signature.

They prove no bound. They are warm starts for `pipeplan.solve` and the baselines in its report. docs/balancers.md
describes what each minimises, what it ignores, and where it fails.

To add one, write a file with ``PARTITIONERS``, a tuple of `Partitioner`, and add its name to `_FILES`. Other packages
announce a `Partitioner`, or its function alone, as an entry point ``pipeplan.partitioners``.
"""

from functools import partial
from importlib import import_module
from typing import Any

from pipeplan.baselines.partitioners.bapipe import preferred_family
from pipeplan.baselines.partitioners.partitioner import NotApplicable, Partitioner, refuse
from pipeplan.core.errors import InputError
from pipeplan.core.figures import shown
from pipeplan.core.plug_ins import Registry, summary_of

__all__ = ["PARTITIONERS", "NotApplicable", "Partitioner", "preferred_family"]

_FILES = ("uniform", "deepspeed", "gpipe", "min_max", "bapipe")


def _adapted(found: Any, name: str, source: str) -> Partitioner:
    if isinstance(found, Partitioner):
        return found
    if not callable(found):
        raise InputError(f"it is neither a Partitioner nor a function of a chain and micro-batches: {shown(found)}")
    return Partitioner(name, summary_of(found), f"{source}, plugged in", found)


def _broken(name: str, why: str) -> Partitioner:
    return Partitioner(name, why, why, partial(refuse, why=why))


PARTITIONERS: Registry[Partitioner] = Registry(
    "pipeplan.partitioners",
    (each for file in _FILES for each in import_module(f"{__name__}.{file}").PARTITIONERS),
    _adapted,
    _broken,
)
"""Every partitioner by its name."""
