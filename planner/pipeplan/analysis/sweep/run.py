"""`run` of an experiment, from its beginning or where an earlier run stopped.

A finished cell is a file of its own, written whole. A second run finds it and goes on with what is left, and so does a
run after a change of the experiment: only cells whose question changed are asked again.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pipeplan.analysis.sweep.cell_file import read_cell, write_cell
from pipeplan.analysis.sweep.cells import Cell, ask, ladders
from pipeplan.analysis.sweep.crew import Crew
from pipeplan.analysis.sweep.experiment import Experiment
from pipeplan.analysis.sweep.record import Record
from pipeplan.analysis.sweep.work import blank, told, work
from pipeplan.core.errors import InputError
from pipeplan_formulations.common.signals import listening

OVERTIME = 120.0
"""Seconds that a worker has beyond three times its search: to read, simulate every balancer, and write."""

Tell = Callable[[Cell, Record, bool], None]


@listening()
def sweep(
    experiment: Experiment,
    folder: Path,
    *,
    data: tuple[Path, ...] = (),
    workers: int = 1,
    retry: bool = False,
    tell: Tell = lambda *_: None,
) -> list[Record]:
    """Every cell's record, in the order of the experiment.

    Parameters
    ----------
    folder : Path
        Where finished cells are kept, one file each; it is made if it is not there.
    data : tuple of Path
        Folders in which files that the experiment names are looked for.
    workers : int
        Cells at a time.
    retry : bool
        Ask again what failed in an earlier run. (What is infeasible did not fail.)
    tell : callable
        ``tell(cell, record, kept)`` for every finished cell; ``kept`` if an earlier run had finished it.

    Raises
    ------
    InputError
        If the folder cannot be made.
    """
    return _Sweep(experiment, folder, data, retry, tell).run(workers)


class _Sweep:
    """A running sweep: every ladder's records so far, and the cells that workers are at."""

    def __init__(self, experiment: Experiment, folder: Path, data: tuple[Path, ...], retry: bool, tell: Tell) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot make the folder {folder}: {error.strerror}") from error
        self._search, self._folder, self._data = experiment.search, folder, data
        self._retry, self._tell = retry, tell
        self._ladders = ladders(experiment, data)
        self._records: list[list[Record]] = [[] for _ in self._ladders]
        self._asked: dict[int, tuple[Cell, str]] = {}

    def run(self, workers: int) -> list[Record]:
        """Climb every ladder, so many at a time; one that was begun goes on before the next one begins."""
        waiting = list(range(len(self._ladders)))
        with Crew(workers) as crew:
            while waiting or crew.busy:
                while waiting and crew.free:
                    self._climb(waiting.pop(0), crew)
                waiting[:0] = [number for number, problem in crew.finished() if self._collect(number, problem)]
        return [record for ladder in self._records for record in ladder]

    def _climb(self, number: int, crew: Crew) -> None:
        """Up a ladder past what earlier runs finished, to the first cell that a worker has to solve."""
        for cell in self._ladders[number]:
            path = self._folder / cell.file
            try:
                question = ask(cell, self._data)
            except Exception as error:  # a file that an importer chokes on is a row, not the end of the sweep
                self._enter(number, cell, blank(cell, "", "failed", told(error)))
                return
            fingerprint = question.fingerprint(self._search)
            kept = read_cell(path)
            if kept is None or kept.fingerprint != fingerprint or (self._retry and kept.outcome == "failed"):
                path.unlink(missing_ok=True)
                self._asked[number] = (cell, fingerprint)
                crew.start(number, work, (cell, question, self._search, path), 3 * self._search.time + OVERTIME)
                return
            self._enter(number, cell, replace(kept, part=cell.part), kept=True)
            if kept.outcome != "solved":
                return

    def _collect(self, number: int, problem: str) -> bool:
        """Take a worker's record, or make one of what befell it; whether the ladder goes on."""
        cell, fingerprint = self._asked.pop(number)
        record = read_cell(self._folder / cell.file)
        if record is None:
            record = blank(cell, fingerprint, "failed", problem or "its process ended without a word")
        self._enter(number, cell, record)
        return record.outcome == "solved"

    def _enter(self, number: int, cell: Cell, record: Record, kept: bool = False) -> None:
        if not kept:
            write_cell(record, self._folder / cell.file)
        self._records[number].append(record)
        self._tell(cell, record, kept)
