"""Storage of whole tensors and of slices that differ between ranks, through torch.distributed.checkpoint.

Consecutive numbers of a tensor are stored as boxes::

    of 4 x 5 numbers, laid out flat, those from 3 to 15        . . . a a      a: 1 x 2 numbers from (0, 3) on
                                                               b b b b b      b: 2 x 5 numbers from (1, 0) on
                                                               b b b b b
                                                               . . . . .

Ranks store and read slices::

    a weight of 2 x 4 numbers           0 0 0 0       0 0 1 1
                                        0 0 1 1       0 0 1 1
    saved by two processes              ZeRO-1        tensor parallelism: two columns per rank
    as boxes                            2 and 1       1 and 1
    loaded by one, or others            each reads the parts that it needs from all of these

A rank that has its part of several groups of columns (`pipeplan.core.grouped_axis`) has a box of each.

Torch's planners find the boxes (their chunks) that a slice needs; the subclasses here describe slices to them. Names of
the model contain dots, so slashes separate the parts of a key.
"""

import io
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
    create_default_local_load_plan,
    create_default_local_save_plan,
)
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem, SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from pipeplan.core.errors import InputError
from pipeplan.core.figures import in_one_line
from pipeplan_executor.checkpoint.metadata import Reader


def model_key(name: str) -> str:
    """Key of a parameter, or of the first replica's buffer."""
    return f"model/{name}"


def earlier_key(name: str) -> str:
    """Return the key of a parameter before the last update, where gradients are one batch late."""
    return f"earlier/{name}"


def replica_key(replica: int, name: str) -> str:
    """Key of a buffer of another replica of its stage, numbered from 1."""
    return f"replica/{replica}/{name}"


def numbers_key(name: str, key: str) -> str:
    """Key of optimiser state per number of a parameter, in its shape."""
    return f"optimizer/{name}/{key}"


def whole_key(name: str, key: str) -> str:
    """Key of optimiser state per parameter."""
    return f"optimizer-whole/{name}/{key}"


def optimizer_key(full: str) -> tuple[bool, str, str] | None:
    """Parse a key of optimiser state: (per number, parameter, optimiser's key); None for other keys."""
    kind, *rest = full.split("/")
    if kind not in ("optimizer", "optimizer-whole") or len(rest) != 2:
        return None
    name, key = rest
    return kind == "optimizer", name, key


class Box(NamedTuple):
    """A part of a tensor: offsets and sizes along each axis."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def numbers(self) -> int:
        """Number of elements."""
        return prod(self.sizes)

    def of(self, tensor: Tensor) -> Tensor:
        """Return this part of a tensor, as a view."""
        return tensor[tuple(slice(first, first + size) for first, size in zip(self.offsets, self.sizes, strict=True))]


def boxes_of(shape: Sequence[int], first: int, end: int) -> tuple[Box, ...]:
    """Return the fewest boxes, in order, that hold the numbers from ``first`` to ``end`` of a flattened tensor."""
    return tuple(Box(offsets, sizes) for offsets, sizes in _within(tuple(shape), first, end))


def _within(shape: tuple[int, ...], first: int, end: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    if not shape:
        if first < end:
            yield (), ()
        return
    row = prod(shape[1:])  # numbers per index of the first axis
    while first < end:
        number, within = divmod(first, row)
        rows = (end - first) // row
        if not within and rows:  # whole rows are one box; a partial row is divided along the next axes
            yield (number, *(0 for _ in shape[1:])), (rows, *shape[1:])
            first += rows * row
        else:
            stop = min(end, (number + 1) * row)
            for offsets, sizes in _within(shape[1:], within, within + stop - first):
                yield (number, *offsets), (1, *sizes)
            first = stop


class Piece(NamedTuple):
    """Numbers of a slice that are a box of the whole tensor.

    Attributes
    ----------
    box : Box
        Their place in the whole.
    run : Box
        The part of the slice's tensor, of numbers that follow one another, to which they belong.
    place : Box
        Their place in that part.
    """

    box: Box
    run: Box
    place: Box


def pieces_of(boxes: Iterable[Box], ranges: Sequence[Sequence[tuple[int, int]]]) -> tuple[Piece, ...]:
    """Return the boxes of a tensor as pieces of a whole one, of which it has these ranges along each axis."""
    found = []
    for run in boxes:
        along = [_cut(*each) for each in zip(run.offsets, run.sizes, ranges, strict=True)]
        for row in product(*along):
            box, place = (Box(tuple(each[n] for each in row), tuple(each[2] for each in row)) for n in (0, 1))
            found.append(Piece(box, run, place))
    return tuple(found)


def _cut(offset: int, size: int, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Return where each part of some indices begins in the whole and among these, and its length."""
    found, before = [], 0
    for first, end in ranges:
        low, high = max(offset - before, 0), min(offset + size - before, end - first)
        if low < high:
            found.append((first + low, before + low - offset, high - low))
        before += end - first
    return found


