"""All updates of one rank: those that a stage makes for itself, and those on which all stages have to agree.

::

    each for itself       R ── U                          as the plan has it
    clipped or scaled     R ─────────── all ranks ── U    a stage waits until the last one has its sums
"""

import warnings
from collections.abc import Mapping

import torch
from torch import Tensor

from pipeplan.core.errors import InputError
from pipeplan_executor.optim.clipping import clip, total_norm
from pipeplan_executor.optim.optimise import StageOptimizer
from pipeplan_executor.optim.state_size import excess
from pipeplan_executor.stages.scaling import LossScale


class Updates:
    """The optimisers of a rank's stages.

    Parameters
    ----------
    optimizers : mapping of int to StageOptimizer
        By stage.
    planned : str
        The optimiser that the plan counted on; what keeps more is warned of behind its first update.
    limit : float, optional
        Clip gradients to this global norm.
    scale : LossScale, optional
        Gradients come scaled by it.

    Raises
    ------
    InputError
        If the limit is not positive.

    Attributes
    ----------
    optimizers : dict of int to StageOptimizer
    scale : LossScale or None
    norm : Tensor or None
        Global norm of the gradients of the last update, ahead of clipping; None without a limit, or after an overflow.
    """

    def __init__(
        self,
        optimizers: Mapping[int, StageOptimizer],
        planned: str,
        device: torch.device,
        limit: float | None = None,
        scale: LossScale | None = None,
    ) -> None:
        if limit is not None and not limit > 0:
            raise InputError(f"gradients cannot be clipped to a norm of {limit}; give a positive one, or None")
        self.optimizers, self.scale = dict(optimizers), scale
        self.norm: Tensor | None = None
        self._planned, self._device, self._limit = planned, device, limit
        self._unchecked = set(self.optimizers)

    @property
    def together(self) -> bool:
        """Whether no stage may update before all have their sums."""
        return self._limit is not None or self.scale is not None

    def begin(self) -> None:
        """Ahead of a step."""
        for optimizer in self.optimizers.values():
            optimizer.begin()

    def reduce(self, stage: int) -> None:
        """R of a stage."""
        self.optimizers[stage].reduce()

    def agreed(self) -> bool:
        """Unscale and clip the sums, where that is asked for; whether there is to be an update.

        Every rank takes part, behind all its reductions. Gradients that overflowed are cleared.
        """
        parts = [part for optimizer in self.optimizers.values() for part in optimizer.parts]
        if self.scale is not None and not self.scale.unscale([part.sums for part in parts]):
            for optimizer in self.optimizers.values():
                optimizer.skip()
            self.norm = None
            return False
        if self._limit is not None:
            self.norm = total_norm(parts, self._device)
            clip(parts, self._limit, self.norm)
        return True

    def update(self, stage: int) -> None:
        """U of a stage."""
        optimizer = self.optimizers[stage]
        optimizer.update()
        if stage in self._unchecked:
            self._unchecked.remove(stage)
            told = excess(optimizer, self._planned)
            if told is not None:
                warnings.warn(f"stage {stage}: {told}", stacklevel=2)
