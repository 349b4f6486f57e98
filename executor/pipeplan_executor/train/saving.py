"""`Saving`: folder, frequency and resumption of a run's checkpoints."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeplan.core.errors import InputError
from pipeplan.core.figures import LARGEST, shown, whole

if TYPE_CHECKING:
    from pipeplan_executor.train.pipeline import Pipeline


@dataclass(frozen=True)
class Saving:
    """The checkpoints of a run.

    Attributes
    ----------
    folder : str
        Folder of the checkpoints, on a file system that all ranks see.
    every : int
        Steps between two checkpoints; the last step is always saved.
    keep : int
        Number of newest checkpoints that are kept.
    resume : bool
        Continue from the latest checkpoint, or begin if there is none.

    Examples
    --------
    >>> pipeplan_executor.Saving("runs/a", every=50).keep
    3
    """

    folder: str
    every: int = 0
    keep: int = 3
    resume: bool = False

    def check(self) -> None:
        """Refuse invalid numbers, a folder with checkpoints of another run, and one into which another run saves now.

        Raises
        ------
        InputError
            Before any process is started.
        """
        from pipeplan_executor.checkpoint.folder import latest
        from pipeplan_executor.checkpoint.lock import check_free

        if not isinstance(self.folder, str | Path) or not str(self.folder):
            raise InputError(f"no folder for checkpoints: {shown(self.folder)}; name one")
        if whole(self.every, "every", -LARGEST) < 0 or whole(self.keep, "keep", -LARGEST) < 1:
            raise InputError(
                f"every is {self.every} and keep {self.keep}; save every 1 or more steps and keep 1 or more"
            )
        check_free(Path(self.folder))
        found = latest(self.folder)
        if found is not None and not self.resume:
            raise InputError(
                f"{self.folder} has checkpoints of an earlier run, the latest of them {found.name}; go on from it "
                "(--resume), or name another folder"
            )

    def restore(self, pipeline: "Pipeline") -> int:
        """Load the latest checkpoint, if there is one; return the number of completed steps."""
        from pipeplan_executor.checkpoint.folder import latest
        from pipeplan_executor.checkpoint.lock import hold
        from pipeplan_executor.checkpoint.together import on_first

        def latest_locked() -> Path | None:
            hold(Path(self.folder))  # until the run ends
            return latest(self.folder)

        found = on_first(latest_locked)
        return 0 if found is None else pipeline.load(found).step

    def after(self, pipeline: "Pipeline", done: int, total: int) -> Path | None:
        """Save a checkpoint after ``done`` of ``total`` steps, if one is due."""
        if done == total or (self.every and done % self.every == 0):
            return pipeline.save(self.folder, keep=self.keep)
        return None
