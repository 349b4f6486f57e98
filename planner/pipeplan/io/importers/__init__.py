"""Parsers of other projects' workload files.

To add one, write a file with ``IMPORTER``, an `Importer`, and add its name to `_FILES`.
"""

from functools import cache
from importlib import import_module

from pipeplan.io.importers.importer import Importer

__all__ = ["Importer", "importers"]

_FILES = ("pipedream", "dnn_partitioning", "piper")


@cache
def importers() -> tuple[Importer, ...]:
    """Return every importer. A file belongs to the first that recognises it; those of plain text are asked first."""
    return tuple(import_module(f"{__name__}.{file}").IMPORTER for file in _FILES)
