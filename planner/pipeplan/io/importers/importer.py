"""`Importer`: name, recognition and parser of another project's file format."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pipeplan.core.cluster import Cluster
from pipeplan.core.model import Model


@dataclass(frozen=True)
class Importer:
    """A format of another project's files.

    Attributes
    ----------
    name : str
    recognises : callable
        True for the content of a file of this format.
    read : callable
        ``(content, where, name, **options)`` to a model and its cluster, which is None if the file names no devices.
        ``where`` names the file in errors, ``name`` the model; options are keyword-only.
    plain : bool
        True if both get the text of the file. By default they get its data, read as YAML or JSON.
    """

    name: str
    recognises: Callable[[Any], bool]
    read: Callable[..., tuple[Model, Cluster | None]]
    plain: bool = False
