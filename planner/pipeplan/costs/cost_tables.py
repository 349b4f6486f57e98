"""`CostTables`: a model's layer costs on a cluster's kinds of device, each made once."""

from functools import cached_property, partial
from typing import Self

from pipeplan.core.cluster import Cluster, DeviceKind
from pipeplan.core.errors import InputError
from pipeplan.core.folding import Folding
from pipeplan.core.job import Job, Recompute
from pipeplan.core.model import Model
from pipeplan.core.splits import Splitting
from pipeplan.costs.kept import Kept
from pipeplan.costs.layers import item_size, layer_costs
from pipeplan.costs.scale import require_exact
from pipeplan.costs.slices import SliceCosts, slice_costs
from pipeplan.costs.table import Table

Tables = dict[tuple[Folding | None, str, int], Table]
"""By how layers are folded, kind of device and micro-batch size."""


class CostTables:
    """Cache of a model's costs on a cluster's kinds of device.

    ``tables``: those that are known, shared with prices of the model, or folded, at other levels of ZeRO.

    Raises
    ------
    InputError
        If the model has no costs for a requested table.
    """

    def __init__(
        self, model: Model, cluster: Cluster, job: Job, split: Splitting | None = None, tables: Tables | None = None
    ) -> None:
        self.model, self.cluster, self.job, self.split = model, cluster, job.of(model), split
        self._tables: Tables = {} if tables is None else tables
        self.kept = Kept(model, self.job)

    @cached_property
    def unfolded(self) -> Self:
        """Those of the layers of which super layers are made."""
        assert self.model.unfolded is not None
        return type(self)(self.model.unfolded, self.cluster, self.job, self.split, self._tables)

    def table(self, kind: DeviceKind, micro_batch: int) -> Table:
        """Return every layer's cost on a kind of device at a micro-batch size."""
        key = self.model.folding, kind.name, micro_batch
        if key not in self._tables:
            try:
                table = Table(
                    self.model,
                    *self.costs(kind, micro_batch),
                    again=self.job.recompute is Recompute.FULL,
                    keys=self._keys(kind, micro_batch),
                    lengths={n: self._costs(own, kind, micro_batch) for n, own in self.model.of_length.items()},
                )
            except OverflowError as error:
                raise InputError(
                    f"{self.model.name} on {kind.name}: a micro-batch of {micro_batch} samples costs more than 64 bits "
                    "of nanoseconds or bytes; make it smaller, or check speeds and sizes"
                ) from error
            require_exact(table, self.model, self.cluster, self.job, f"{self.model.name} on {kind.name}", micro_batch)
            self._tables[key] = table
        return self._tables[key]

    def costs(self, kind: DeviceKind, micro_batch: int) -> SliceCosts:
        """Return every layer's costs before what is recomputed or kept beside them, of a slice of average work."""
        return self._costs(self.model, kind, micro_batch)

    def _costs(self, model: Model, kind: DeviceKind, micro_batch: int) -> SliceCosts:
        job = self.job
        given = partial(
            layer_costs,
            kind=kind,
            micro_batch=micro_batch,
            extrapolate=job.extrapolate,
            optimizer=job.optimizer,
            state_bytes=job.state_bytes,
        )
        if model.slicing is not None:
            return slice_costs(model, kind, micro_batch, given)
        return SliceCosts(given(model.unfolded or model), ())

    def _keys(self, kind: DeviceKind, micro_batch: int) -> tuple[tuple[int, int], ...]:
        """Bytes of keys and values of each layer's attention, and of their gradients, of a slice of a micro-batch."""
        slicing, size = self.model.slicing, item_size(self.model.dtype)
        if slicing is None:
            return ()
        split = None if self.split is None else self.split.at(kind.team)
        rows = (None,) * len(slicing.layers) if split is None else split.strategies[kind.name, micro_batch]
        sizes = () if split is None else split.sizes
        kept = [micro_batch * own.kept(row, sizes) for own, row in zip(slicing.layers, rows, strict=True)]
        return tuple((own, own // size * max(size, 4)) for own in kept)
