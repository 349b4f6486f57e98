"""`Saving`: when a run saves checkpoints, and from which it goes on."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeplan.core.errors import InputError

if TYPE_CHECKING:
    from pipeplan_executor.train.pipeline import Pipeline


@dataclass(frozen=True)
class Saving:
    """The checkpoints of a run.

    Attributes
    ----------
    folder : str
        Where they lie; all ranks see it.
    every : int
        Steps between two of them; the last step is saved in any case.
    keep : int
        So many stay.
    resume : bool
        Go on from the latest one that is there, or begin if there is none.
    """

    folder: str
    every: int = 0
    keep: int = 3
    resume: bool = False

    def check(self) -> None:
        """Refuse, before anything starts, what would mix two runs in one folder.

        Raises
        ------
        InputError
            Also if a number makes no sense.
        """
        from pipeplan_executor.checkpoint.folder import latest

        if self.every < 0 or self.keep < 1:
            raise InputError(
                f"every is {self.every} and keep {self.keep}; save every 1 or more steps and keep 1 or more"
            )
        found = latest(self.folder)
        if found is not None and not self.resume:
            raise InputError(
                f"{self.folder} has checkpoints of an earlier run, the latest of them {found.name}; go on from it "
                "(--resume), or name another folder"
            )

    def restore(self, pipeline: "Pipeline") -> int:
        """Load the latest checkpoint, if there is one; how many steps are done."""
        from pipeplan_executor.checkpoint.folder import latest
        from pipeplan_executor.checkpoint.together import on_first

        found = on_first(lambda: latest(self.folder))
        return 0 if found is None else pipeline.load(found).step

    def after(self, pipeline: "Pipeline", done: int, total: int) -> Path | None:
        """Save after so many steps of ``total``, if it is time to."""
        if done == total or (self.every and done % self.every == 0):
            return pipeline.save(self.folder, keep=self.keep)
        return None
