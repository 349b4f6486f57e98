"""Parsers of other projects' workload files.

To add one, write a file with ``IMPORTER``, an `Importer`, and add its name to `_FILES`.
"""

from importlib import import_module

from pipeplan.io.importers.importer import Importer

__all__ = ["IMPORTERS", "Importer"]

_FILES = ("pipedream", "dnn_partitioning", "piper")

IMPORTERS: tuple[Importer, ...] = tuple(import_module(f"{__name__}.{file}").IMPORTER for file in _FILES)
"""Every importer. A file belongs to the first that recognises it; those of plain text are asked first."""
