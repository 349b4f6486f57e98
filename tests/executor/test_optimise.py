"""Optimisers of stages: the user's own, on whole parameters or pieces of them, within the planned memory."""

import warnings
from functools import partial
from itertools import product
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from pipeplan.core.errors import InputError
from pipeplan.frontend.optimizers import build_optimizer
from pipeplan.frontend.profile.allocator import OWN_BLOCK
from pipeplan_executor.optim import optimise
from pipeplan_executor.optim.flat import Flat, Piece
from pipeplan_executor.optim.optimise import ELEMENTWISE, StageOptimizer, restrict_to_pieces
from pipeplan_executor.optim.reduction import ShardedNames, flattened
from pipeplan_executor.optim.updates import Updates, state_excess, total_norm

CHOICES = {
    "sgd": lambda named: torch.optim.SGD(named, lr=0.1, momentum=0.9, weight_decay=0.1),
    "adamw": lambda named: torch.optim.AdamW(named, lr=0.1, amsgrad=True),
    "nadam": lambda named: torch.optim.NAdam(named, lr=0.1),
    "radam": lambda named: torch.optim.RAdam(named, lr=0.1),
    "adamax": lambda named: torch.optim.Adamax(named, lr=0.1),
    "rmsprop": lambda named: torch.optim.RMSprop(named, lr=0.1, centered=True, momentum=0.5),
    "rprop": lambda named: torch.optim.Rprop(named, lr=0.1),
    "adadelta": lambda named: torch.optim.Adadelta(named, lr=0.1),
    "asgd": lambda named: torch.optim.ASGD(named, lr=0.1, t0=1),
}


def in_two(name: str, parameter: nn.Parameter, at: int) -> list[Piece]:
    """Both pieces of a parameter, as two replicas would have them; their numbers are the parameter's own."""
    flat = parameter.detach().view(-1)
    edges = [(0, at), (at, parameter.numel())]
    return [Piece(name, parameter, nn.Parameter(flat[a:b]), a, b) for a, b in edges]


@pytest.mark.parametrize("choice", CHOICES)
def test_pieces_are_updated_like_the_whole(choice: str) -> None:
    """Every optimiser that accepts pieces gives the numbers that it gives for whole parameters."""
    torch.manual_seed(0)
    whole = nn.Parameter(torch.randn(4, 3, dtype=torch.float64))
    apart = nn.Parameter(whole.detach().clone())
    pieces = in_two("a", apart, 5)
    plain = CHOICES[choice]([("a", whole)])
    shares = []
    for piece in pieces:
        shares.append(CHOICES[choice]([("a", apart)]))
        restrict_to_pieces(shares[-1], [piece])
        assert shares[-1].param_groups[0]["param_names"] == ["a"]
    assert isinstance(plain, ELEMENTWISE)
    for _ in range(4):
        whole.grad = torch.randn_like(whole)
        for piece, share in zip(pieces, shares, strict=True):
            piece.updated.grad = whole.grad.view(-1)[piece.start : piece.end].clone()
            share.step()
        plain.step()
    assert torch.equal(whole, apart)


def test_groups_keep_their_pieces() -> None:
    """A piece goes into the group of its parameter, and groups without any stay, empty."""
    a, b = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([{"params": [("a", a)], "lr": 0.5}, {"params": [("b", b)], "lr": 0.25}])
    piece = in_two("b", b, 2)[1]
    restrict_to_pieces(optimizer, [piece])
    assert [group["params"] for group in optimizer.param_groups] == [[], [piece.updated]]
    assert [group["param_names"] for group in optimizer.param_groups] == [[], ["b"]]
    piece.updated.grad = torch.ones(2)
    optimizer.step()
    assert (a.tolist(), b.tolist()) == ([1] * 4, [1, 1, 0.75, 0.75])


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda p: torch.optim.Adafactor([p]), "Adafactor is not known to update each number independently"),
        (lambda p: torch.optim.LBFGS([p]), "elementwise = True"),
        (lambda p: _Eager([p], lr=0.1), "begin without state"),
    ],
)
def test_what_cannot_work_on_pieces_is_refused(build: object, said: str) -> None:
    """Optimisers that look at rows, columns or norms, or have state from the start, are refused with advice."""
    parameter = nn.Parameter(torch.ones(4, 4))
    with pytest.raises(InputError, match=said):
        restrict_to_pieces(build(parameter), in_two("a", parameter, 7))


