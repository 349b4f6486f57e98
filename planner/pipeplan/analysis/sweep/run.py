"""`sweep`: run an experiment from its beginning, or from where an earlier run stopped.

A finished cell is a file of its own, written whole. A second run reads these files and solves the remaining cells.
After a change of the experiment, only cells whose problem changed are solved again.
"""

import pickle
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeplan.analysis.plug_ins import PlugIn, plugged_in
from pipeplan.analysis.sweep.asked import experiment_of
from pipeplan.analysis.sweep.cell_file import read_cell, write_cell
from pipeplan.analysis.sweep.cells import Cell, ask, ladders
from pipeplan.analysis.sweep.experiment import Experiment
from pipeplan.analysis.sweep.experiment_file import find_experiment, read_experiment
from pipeplan.analysis.sweep.faults import require_sound
from pipeplan.analysis.sweep.folder import SweepFolder
from pipeplan.analysis.sweep.record import Record
from pipeplan.analysis.sweep.work import error_text, without_plan, work
from pipeplan.analysis.sweep.workers import WorkerPool
from pipeplan.core.errors import InputError
from pipeplan.core.figures import shown, whole
from pipeplan.core.job import Job
from pipeplan.core.options import MOST_WORKERS, require, require_callback
from pipeplan.core.parts import switch
from pipeplan.solve.question import require_options
from pipeplan_formulations.common.signals import listening

OVERTIME = 120.0
"""Seconds for a worker beyond three times its search limit: to read, simulate every partitioner, and write."""

MISSING = "not in any of the folders; run its shard, or solve it here without --merge"
"""The reason of a missing cell."""

OnProgress = Callable[[Cell, Record, bool], None]