@dataclass(frozen=True)
class Slice:
    """Some of a tensor's numbers.

    Attributes
    ----------
    values : Tensor
        One axis: the numbers of the first run, row by row, then those of the next.
    pieces : tuple of Piece
        In the order of their runs.
    shape : tuple of int
        Shape of the whole tensor.
    """

    values: Tensor
    pieces: tuple[Piece, ...]
    shape: tuple[int, ...]

    def parts(self) -> Iterator[tuple[Box, Tensor]]:
        """Yield each box of the whole tensor that the slice has, and a writable view of its numbers."""
        runs = list(dict.fromkeys(piece.run for piece in self.pieces))
        rows = self.values.split([run.numbers for run in runs])
        tensors = {run: row.view(run.sizes) for run, row in zip(runs, rows, strict=True)}
        for piece in self.pieces:
            yield piece.box, piece.place.of(tensors[piece.run])

    def at(self, offsets: Sequence[int]) -> Tensor:
        """Return the numbers of the box with these offsets."""
        return next(values for box, values in self.parts() if box.offsets == tuple(offsets))


Tensors = Mapping[str, Tensor | Slice]


@dataclass(frozen=True)
class Stored:
    """Shape and type of a stored tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def write(path: Path, tensors: Tensors) -> None:
    """Write the tensors of every rank; a tensor that several ranks have is written by one of them.

    All ranks of the process group call this. Files are synced to the disk.

    Raises
    ------
    InputError
        On every rank if one of them cannot write.
    """
    try:
        dcp.save(dict(tensors), storage_writer=FileSystemWriter(path), planner=_SavePlanner())
    except CheckpointException as error:
        rank, (cause, _) = next(iter(error.failures.items()))
        raise InputError(f"cannot write checkpoint {path}: rank {rank}: {cause}") from error


def stored(path: Path) -> dict[str, Stored]:
    """Return shape and type of every tensor of a checkpoint, by key.

    Raises
    ------
    InputError
        If its description is missing or damaged.
    """
    try:
        found = {
            key: Stored(tuple(value.size), value.properties.dtype)
            for key, value in Reader(path).read_metadata().state_dict_metadata.items()
            if isinstance(value, TensorStorageMetadata)
        }
        named = sum(prod(value.shape) * value.dtype.itemsize for value in found.values())
        there = sum(file.stat().st_size for file in path.glob("*.distcp"))
        if named > there:
            raise ValueError(f"its tensors would have {named} bytes, and its files have {there}")
        return found
    except Exception as error:  # a damaged pickle raises anything
        raise InputError(f"cannot read checkpoint {path}: {_told(error)}") from error


def read(path: Path, wanted: Tensors) -> None:
    """Fill tensors and slices from a checkpoint. No other rank is needed.

    Raises
    ------
    InputError
        If files are missing or damaged.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        try:
            dcp.load(dict(wanted), storage_reader=Reader(path), planner=_LoadPlanner(), no_dist=True)
        except (Exception, CheckpointException) as error:  # a damaged file raises anything
            raise InputError(f"cannot read checkpoint {path}: {_told(error)}") from error


def _told(error: BaseException) -> str:
    if isinstance(error, CheckpointException):
        error = next(iter(error.failures.values()))[0]
    return in_one_line(error)


class _SavePlanner(DefaultSavePlanner):
    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def create_local_plan(self) -> SavePlan:
        tensors = {key: value for key, value in self.state_dict.items() if isinstance(value, Tensor)}
        items = [each for key, v in self.state_dict.items() if isinstance(v, Slice) for each in _to_write(key, v)]
        self.plan = SavePlan([*create_default_local_save_plan(tensors, self.is_coordinator).items, *items])
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        return _values(self.state_dict[index.fqn], index)


class _LoadPlanner(DefaultLoadPlanner):
    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        self.state_dict, self.metadata, self.is_coordinator = state_dict, metadata, is_coordinator  # torch drops slices

    def create_local_plan(self) -> LoadPlan:
        assert self.metadata is not None
        known = self.metadata.state_dict_metadata
        tensors = {key: value for key, value in self.state_dict.items() if isinstance(value, Tensor)}
        items = create_default_local_load_plan(tensors, self.metadata).items
        for key, value in self.state_dict.items():
            if isinstance(value, Slice):
                chunks = [_chunk(piece.box) for piece in value.pieces]
                items = [*items, *create_read_items_for_chunk_list(key, known[key], chunks)]
        return LoadPlan(items)

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:  # noqa: ARG002  torch calls it
        """Refuse what is no tensor: torch would read it as a pickle, which may call any function."""
        raise ValueError(f"{read_item.dest_index.fqn} is no tensor")

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        return _values(self.state_dict[index.fqn], index)


def _values(value: Tensor | Slice, index: MetadataIndex) -> Tensor:
    if isinstance(value, Tensor):
        return value
    assert index.offset is not None
    return value.at(index.offset)


def _chunk(box: Box) -> ChunkStorageMetadata:
    """Convert a box to torch's type."""
    return ChunkStorageMetadata(torch.Size(box.offsets), torch.Size(box.sizes))


def _to_write(key: str, part: Slice) -> Iterator[WriteItem]:
    properties = TensorProperties.create_from_tensor(part.values)
    for box in (piece.box for piece in part.pieces):
        data = TensorWriteData(_chunk(box), properties, torch.Size(part.shape))
        yield WriteItem(MetadataIndex(key, torch.Size(box.offsets)), WriteItemType.SHARD, tensor_data=data)