class _Eager(torch.optim.SGD):
    """Has state before its first step."""

    def __init__(self, parameters: list[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, lr=lr)
        self.state[parameters[0]]["seen"] = torch.zeros(4, 4)


def test_an_own_optimiser_may_say_that_it_goes_by_numbers() -> None:
    """A user's optimiser class gets pieces if it declares itself elementwise."""

    class Own(torch.optim.Optimizer):
        elementwise = True

        def step(self) -> None:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.data.sub_(group["lr"] * parameter.grad)

    parameter = nn.Parameter(torch.ones(4))
    optimizer = Own([("a", parameter)], {"lr": 0.5})
    restrict_to_pieces(optimizer, in_two("a", parameter, 1)[:1])
    assert [piece.numel() for piece in optimizer.param_groups[0]["params"]] == [1]


def test_a_stage_gives_its_parameters_with_names() -> None:
    """The function sees each trainable parameter once, behind its name, and the schedule moves on with updates."""
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[1].weight = module[0].weight
    module[0].bias.requires_grad_(False)
    seen = []

    def build(named: list[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        seen.extend(name for name, _ in named)
        return torch.optim.SGD(named, lr=1.0)

    stage = StageOptimizer(module, build, schedule=lambda optimizer: lr_scheduler.StepLR(optimizer, 1, 0.5))
    assert seen == [piece.name for piece in stage.pieces] == ["0.weight", "1.bias"]
    before = module[0].weight.detach().clone()
    for _ in range(2):
        module[0].weight.grad.fill_(1.0)
        stage.update()
    assert torch.allclose(before - module[0].weight, torch.full((2, 2), 1.5))
    assert not module[0].weight.grad.any()


def test_a_stage_without_parameters_has_no_optimiser() -> None:
    """Poolings have nothing to update, and the function is not called."""
    stage = StageOptimizer(nn.MaxPool2d(2), lambda named: pytest.fail(str(named)))
    stage.begin()
    stage.reduce()
    stage.update()
    assert stage.optimizer is None
    assert stage.state == {}


@pytest.mark.parametrize(("numbers", "times"), [(OWN_BLOCK // 4, 2), (OWN_BLOCK // 4 - 1, 0)])
def test_free_memory_is_returned_before_large_updates(
    numbers: int, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A parameter whose temporaries are blocks of their own finds the heap's free memory returned, at every update."""
    returned: list[bool] = []
    module = nn.Module()
    module.weight = nn.Parameter(torch.zeros(numbers))
    stage = StageOptimizer(module, partial(build_optimizer, "sgd", rate=1.0))
    module.weight.grad.fill_(1.0)
    monkeypatch.setattr(optimise, "return_free_memory", lambda: returned.append(not module.weight.any()))
    stage.update()
    stage.update()
    assert returned == [True, False][:times]  # the first time before the numbers change
    assert (module.weight == -1).all()


def test_a_schedule_that_waits_for_a_number_is_refused() -> None:
    """ReduceLROnPlateau never gets its metric; it is refused with advice."""
    with pytest.raises(InputError, match=r"pipeline\.updates"):
        StageOptimizer(
            nn.Linear(2, 2), partial(build_optimizer, "sgd", rate=0.1), schedule=lr_scheduler.ReduceLROnPlateau
        )


def test_more_state_than_planned_is_warned_of_once() -> None:
    """The first update of a stage warns of a larger state than planned, later ones do not."""
    stage = StageOptimizer(nn.Linear(4, 4), partial(build_optimizer, "adam", rate=0.1))
    updates = Updates({3: stage}, "sgd", torch.device("cpu"))
    with pytest.warns(UserWarning, match="stage 3: Adam keeps"):
        updates.update(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        updates.update(3)


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan")])
def test_limits_that_are_none_are_refused(limit: float) -> None:
    """Gradients are clipped to a positive norm."""
    with pytest.raises(InputError, match="positive"):
        Updates({}, "sgd", torch.device("cpu"), limit)


def test_norms_of_16_bit_gradients_do_not_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of two numbers may be more than 16 bits hold; parts that another process counts are left out."""
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda _, group: None)
    part = SimpleNamespace(counts=True, sums=[torch.tensor([60000.0, 45000.0], dtype=torch.float16)])
    other = SimpleNamespace(counts=False, sums=[torch.ones(3)])
    assert float(total_norm([part, other], torch.device("cpu"))) == pytest.approx(75000, rel=1e-3)


@pytest.mark.parametrize(
    ("used", "planned", "more"),
    [("sgd", "momentum", False), ("adam", "adam", False), ("adam", "sgd", True), ("adam", "momentum", True)],
)
def test_more_state_than_planned_is_told(used: str, planned: str, more: bool) -> None:
    """An optimiser's state is compared with the planned one, and a larger one is reported in bytes."""
    stage = StageOptimizer(nn.Linear(16, 16), partial(build_optimizer, used, rate=0.1))
    stage.update()
    excess = state_excess(stage, planned)
    assert (excess is not None) == more
    if more:
        assert planned in excess
        assert "2.1" in excess  # KiB: two numbers for each of 272


@pytest.mark.parametrize("rank", [0, 1])
def test_sums_that_were_not_used_stay_with_their_owner(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under ZeRO-1 a replica keeps the sum of its share for the next one, and drops what it has sent to others."""
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda _: 2)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda _: rank)
    own = Flat([("w", nn.Parameter(torch.ones(64)))], SimpleNamespace(), True)  # type: ignore[arg-type]
    own.gradients.fill_(1)
    own._summed = True
    own.begin()
    assert [float(part.sum()) for part in own.gradients.chunk(2)] == [32 * (rank == 0), 32 * (rank == 1)]


@pytest.mark.parametrize("zero1", [False, True])
@pytest.mark.parametrize(("replica", "copy"), [(0, 0), (0, 1), (1, 2)])
def test_copies_of_weights_count_once_among_all_stages(
    replica: int, copy: int, zero1: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In norms and in unused sums: by the first of all ranks that have a copy, not by the first of each stage.

    Each has the whole sum of a copied weight, though replicas share out its update.
    """
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda _: 2)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda group: group.rank)
    groups: list[Any] = [SimpleNamespace(rank=replica), SimpleNamespace(rank=copy)]
    own = Flat([("w", nn.Parameter(torch.ones(64)))], groups[0], zero1, groups[1])
    own.gradients.fill_(1)
    own._summed = True
    assert own.counts == (copy == 0)
    own.begin()
    assert float(own.gradients.sum()) == 64 * (copy == 0)


@pytest.mark.parametrize("axes", [(), (0,), (1,), (0, 1)])
def test_each_part_of_a_parameter_counts_once_in_the_norm(axes: tuple[int, ...]) -> None:
    """Of the processes of a mesh that have the same part, along axes that do not split it, the first one counts it."""
    sizes = (2, 3)
    counting = [place for place in product(*map(range, sizes)) if ShardedNames(places=place).counts(set(axes))]
    assert [tuple(place[k] for k in axes) for place in counting] == [*product(*(range(sizes[k]) for k in axes))]


@pytest.mark.parametrize("seed", range(4))
def test_the_norm_of_a_mesh_is_that_of_the_whole_parameters(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of a team, with parameters split along any axes of their mesh or none, count each number once."""
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda _, group: None)
    random, square = Random(seed), 0.0
    sizes = random.choice([(3,), (2, 3), (2, 2)])
    axes = {f"w{i}": frozenset(k for k in range(len(sizes)) if random.random() < 0.5) for i in range(5)}
    whole = {name: torch.randn(sizes, dtype=torch.float64) for name in axes}
    for places in product(*map(range, sizes)):
        parts = {}
        for name, split in axes.items():
            part = whole[name][tuple(place if k in split else slice(None) for k, place in enumerate(places))]
            parts[name] = nn.Parameter(part.clone())
        flats = flattened(nn.ParameterDict(parts), None, False, sharded_names=ShardedNames(axes, places))
        for flat in flats:
            for _, parameter in flat.named:
                parameter.grad.copy_(parameter.detach())
        square += float(total_norm(flats, torch.device("cpu"))) ** 2
    assert square == pytest.approx(sum(float(each.square().sum()) for each in whole.values()))