@dataclass(frozen=True, slots=True)
class Shard:
    """Ladders ``number``, ``number + count``, … of an experiment, counted from 1: the share of one job of an array."""

    number: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.count:
            raise InputError(f"there is no shard {self.number} of {self.count}; shards are 1/N, 2/N … N/N")

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Read ``'2/8'``: the second of eight."""
        found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
        if found is None:
            raise InputError(f"{text!r} is no shard; write its number and how many there are, like 2/8")
        return cls(int(found[1]), int(found[2]))


@listening()
def sweep(
    experiment: Experiment | str | Path | list[str],
    place: str | Path | list[str],
    batch: Any = None,
    *,
    job: Job | list[Job] | None = None,
    folder: str | Path | None = None,
    data: str | Path | Sequence[str | Path] = (),
    time_limit: float | list[float] | None = None,
    gap: float | list[float] | None = None,
    workers: int = 1,
    retry: bool = False,
    shard: Shard = Shard(1, 1),
    merged: tuple[Path, ...] | None = None,
    checked: bool = False,
    on_progress: OnProgress = lambda *_: None,
    plug_ins: Sequence[PlugIn] = (),
    **options: Any,
) -> list[Record]:
    """Solve all cells, and return their records in the order of the experiment.

    ::

        sweep("mine.yaml", "runs/mine")                                                  an experiment, and a folder
        sweep(["vgg-16", "gnmt-8"], "4-v100-nvlink", [64, 128], depths=(2, 4), seed=[0, 1], folder="runs/other")

    In the second form the arguments are those of `pipeplan.solve`, and a list of values is an axis: all combinations
    are solved. A tuple is one value, like the depths of a cell above. Models and clusters are names or files.

    Parameters
    ----------
    experiment : Experiment, str, Path or list
        An experiment, a name in ``datasets/experiments``, or a file; or a model, or a list of them.
    place : str, Path or list
        Folder of finished cells and their plans, a file each (`SweepFolder`); made if it does not exist. Beside
        models a cluster, or a list of them.
    batch : int or list, optional
        Samples of a step.
    job : Job or list, optional
        In place of ``batch`` and the options of jobs.
    folder : str or Path
        Beside models and clusters the folder of cells; its name is that of the experiment.
    data : str, Path or sequence of them
        Folders to search for the files that the experiment names; that of the experiment's file comes last.
    time_limit, gap : float, optional
        Of each cell, in place of the experiment's.
    workers : int
        Number of cells solved at a time.
    retry : bool
        Solve cells again that failed in an earlier run. (An infeasible cell did not fail.)
    shard : Shard
        The part of the experiment to solve.
    merged : tuple of Path, optional
        Folders of other sweeps, whose cells are copied into this one. Then nothing is solved, and a cell that is
        in none of the folders is recorded as missing.
    checked : bool
        The caller has checked the experiment (`pipeplan.analysis.sweep.faults`).
    on_progress : callable
        Called as ``on_progress(cell, record, kept)`` for every finished cell; ``kept``: an earlier run finished it.
    plug_ins : sequence
        Partitioners, planners (or their functions), schedule families and collectives of your own, importable by the
        processes that solve cells: see `pipeplan.analysis.plug_ins`. Families are searched where a job names them.
    **options
        Beside models and clusters fields of `Job`, ``backend`` and ``seed``; a list of values is an axis.

    Raises
    ------
    InputError
        If an argument is invalid, a name, file, back end or job of any cell is wrong (all faults are named), or the
        folder cannot be made.

    Examples
    --------
    >>> records = pipeplan.sweep(
    ...     ["vgg-16", "gnmt-8"], "4-v100-nvlink", [64, 128], time_limit=20, folder="sweep"
    ... )  # doctest: +SKIP
    """
    switch(retry, "retry")
    switch(checked, "checked")
    require_callback(on_progress)
    whole(workers, "the number of workers", 1, MOST_WORKERS)
    folders = tuple(map(_folder, data if isinstance(data, list | tuple) else (data,)))
    if batch is not None or job is not None or isinstance(experiment, list):
        own_folder = _folder(folder)
        limits = {"time_limit": time_limit, "gap": gap}
        experiment = experiment_of(own_folder.name, experiment, place, batch, job, {**options, **limits})
        time_limit = gap = None
    else:
        require_options("sweep of an experiment", options, ("folder", "data", "time_limit", "gap", "workers", "retry"))
        own_folder = _folder(place if folder is None else folder)
    if isinstance(experiment, str | Path):
        path = find_experiment(experiment)
        experiment, folders = read_experiment(path), (*folders, path.resolve().parent)
    require(experiment, Experiment)
    require(shard, Shard)
    experiment = experiment.limited(_one(time_limit, "time_limit"), _one(gap, "gap"))
    _require_importable(plug_ins)
    with plugged_in(plug_ins) as (heuristics, _):
        if not checked:
            require_sound(experiment, folders)
        own = SweepFolder(own_folder, merged or ())
        chosen = ladders(experiment, folders)[shard.number - 1 :: shard.count]
        asking = {"beside": (*experiment.beside, *heuristics), "plug_ins": tuple(plug_ins)}
        return _Sweep(chosen, own, folders, retry, merged is None, on_progress, asking).run(workers)


def _require_importable(plug_ins: Sequence[PlugIn]) -> None:
    """Refuse what cannot be sent to the process of a cell."""
    for each in plug_ins:
        try:
            pickle.dumps(each)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise InputError(
                f"a cell is solved in a process of its own, which has to import what is plugged in: {error}; write it "
                "into a module"
            ) from error


def _one(value: Any, name: str) -> float | None:
    if isinstance(value, list):
        raise InputError(f"{name} of an experiment is one number, in place of the experiment's; axes are in its file")
    found: float | None = value
    return found


def _folder(name: object) -> Path:
    if not isinstance(name, str | Path) or not str(name):
        raise InputError(f"a folder is needed, not {shown(name)}")
    return Path(name)


class _Sweep:
    """A running sweep: the records of every ladder so far, and the cells in work."""

    def __init__(
        self,
        ladders: list[Iterator[Cell]],
        folder: SweepFolder,
        data: tuple[Path, ...],
        retry: bool,
        solves: bool,
        on_progress: OnProgress,
        asking: Mapping[str, Any],
    ) -> None:
        self._folder, self._data, self._asking = folder, data, asking
        self._retry, self._solves, self._on_progress = retry, solves, on_progress
        self._ladders = ladders
        self._records: list[list[Record]] = [[] for _ in self._ladders]
        self._asked: dict[int, _Asked] = {}

    def run(self, workers: int) -> list[Record]:
        """Solve all ladders, at most ``workers`` at a time; a started ladder continues before the next one starts."""
        waiting = list(range(len(self._ladders)))
        with WorkerPool(workers) as pool:
            while waiting or pool.busy:
                while waiting and pool.free:
                    self._advance(waiting.pop(0), pool)
                waiting[:0] = [number for number, problem in pool.finished() if self._collect(number, problem)]
        return [record for ladder in self._records for record in ladder]

    def _advance(self, number: int, pool: WorkerPool) -> None:
        """Advance a ladder past the cells that earlier runs finished, and start a worker for the next cell."""
        for cell in self._ladders[number]:
            try:
                question = replace(ask(cell, self._data), **self._asking)
            except Exception as error:  # a file that changed since the beginning; the sweep goes on
                self._enter(number, cell, without_plan(cell, "", "failed", error_text(error)))
                return
            fingerprint = question.fingerprint
            kept = self._folder.read(cell, fingerprint)
            if kept is None and not self._solves:
                self._enter(number, cell, without_plan(cell, fingerprint, "missing", MISSING), kept=True)
                return
            if kept is None or (self._retry and kept.outcome == "failed"):
                path, plan = self._folder.cell(cell), self._folder.plan(cell)
                path.unlink(missing_ok=True)
                plan.unlink(missing_ok=True)
                self._asked[number] = _Asked(cell, fingerprint, time.monotonic())
                seconds = 3 * cell.search.time + OVERTIME
                pool.start(number, work, (cell, question, path, plan), seconds)
                return
            self._enter(number, cell, replace(kept, part=cell.part, rung=cell.rung), kept=True)
            if kept.outcome != "solved":
                return

    def _collect(self, number: int, problem: str) -> bool:
        """Enter the record of an ended worker, or of its failure; return True if the ladder continues."""
        asked = self._asked.pop(number)
        record = read_cell(self._folder.cell(asked.cell))
        if record is None:
            wall = time.monotonic() - asked.began
            problem = problem or "its process ended without a word"
            record = without_plan(asked.cell, asked.fingerprint, "failed", problem, wall)
        self._enter(number, asked.cell, record)
        return record.outcome == "solved"

    def _enter(self, number: int, cell: Cell, record: Record, kept: bool = False) -> None:
        if not kept:
            write_cell(record, self._folder.cell(cell))
        self._records[number].append(record)
        self._on_progress(cell, record, kept)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A cell in work, since ``began`` (monotonic seconds)."""

    cell: Cell
    fingerprint: str
    began: float
