"""Updates of single buckets, once their sums are there: what the next forward of their layers waits for.

::

    R, U      │ F: wait 0 ─ update 0 ─ layer 0 │ wait 1 ─ update 1 ─ layer 1 │ …
    sums ─ 0 ─┼─ 0 ─┼───────── 1 ──────────────┼ ─ 2 ─┤

Nothing else reads the parameters before: what does waits for all layers first (`StageModule.wait`).
"""

import atexit
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from pipeplan.core.errors import InputError
from pipeplan_executor.optim.buckets import Buckets
from pipeplan_executor.stages.stage_module import Pending


class BucketUpdate:
    """The sums of a bucket, the update of its parameters, and the end of its gradients.

    Parameters
    ----------
    sums : sequence of Pending
    optimizer : torch.optim.Optimizer
    groups : sequence of mapping
        Its parameter groups with these parameters only, and with the options of their update.
    gradients : sequence of Tensor
        Zeroed at the end.

    Attributes
    ----------
    sums : sequence of Pending
    """

    def __init__(
        self,
        sums: Sequence[Pending],
        optimizer: torch.optim.Optimizer,
        groups: Sequence[Mapping[str, Any]],
        gradients: Sequence[Tensor],
    ) -> None:
        self.sums = sums
        self._optimizer, self._groups, self._gradients = optimizer, groups, gradients
        self._begun = False
        _OPEN.add(self)

    def wait(self) -> None:
        """Wait for the sums and update the parameters, once.

        Raises
        ------
        InputError
            If the optimiser keeps state in its groups.
        """
        for each in self.sums:
            each.wait()
        if self._begun:
            return
        self._begun = True
        _OPEN.discard(self)
        if self._groups:
            self._step()
        for gradient in self._gradients:
            gradient.zero_()

    def _step(self) -> None:
        optimizer, whole = self._optimizer, self._optimizer.param_groups
        before = [dict(group) for group in self._groups]
        optimizer.param_groups = [dict(group) for group in self._groups]
        try:
            with torch.autocast(self._gradients[0].device.type, enabled=False):  # a forward's
                optimizer.step()
            changed = {
                key
                for old, new in zip(before, optimizer.param_groups, strict=True)
                for key, value in new.items()
                if value is not old.get(key)
            }
        finally:
            optimizer.param_groups = whole
        if changed:
            raise InputError(
                f"{type(optimizer).__name__} changes {', '.join(sorted(changed))} of its parameter groups in a step, "
                "and with sums in a plan's order it steps once for each layer: use an optimiser with state of single "
                "parameters, or solve again without --front-first"
            )


_OPEN: WeakSet[BucketUpdate] = WeakSet()
"""Updates that nobody has waited for."""


def updates_of_buckets(buckets: Buckets, optimizer: torch.optim.Optimizer) -> Iterator[tuple[int, BucketUpdate]]:
    """Yield the update of each bucket, with the options of now, and the first layer of the bucket.

    Every bucket has begun its sums.
    """
    groups: list[list[dict[str, Any]]] = [[] for _ in buckets.firsts]
    for group in optimizer.param_groups:
        own: dict[int, list[Tensor]] = {}
        for parameter in group["params"]:
            own.setdefault(buckets.bucket_of(parameter), []).append(parameter)
        for bucket, parameters in own.items():
            groups[bucket].append({key: _kept(value) for key, value in group.items()} | {"params": parameters})
    for bucket, layer in enumerate(buckets.firsts):
        gradients = [part.gradients[start:end] for part, start, end in buckets.ranges(bucket) if start < end]
        if gradients:
            yield layer, BucketUpdate(buckets.begun[bucket], optimizer, groups[bucket], gradients)


def _kept(value: Any) -> Any:
    """Return the value of an option as it is now: schedules write tensors in place."""
    return value.clone() if isinstance(value, Tensor) else value


@atexit.register
def _finish() -> None:
    """Let the other replicas have their sums before the process ends, unless an error ends it."""
    if hasattr(sys, "last_value"):  # an error that nothing caught
        return
    for each in list(_OPEN):
        for sums in each.sums:
            with suppress(RuntimeError):  # a replica that is gone needs none
                sums.wait()
