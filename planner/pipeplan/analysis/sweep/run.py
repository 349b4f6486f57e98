"""`sweep`: run an experiment from its beginning, or from where an earlier run stopped.

A finished cell is a file of its own, written whole. A second run reads these files and solves the remaining cells.
After a change of the experiment, only cells whose problem changed are solved again.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pipeplan.analysis.sweep.cell_file import read_cell, write_cell
from pipeplan.analysis.sweep.cells import Cell, ask, ladders
from pipeplan.analysis.sweep.experiment import Experiment
from pipeplan.analysis.sweep.experiment_file import find_experiment, read_experiment
from pipeplan.analysis.sweep.record import Record
from pipeplan.analysis.sweep.work import error_text, without_plan, work
from pipeplan.analysis.sweep.workers import WorkerPool
from pipeplan.core.errors import InputError
from pipeplan.core.figures import shown, whole
from pipeplan.core.options import MOST_WORKERS, require, require_callback
from pipeplan_formulations.common.signals import listening

OVERTIME = 120.0
"""Seconds for a worker beyond three times its search limit: to read, simulate every partitioner, and write."""

OnProgress = Callable[[Cell, Record, bool], None]


@listening()
def sweep(
    experiment: Experiment | str | Path,
    folder: str | Path,
    *,
    data: str | Path | Sequence[str | Path] = (),
    time_limit: float | None = None,
    gap: float | None = None,
    workers: int = 1,
    retry: bool = False,
    on_progress: OnProgress = lambda *_: None,
) -> list[Record]:
    """Solve all cells, and return their records in the order of the experiment.

    Parameters
    ----------
    experiment : Experiment, str or Path
        An experiment, a name in ``datasets/experiments``, or a file.
    folder : str or Path
        Folder of finished cells, one file each; made if it does not exist.
    data : str, Path or sequence of them
        Folders to search for the files that the experiment names; that of the experiment's file comes last.
    time_limit, gap : float, optional
        Of each cell, in place of the experiment's.
    workers : int
        Number of cells solved at a time.
    retry : bool
        Solve cells again that failed in an earlier run. (An infeasible cell did not fail.)
    on_progress : callable
        Called as ``on_progress(cell, record, kept)`` for every finished cell; ``kept``: an earlier run finished it.

    Raises
    ------
    InputError
        If an argument is invalid, or the folder cannot be made.
    """
    if not isinstance(retry, bool):
        raise InputError(f"retry is either True or False, not {shown(retry)}")
    require_callback(on_progress)
    whole(workers, "the number of workers", 1, MOST_WORKERS)
    folders = tuple(map(_folder, data if isinstance(data, list | tuple) else (data,)))
    if isinstance(experiment, str | Path):
        path = find_experiment(experiment)
        experiment, folders = read_experiment(path), (*folders, path.resolve().parent)
    require(experiment, Experiment)
    search = experiment.search
    time, share = search.time if time_limit is None else time_limit, search.gap if gap is None else gap
    experiment = replace(experiment, search=replace(search, time=time, gap=share))
    return _Sweep(experiment, _folder(folder), folders, retry, on_progress).run(workers)


def _folder(name: object) -> Path:
    if not isinstance(name, str | Path) or not str(name):
        raise InputError(f"a folder is needed, not {shown(name)}")
    return Path(name)


class _Sweep:
    """A running sweep: the records of every ladder so far, and the cells in work."""

    def __init__(
        self, experiment: Experiment, folder: Path, data: tuple[Path, ...], retry: bool, on_progress: OnProgress
    ) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot make the folder {folder}: {error.strerror}") from error
        self._search, self._folder, self._data = experiment.search, folder, data
        self._retry, self._on_progress = retry, on_progress
        self._ladders = ladders(experiment, data)
        self._records: list[list[Record]] = [[] for _ in self._ladders]
        self._asked: dict[int, tuple[Cell, str]] = {}

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
            path = self._folder / cell.file
            try:
                question = ask(cell, self._data)
            except Exception as error:  # a file that an importer fails on becomes a row, and the sweep goes on
                self._enter(number, cell, without_plan(cell, "", "failed", error_text(error)))
                return
            fingerprint = question.fingerprint(self._search)
            kept = read_cell(path)
            if kept is None or kept.fingerprint != fingerprint or (self._retry and kept.outcome == "failed"):
                path.unlink(missing_ok=True)
                self._asked[number] = (cell, fingerprint)
                pool.start(number, work, (cell, question, self._search, path), 3 * self._search.time + OVERTIME)
                return
            self._enter(number, cell, replace(kept, part=cell.part), kept=True)
            if kept.outcome != "solved":
                return

    def _collect(self, number: int, problem: str) -> bool:
        """Enter the record of an ended worker, or of its failure; return True if the ladder continues."""
        cell, fingerprint = self._asked.pop(number)
        record = read_cell(self._folder / cell.file)
        if record is None:
            record = without_plan(cell, fingerprint, "failed", problem or "its process ended without a word")
        self._enter(number, cell, record)
        return record.outcome == "solved"

    def _enter(self, number: int, cell: Cell, record: Record, kept: bool = False) -> None:
        if not kept:
            write_cell(record, self._folder / cell.file)
        self._records[number].append(record)
        self._on_progress(cell, record, kept)
