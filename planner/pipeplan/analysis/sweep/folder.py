"""`SweepFolder`: finished cells and their plans, in a folder of a sweep and in others that are merged into it.

::

    FOLDER/cells/vgg-16__4-v100-nvlink__batch_256__1a2b3c4d.json     a record
    FOLDER/plans/vgg-16__4-v100-nvlink__batch_256__1a2b3c4d.json     its plan
"""

from pathlib import Path

from pipeplan.analysis.sweep.cell_file import read_cell, write_cell
from pipeplan.analysis.sweep.cells import Cell
from pipeplan.analysis.sweep.record import Record
from pipeplan.core.errors import InputError
from pipeplan.io.atomic import write_whole
from pipeplan.io.text import read_text


class SweepFolder:
    """A folder, made if it does not exist, and others that are only read.

    Raises
    ------
    InputError
        If the folder cannot be made, one of the others holds no cells, or one was written by an earlier version.
    """

    def __init__(self, path: Path, others: tuple[Path, ...] = ()) -> None:
        for other in others:
            if not (other / "cells").is_dir():
                raise InputError(f"there are no cells in {other}; name a folder that a sweep wrote (its -o)")
        for place in (path, *others):
            if any((place / "cells").glob("*.json")) and not (place / "plans").is_dir():
                raise InputError(
                    f"the cells in {place} are of an earlier version of pipeplan, which kept no plans, and cannot be "
                    "used; name another folder (-o), or remove this one to solve them again"
                )
        try:
            for name in ("plans", "cells"):  # cells without plans are those of an earlier version
                (path / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot make the folder {path}: {error.strerror}") from error
        self._path, self._others = path, others

    def cell(self, cell: Cell) -> Path:
        """Path of a cell's record."""
        return self._path / "cells" / cell.file

    def plan(self, cell: Cell) -> Path:
        """Path of a cell's plan."""
        return self._path / "plans" / cell.file

    def read(self, cell: Cell, fingerprint: str) -> Record | None:
        """The record of a finished cell, copied from another folder where this one has none, or one that failed.

        None if no folder has it whole, with its plan, and up to date.
        """
        kept = None
        for place in (self._path, *self._others):
            found = self._read(place, cell, fingerprint)
            if found is not None and (kept is None or kept.outcome == "failed" != found.outcome):
                kept = found
                if place != self._path:
                    self._copy(place, cell, found)
        return kept

    @staticmethod
    def _read(place: Path, cell: Cell, fingerprint: str) -> Record | None:
        record = read_cell(place / "cells" / cell.file)
        if record is None or record.fingerprint != fingerprint:
            return None
        whole = record.outcome != "solved" or (place / "plans" / cell.file).is_file()
        return record if whole else None

    def _copy(self, place: Path, cell: Cell, record: Record) -> None:
        if record.plan_file:
            write_whole(self.plan(cell), read_text(place / "plans" / cell.file))
        write_cell(record, self.cell(cell))
