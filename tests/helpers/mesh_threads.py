"""The processes of a mesh as threads of one: what they send to each other is copied."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from threading import Barrier, BrokenBarrierError, Lock, local
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor

from helpers.distributed import mesh_workers
from helpers.distributed.exchange_workers import OF_PARTS, Sums, halves
from pipeplan.core.plan import Plan
from pipeplan.costs.sharding.exchanges import Exchange
from pipeplan.frontend.batch import Batch, call, tensors
from pipeplan.frontend.operators.program import Program
from pipeplan.frontend.workload import Workload
from pipeplan_executor.sharding import ring
from pipeplan_executor.sharding.mesh import layers, moves
from pipeplan_executor.sharding.mesh.layers import MeshLayers
from pipeplan_executor.sharding.mesh.moves import MeshAxes
from pipeplan_executor.sharding.processes import Processes
from pipeplan_executor.sharding.tensor_parallel_group import TensorParallelGroup
from pipeplan_executor.stages.source import converted, draw
from pipeplan_executor.stages.split import Fitted, build_stage, fit
from pipeplan_executor.stages.stage import StageWork
from pipeplan_executor.stages.stage_module import StageModule, evaluating
from pipeplan_executor.train.rank_stages import mesh_layers
from pipeplan_executor.train.reference import materialised

Place = tuple[int, ...]
WAIT = 60


class DeviceMesh:
    """What `MeshAxes` asks a mesh of processes for."""

    def __init__(self, sizes: tuple[int, ...], place: Place) -> None:
        self.shape, self.ndim, self._place = sizes, len(sizes), place

    def get_local_rank(self, axis: int) -> int:
        """The place along an axis."""
        return self._place[axis]

    def get_group(self, axis: int) -> Any:
        """The processes along an axis."""
        return SimpleNamespace(group_name=f"{axis} of {(*self._place[:axis], *self._place[axis + 1 :])}")


class Threads:
    """Stands for torch's collectives: everyone of a group copies what all of it put down."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.sizes, self.places = sizes, list(product(*map(range, sizes)))
        self._mine = local()
        self.axes = {place: MeshAxes(DeviceMesh(sizes, place)) for place in self.places}  # type: ignore[arg-type]
        groups = {group.group_name: n for own in self.axes.values() for group, n in zip(own.groups, sizes, strict=True)}
        self._barriers = {name: Barrier(count) for name, count in groups.items()}
        self._down: dict[str, dict[int, Any]] = {name: {} for name in groups}
        self._sent = {place: Sums() for place in self.places}

    def sent(self) -> Sums:
        """What this process has sent since it asked last, for what the processes of a group have together."""
        found, self._sent[self._mine.place] = self._sent[self._mine.place], Sums()
        return found

    def run(self, do: Callable[[Place], Any]) -> dict[Place, Any]:
        """Call a function for every process at once; of several that fail the cause is raised."""

        def begun(place: Place) -> Any:
            self._mine.place = place
            try:
                return do(place)
            except BaseException:
                for barrier in self._barriers.values():
                    barrier.abort()
                raise

        with (
            patch.object(moves, "_SENT", self),
            patch.object(ring, "shift", self._shift),
            ThreadPoolExecutor(len(self.places)) as pool,
        ):
            made = [pool.submit(begun, place) for place in self.places]
        failed = [error for each in made if (error := each.exception()) is not None]
        for error in sorted(failed, key=lambda error: isinstance(error, BrokenBarrierError)):
            raise error
        return {place: each.result() for place, each in zip(self.places, made, strict=True)}

    def _at(self, name: str) -> int:
        return int(self._mine.place[int(name.split()[0])])

    def _rows(self, own: Tensor, name: str, kind: Exchange) -> list[Tensor]:
        """What each process of a group puts down."""
        down, barrier = self._down[name], self._barriers[name]
        self._sent[self._mine.place] += halves(kind, own.nbytes * (barrier.parties if kind in OF_PARTS else 1))
        down[self._at(name)] = own.clone()
        barrier.wait(WAIT)
        row = [down[number] for number in range(barrier.parties)]
        barrier.wait(WAIT)
        return row

    def _shift(self, parts: Sequence[Tensor], own: ring.Ring) -> Callable[[], list[Tensor]]:
        rows = [self._rows(part, own.group.group_name, Exchange.SHIFT) for part in parts]
        return lambda: [row[own.rank - 1].clone() for row in rows]

    def all_reduce(self, part: Tensor, how: str, name: str) -> Tensor:
        """The sum, or the largest."""
        rows = torch.stack(self._rows(part, name, Exchange.SUM))
        return rows.sum(0) if how == "sum" else rows.amax(0)

    def reduce_scatter_tensor(self, rows: Tensor, _how: str, count: int, name: str) -> Tensor:
        """One's part of the sum."""
        return torch.stack(self._rows(rows, name, Exchange.SCATTER)).sum(0).chunk(count)[self._at(name)].clone()

    def all_gather_into_tensor(self, part: Tensor, _count: int, name: str) -> Tensor:
        """All parts, one behind the other."""
        return torch.cat(self._rows(part, name, Exchange.GATHER))

    def all_to_all_single(self, rows: Tensor, _to: Sequence[int], _of: Sequence[int], name: str) -> Tensor:
        """From each the row for oneself."""
        at = self._at(name)
        return torch.stack([other[at] for other in self._rows(rows, name, Exchange.TURN)])

    def wait_tensor(self, tensor: Tensor) -> Tensor:
        """Return it: it is there."""
        return tensor


