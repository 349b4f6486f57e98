"""Layers on meshes whose processes are threads: gradients, losses and outputs are those of the unsplit model."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import product

import pytest
import torch
from torch import Tensor, nn

from helpers.distributed import mesh_workers, vocabulary_workers
from helpers.distributed.exchange_workers import plan_of
from helpers.distributed.models import tiny_beside, tiny_convolutions, tiny_stages
from helpers.mesh_threads import InDouble, Place, Threads, ran
from helpers.quick import thinned
from pipeplan.core.strategies import BY_HEADS, BY_KEYS, BY_RING, PARTIAL, WHOLE, Placements
from pipeplan.frontend.capture import Stages, capture_layers
from pipeplan.frontend.operators.find import named_weights
from pipeplan.frontend.operators.record import record
from pipeplan.frontend.workload import Workload
from pipeplan.schedules.alternate import one_forward_one_backward
from pipeplan_executor.sharding.declared import TensorParallel
from pipeplan_executor.sharding.mesh import calls, moves, shapes
from pipeplan_executor.sharding.mesh import whole as ends_of_whole
from pipeplan_executor.sharding.mesh.ends import mesh_part
from pipeplan_executor.sharding.mesh.programs import program
from pipeplan_executor.stages.on_meshes import on_meshes
from pipeplan_executor.stages.split import fit
from pipeplan_executor.zoo import decoder

EXACT = 1e-11
ONE = one_forward_one_backward((1,), 1, (1,))


def of_sixths(tied: bool = False) -> Workload:
    """A decoder of a block whose heads, tokens, features and words two by three processes can share out."""
    return decoder(blocks=1, width=24, heads=6, vocabulary=24, length=6, hidden=36, tied=tied)


def frozen() -> Workload:
    """The same, of which the block's matrices are not trained."""
    workload = of_sixths()
    for name, parameter in workload.module.named_parameters():
        parameter.requires_grad_(not name.startswith("block0") or "norm" in name)
    return workload


Case = tuple[Callable[[], Workload], tuple[int, ...], int, dict[str, object]]
CASES: tuple[Case, ...] = (
    (tiny_beside, (2, 2), 0, {}),
    (tiny_beside, (2,), 6, {"gathers": False}),
    (tiny_stages, (2,), 3, {"gathers": False}),
    (tiny_stages, (2,), 0, {}),
    (tiny_convolutions, (2,), 0, {}),
    (tiny_convolutions, (2, 2), 1, {}),
    (of_sixths, (3,), 0, {}),
    (of_sixths, (2, 3), 1, {}),
    (of_sixths, (3, 2), 2, {"methods": (BY_RING, BY_HEADS), "gathers": False}),
    (of_sixths, (2, 3), 3, {"methods": (BY_RING, BY_KEYS), "gathers": False}),
    (of_sixths, (3, 2), 4, {"methods": (BY_KEYS, BY_HEADS)}),
    (of_sixths, (2, 3), 5, {"methods": (BY_HEADS, BY_HEADS)}),
    (vocabulary_workers.many, (2, 2), 12, {"losses": (True, True)}),
    (partial(of_sixths, True), (3,), 6, {}),
    (frozen, (2,), 7, {}),
    (vocabulary_workers.ignoring, (2,), 8, {"losses": (True,)}),
    (vocabulary_workers.weighted, (2,), 9, {"losses": (True,)}),
    (vocabulary_workers.shifted, (2,), 10, {"losses": (True,)}),
)


def name_of(value: object) -> str | None:
    """For the names of tests."""
    return value.__name__ if callable(value) and hasattr(value, "__name__") else None


@pytest.mark.parametrize(("number", "case"), thinned(dict(enumerate(CASES)), 3).items())
def test_layers_on_a_mesh_compute_what_the_unsplit_model_does(number: int, case: Case) -> None:
    """By strategies drawn for each operator, recomputed or not, with joined and split backwards, and in evaluation."""
    build, (sizes, seed, options) = InDouble(case[0]), case[1:]
    own = mesh_workers.on_mesh(build, sizes, ONE, seed, **options)  # type: ignore[arg-type]
    own = mesh_workers.treated(own, again=number % 4 > 1, split=number % 2 == 0)
    for found in ran(own.plan, build, sizes):
        assert max(found.trained, found.evaluated) < EXACT, found
        mesh_workers.check_sent(own, found.sent)


class Passing(nn.Module):
    """Passes on what it reads, or that times 1, beside a product of it."""

    def __init__(self, trains: bool) -> None:
        super().__init__()
        self.widen, self.trains = nn.Linear(8, 8), trains

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x * 1.0 if self.training and not self.trains else x
        return x, self.widen(x)


