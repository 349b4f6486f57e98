"""`Experiment`: grids of models, clusters and jobs, and the searches of each cell. A grid is a product.

::

    grid      models        clusters            jobs               searches          cells
              vgg-16        4-v100-nvlink       batch 256          cpsat, seed 0     2 x 2 x 1 x 2
              resnet-50     4-v100-pcie                            cpsat, seed 1

A series of models is a ladder: its next member is solved only if some plan fitted the one before.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from pipeplan.core.errors import InputError
from pipeplan.core.job import Job
from pipeplan.core.options import asked_limits


@dataclass(frozen=True, slots=True)
class NamedModel:
    """One model.

    Attributes
    ----------
    source : str
        A name in the datasets, or a file.
    name : str
        Name in the table; empty for the model's own name.
    times : tuple of str
        Kinds of device for which the times of the file's only profile count; empty leaves the profile as it is.
        A published profile often does not name the device on which it was measured.
    merge_misbooked : bool
        See `pipeplan.io.importers.pipedream`.
    optional : bool
        Leave the model out, with a note, if its file is missing.
    """

    source: str
    name: str = ""
    times: tuple[str, ...] = ()
    merge_misbooked: bool = False
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Series:
    """Members of a series from ``first`` to ``last``, up to the first that does not fit.

    Each number is the one before plus ``step``, or times ``factor``: exactly one of them is not 0.
    """

    series: str
    first: int
    step: int = 0
    factor: int = 0
    last: int = 1024

    def __post_init__(self) -> None:
        adds, multiplies = self.step >= 1 and self.factor == 0, self.step == 0 and self.factor >= 2
        if self.first < 1 or not (adds or multiplies):
            raise InputError(
                f"series {self.series!r} needs a first number of 1 or more, and either a step of 1 or more or a factor "
                f"of 2 or more; it has first {self.first}, step {self.step} and factor {self.factor}"
            )

    def member(self, number: int) -> NamedModel:
        """The model with this number."""
        return NamedModel(f"{self.series}-{number}")

    def numbers(self) -> Iterator[int]:
        """The numbers, in order."""
        number = self.first
        while number <= self.last:
            yield number
            number = number + self.step if self.step else number * self.factor


@dataclass(frozen=True, slots=True)
class Grid:
    """Every model on every cluster for every job; grids of one ``part`` make one table."""

    models: tuple[NamedModel | Series, ...]
    clusters: tuple[str, ...]
    jobs: tuple[Job, ...]
    part: str = ""


@dataclass(frozen=True, slots=True)
class Search:
    """Search limits and options of a cell; see `pipeplan.solve`."""

    time: float = 60.0
    gap: float = 0.0
    backend: str = "cpsat"
    workers: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        asked_limits(self.time, self.gap, self.backend, self.workers, self.seed)


@dataclass(frozen=True)
class Experiment:
    """Content of an experiment file.

    Attributes
    ----------
    name : str
    grids : tuple of Grid
    searches : tuple of Search
        Every grid is solved under each of them.
    beside : tuple of str
        Partitioners and baseline planners that the table shows beside the answer; empty for all of them.
    notes : tuple of str
    """

    name: str
    grids: tuple[Grid, ...]
    searches: tuple[Search, ...] = (Search(),)
    beside: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def limited(self, time: float | None, gap: float | None) -> "Experiment":
        """Return the experiment with these limits in all searches; None leaves theirs."""
        given = (("time", time), ("gap", gap))
        changed: dict[str, Any] = {name: value for name, value in given if value is not None}
        return replace(self, searches=tuple(replace(search, **changed) for search in self.searches))
