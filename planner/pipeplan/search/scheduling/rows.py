"""Replicas as rows: pipelines that are all alike and share nothing but the reduction of their gradients.

::

    stage         0    1    2    3       0 and 3 share a device
    row 0        d0   d1   d2   d0       micro-batches 0 2 4 …
    row 1        d3   d4   d5   d3                     1 3 5 …
    columns       0    1    2    0

If every stage has r replicas, micro-batch m never leaves row m mod r. Orders of one row are then orders of all.
"""

from dataclasses import dataclass

from pipeplan.core.errors import InputError
from pipeplan.core.pipeline import Pipeline, Transfer


@dataclass(frozen=True)
class Rows:
    """A pipeline seen as rows.

    Attributes
    ----------
    columns : tuple of tuple of int
        For each column the device of each row; ascending.
    column : tuple of int
        Of each stage.
    """

    columns: tuple[tuple[int, ...], ...]
    column: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many rows there are."""
        return len(self.columns[0])

    def hosted(self, column: int) -> list[int]:
        """The stages of a column, ascending."""
        return [stage for stage, own in enumerate(self.column) if own == column]

    def crosses(self, boundary: int) -> bool:
        """Whether the stages on both sides of a boundary lie on different devices."""
        return self.column[boundary] != self.column[boundary + 1]


def rows_of(pipeline: Pipeline) -> Rows:
    """The rows of a pipeline.

    Raises
    ------
    InputError
        If stages have different numbers of replicas, a device runs replicas of several rows, or two stages share a
        device in one row and not in another.
    """
    widths = set(pipeline.replicas)
    if len(widths) != 1:
        raise InputError(
            f"orders are found for stages of one width, and these have {'-'.join(map(str, pipeline.replicas))} "
            "replicas; give all stages the same number, or choose a schedule family"
        )
    columns = sorted(set(pipeline.placement))
    homes = [device for column in columns for device in column]
    if len(set(homes)) != len(homes):
        shared = next(device for device in homes if homes.count(device) > 1)
        raise InputError(
            f"device {shared} runs replicas that do not belong together (stages lie on {pipeline.placement}); orders "
            "are found where the replicas of a micro-batch's way have devices of their own"
        )
    return Rows(tuple(columns), tuple(columns.index(own) for own in pipeline.placement))


def share(rows: Rows, row: int, micro_batches: int) -> int:
    """Micro-batches of a row: ⌈(M − row) / r⌉."""
    return max(0, -(-(micro_batches - row) // rows.count))


def hardest(rows: Rows, pipeline: Pipeline, micro_batches: int) -> int:
    """A row with the most micro-batches and nowhere more memory than another: its orders fit all rows.

    Of several the one whose tensors travel longest.

    Raises
    ------
    InputError
        If there is none.
    """
    busy = [row for row in range(rows.count) if share(rows, row, micro_batches) == share(rows, 0, micro_batches)]
    rooms = [
        [pipeline.limits[own[row]] - pipeline.runtime[own[row]] for own in rows.columns] for row in range(rows.count)
    ]
    least = [min(column) for column in zip(*rooms, strict=True)]
    tight = [row for row in busy if rooms[row] == least]
    if not tight:
        raise InputError(
            f"replicas have different memory beside their runtime ({rooms} bytes, row by row), and none of rows {busy} "
            "has the least everywhere; orders are found for rows that are alike: use devices of one kind a stage"
        )
    return max(tight, key=lambda row: sum(_away(transfer) for transfer in _of_row(pipeline, row)))


def _of_row(pipeline: Pipeline, row: int) -> list[Transfer]:
    return [ways[row] for ways in (*pipeline.transfers, *pipeline.returns)]


def _away(transfer: Transfer) -> int:
    return transfer.occupancy + transfer.latency