class Adding(nn.Module):
    """Adds two tensors."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y.tanh()


def passing(trains: bool) -> Workload:
    """A layer that passes on what it reads, in training or only in evaluation, between two others."""

    def draw(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x, y = (torch.randn(samples, 6, 8, generator=generator) for _ in range(2))
        return x, y

    return Workload(Stages(nn.Linear(8, 8), Passing(trains), Adding()), draw, nn.functional.mse_loss)


@pytest.mark.parametrize("trains", [True, False])
def test_a_tensor_that_arrives_in_parts_and_is_passed_on_leaves_whole(trains: bool) -> None:
    """If the plan has it whole behind the layer: also where the layer passes it on only in evaluation."""
    build = InDouble(partial(passing, trains))
    plan = plan_of(build, {}, lambda layers: layers[:1])
    fitted = on_meshes(fit(plan, build), TensorParallel(2), None, torch.device("cpu"))
    assert [own.output for _, own in fitted.plan.strategies] == [(1,), (), ()]
    for found in ran(fitted.plan, build, (2,)):
        assert max(found.trained, found.evaluated) < EXACT, found


LENGTHS, GROUPS = (12, 24), ((), (2, 1, 1))


def cut(whole: Tensor, placements: Placements, place: Place, sizes: tuple[int, ...]) -> Tensor:
    """The part of a process, of a sum the whole: of each group of a dimension its part."""
    for dimension, groups in enumerate(GROUPS):
        rows = torch.arange(whole.shape[dimension])
        unit = len(rows) // sum(groups or (1,))
        of_groups = rows.split([unit * each for each in groups or (1,)])
        for axis, placement in enumerate(placements):
            if placement == dimension:
                of_groups = tuple(each.chunk(sizes[axis])[place[axis]] for each in of_groups)
        whole = whole.index_select(dimension, torch.cat(of_groups))
    return whole


@pytest.mark.parametrize("sizes", [(2, 3), (3, 1)])
def test_tensors_get_all_placements_from_all_others(sizes: tuple[int, ...]) -> None:
    """Also nested ones of a dimension, of one in groups, and parts of sums: all numbers arrive at their place."""
    threads, entries = Threads(sizes), (WHOLE, PARTIAL, 0, 1)
    shape = moves.Shape(LENGTHS, GROUPS, LENGTHS)
    drawn = {place: torch.randn(LENGTHS, dtype=torch.float64) for place in threads.places}

    def summed(placements: Placements, place: Place) -> Tensor:
        """What a process has parts of: the sum over those along axes of sums; the same on all others."""
        return sum(
            tensor
            for other, tensor in drawn.items()
            if all(p == PARTIAL or k == 0 for p, k in zip(placements, other, strict=True))
        )

    def part(placements: Placements, place: Place) -> Tensor:
        kept = tuple(k if p == PARTIAL else 0 for p, k in zip(placements, place, strict=True))
        return cut(drawn[kept], placements, place, sizes)

    for source, target in product(product(entries, repeat=2), repeat=2):
        if any(b == PARTIAL and a not in (WHOLE, PARTIAL) for a, b in zip(source, target, strict=True)):
            continue  # nothing asks for a sum of parts of a tensor
        found = threads.run(
            lambda place, a=source, b=target: moves.moved(part(a, place), threads.axes[place], a, b, shape)
        )
        for place in threads.places:
            row = [
                found[other]
                for other in threads.places
                if all(p == PARTIAL or k == mine for p, k, mine in zip(target, other, place, strict=True))
            ]
            wanted = cut(summed(source, place), target, place, sizes)
            assert torch.allclose(sum(row), wanted), (source, target, place)


class Views(nn.Module):
    """Views of a tensor."""

    def __init__(self, of: Callable[[Tensor], tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.of = of

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.of(x)


def within(whole: Tensor, part: Tensor) -> Tensor:
    """The rows, columns, … of a tensor that have numbers of a part."""
    mask = torch.isin(whole.contiguous(), part.contiguous())
    for dimension in range(whole.dim()):
        others = [n for n in range(whole.dim()) if n != dimension]
        kept = (mask.any(others) if others else mask).nonzero().flatten()
        whole, mask = whole.index_select(dimension, kept), mask.index_select(dimension, kept)
    assert mask.all()
    return whole


@pytest.mark.parametrize(
    "of",
    [
        lambda x: (x[:, 8:12], x[:, -8:-4], x[:, -4:], x[:, :8], x[:, 8:-4]),
        lambda x: x.split([8, 4, 4], -1),
        lambda x: (*x[:, 8:].chunk(2, dim=1), *torch.split(x[:, 8:], 4, dim=1)),
        lambda x: (x[:, :8].reshape(6, 4, 2), x[:, 8:].unflatten(1, (2, 4)).transpose(0, 1)),
        lambda x: (x[1:4], x[-2:], x[::2], x[1::3].unsqueeze(0).expand(3, -1, -1), *x.split(4), x.detach()),
    ],
)
def test_views_of_parts_are_parts_of_views(of: Callable[[Tensor], tuple[Tensor, ...]]) -> None:
    """Of a dimension whose groups are divided, and of others: slices, splits and shapes have the same numbers."""
    whole = torch.arange(96.0).reshape(6, 16)
    seen = record(Views(of), (whole,), nullcontext, None, ())
    for part in moves.divided(whole, 1, 2, (2, 1, 1)):
        known = {id(seen.inputs[0]): (whole, part)}
        for call in seen.calls:
            tensor, own = known[id(call.given[0])]
            made = call.operation(tensor, *call.args[1:], **call.kwargs)
            for number, result in enumerate(made if isinstance(made, tuple | list) else (made,)):
                wanted = within(result, own)
                found = calls.view(call, number, own, tuple(wanted.shape))
                assert torch.equal(found, wanted), (call.name, number)
                known[id(call.made[number])] = result, found
        assert len(known) > 3


@pytest.mark.parametrize("shape", [(2, 6, 4), (2, 1, 6, 4), (1, 6, 1, 4)])
def test_tensors_between_layers_are_split_along_their_long_axes(shape: tuple[int, ...]) -> None:
    """Placements do not count axes of length 1 but that of the samples: parts are gathered as they were cut."""
    threads, whole = Threads((2,)), torch.randn(shape, requires_grad=True)
    gradient = torch.randn(shape)
    long = [axis for axis, length in enumerate(shape) if length > 1 or axis == 0]

    def run(placement: int, place: Place) -> tuple[Tensor, Tensor]:
        axes, (number,) = threads.axes[place], place
        (own,) = ends_of_whole.left((whole,), (placement,), axes)
        (back,) = ends_of_whole.entered((own,), (placement,), axes)
        (given,) = torch.autograd.grad(back, whole, gradient)
        assert torch.equal(own, whole.chunk(2, long[placement])[number])
        assert mesh_part(whole.to("meta"), (placement,), (2,)).shape == own.shape
        return back, given

    for placement in (1, 2):
        for back, given in threads.run(partial(run, placement)).values():
            assert torch.equal(back, whole) and torch.equal(given, gradient)


class Joined(nn.Module):
    """A product whose outputs are three groups, each of which is viewed by heads."""

    def __init__(self, outputs: int, groups: Callable[[Tensor], tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.all, self.groups = nn.Linear(8, outputs, bias=False), groups

    def forward(self, x: Tensor) -> Tensor:
        one, two, three = (each.transpose(1, 2).exp().sum(1) for each in self.groups(self.all(x)))
        return one + two + three


@pytest.mark.parametrize("dimension", range(3))
@pytest.mark.parametrize(
    ("outputs", "groups"),
    [
        (16, lambda y: tuple(each.unflatten(-1, (-1, 2)) for each in y.split([8, 4, 4], -1))),
        (24, lambda y: y.unflatten(-1, (3, 4, 2)).unbind(2)),
        (24, lambda y: tuple(each.reshape(4, 6, 4, 2) for each in y.chunk(3, -1))),
    ],
)
def test_parts_of_views_have_the_shapes_of_their_numbers(
    outputs: int, groups: Callable[[Tensor], tuple[Tensor, ...]], dimension: int
) -> None:
    """Of what an operator makes and of all its views: what a process has of each follows from the part it has."""
    module, inputs = nn.Sequential(Joined(outputs, groups), nn.Linear(2, 2)).to("meta"), torch.empty(4, 6, 8).to("meta")
    sequence = capture_layers(module, inputs)
    weights = named_weights(module, sequence)
    own = program("0", sequence.layers[0], (inputs,), weights[0], nullcontext, True)
    shape, threads = shapes.shapes_of(own)["all"], Threads((2,))
    whole, views = torch.arange(24.0 * outputs).reshape(4, 6, outputs), 0
    for place, part in enumerate(moves.divided(whole, dimension, 2, shape.groups[dimension])):
        axes, known = threads.axes[(place,)], dict[int, tuple[Tensor, Tensor]]()
        assert shapes.own_lengths(shape, (dimension,), axes) == part.shape
        for step in own.steps:
            if step.call is None or step.views[0] is None or step.views[0].source.name != "all":
                continue
            root = known.get(id(step.call.given[0]))
            for number, (made, view) in enumerate(zip(step.call.made, step.views, strict=True)):
                assert view is not None
                if root is None:
                    result, taken = whole.reshape(made.shape), None
                else:
                    found = step.call.operation(root[0], *step.call.args[1:], **step.call.kwargs)
                    result, taken = (found[number] if isinstance(found, tuple | list) else found), root[1]
                wanted = within(result, part)
                assert shapes.own_shape(view, shape, (dimension,), axes) == wanted.shape
                assert taken is None or torch.equal(calls.view(step.call, number, taken, tuple(wanted.shape)), wanted)
                known[id(made)] = result, wanted
                views += 1
    assert views > 10