@dataclass(frozen=True)
class InDouble:
    """A workload in float64, so that its plans are, too."""

    build: Callable[[], Workload]

    def __call__(self) -> Workload:
        """The workload."""
        workload = self.build()

        def drawn(samples: int, generator: torch.Generator) -> tuple[Batch, Batch]:
            inputs, targets = workload.draw(samples, generator)
            return converted(inputs, torch.float64), converted(targets, torch.float64)

        return replace(workload, module=workload.module.double(), draw=drawn)


class Ran(NamedTuple):
    """The largest relative differences to the unsplit model, of loss and gradients and in evaluation; what was sent."""

    trained: float
    evaluated: float
    sent: mesh_workers.Sent


def ran(plan: Plan, build: Callable[[], Workload], sizes: tuple[int, ...]) -> list[Ran]:
    """What each process makes of one micro-batch of a plan of one stage on a mesh."""
    fitted, threads = fit(plan, build), Threads(sizes)
    batch = draw(fitted.workload, plan.micro_batch, 3)
    given, targets = tuple(tensors(batch[0])), batch[1]
    loss, made, gradients = _unsplit(fitted, *batch)
    with _one_program_for_all():
        stages = {place: _stage(fitted, threads, number) for number, place in enumerate(threads.places)}

        def run(place: Place) -> Ran:
            work, module, own = stages[place]
            work.weights = [1.0]
            work.forward(0, given, targets)
            forward = threads.sent()
            (work.input_gradient if mesh_workers.splits(plan) else work.backward)(0, ())
            backward = threads.sent()
            if mesh_workers.splits(plan):
                work.weight_gradient(0)
            later = threads.sent()
            if own.partial is not None:
                own.partial.sum([(parameter, parameter.grad) for parameter in module.parameters()])
            wrong = [_apart(work.losses[0], loss)]
            for name, parameter in module.named_parameters(remove_duplicate=False):
                if (whole := gradients[name]) is not None:
                    wanted = own.shards[name].of(whole) if name in own.shards else whole
                    wrong.append(_apart(parameter.grad, wanted, float(whole.abs().max())))
            with evaluating([module]):
                work.infer(1, given, targets)
                outputs = fitted.restored(work.infer(2, given, None))
            evaluated = max(_apart(work.losses[1], loss), _apart(outputs, made))
            return Ran(max(wrong), evaluated, (forward, backward, later))

        return list(threads.run(run).values())


def _unsplit(fitted: Fitted, inputs: Batch, targets: Batch) -> tuple[Tensor, Tensor, dict[str, Any]]:
    whole = materialised(fitted)
    made = call(whole, inputs)
    loss = fitted.workload.loss(made, targets)
    loss.backward()
    return loss.detach(), made.detach(), {name: p.grad for name, p in whole.named_parameters(remove_duplicate=False)}


def _stage(fitted: Fitted, threads: Threads, number: int) -> tuple[StageWork, StageModule, MeshLayers]:
    """The stage of one process."""
    place, cpu = threads.places[number], torch.device("cpu")
    mesh: Any = DeviceMesh(threads.sizes, place)
    group = TensorParallelGroup(Processes((prod(threads.sizes),)), 0, number, mesh, threads.axes[place])

    def loss(outputs: tuple[Tensor, ...], targets: Batch) -> Tensor:
        return fitted.workload.loss(fitted.restored(outputs), targets)

    own = mesh_layers(fitted, 0, group, None, cpu, loss)
    module = build_stage(fitted, 0, shards=own.shards, sharded_layers=own)
    split = {0} if mesh_workers.splits(fitted.plan) else set[int]()
    return StageWork(module, fitted.boundaries[0], loss, split), module, own


@contextmanager
def _one_program_for_all() -> Iterator[None]:
    """Make the program of a layer once: for all processes, and by one of them at a time."""
    known: dict[Any, Program] = {}
    lock, make = Lock(), layers.program

    def program(*given: Any, **options: Any) -> Program:
        name, mode = given[0], given[5]
        with lock:
            if (name, mode, *options) not in known:
                known[name, mode, *options] = make(*given, **options)
            return known[name, mode, *options]

    with patch.object(layers, "program", program):
        yield


def _apart(found: Tensor | None, wanted: Tensor, scale: float | None = None) -> float:
    assert found is not None
    largest = float(wanted.abs().max()) if scale is None else scale
    return float((found.detach() - wanted).abs().max()) / (largest or 1) if wanted.numel() else 0.0
