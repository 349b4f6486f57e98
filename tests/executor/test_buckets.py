"""Buckets of gradients without a network: what has left when, in the last backward of a stage."""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from helpers.stages import stage_of
from pipeplan.core.errors import PlanError
from pipeplan.core.pipeline import Bucket
from pipeplan.core.priority import Priority, Send
from pipeplan.core.schedule import Schedule
from pipeplan.frontend.optimizers import build_optimizer
from pipeplan_executor.optim.buckets import Buckets
from pipeplan_executor.optim.flat import Flat
from pipeplan_executor.optim.optimise import StageOptimizer
from pipeplan_executor.optim.stage_optimizers import _buckets
from pipeplan_executor.zoo.decoder import Block

WIDTH = 8


class Odd(nn.Module):
    """Layer with a parameter that it never uses."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        return self.used(x).tanh()


class Again(nn.Module):
    """Layer that runs twice under torch's reentrant checkpoint, which accumulates its gradient twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        for _ in range(2):
            x = checkpoint(self.inner, x, use_reentrant=True).tanh()
        return x


class Low(nn.Module):
    """Layer whose parameters are in another format."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        return self.inner(x.float()).to(x.dtype)


def chain() -> dict[str, nn.Module]:
    """Four layers with parameters, and one without."""
    layers = {"a": nn.Linear(WIDTH, WIDTH), "b": nn.Tanh(), "c": Block(WIDTH, 2, 16), "d": nn.LayerNorm(WIDTH)}
    return {name: layer.double() for name, layer in (layers | {"e": nn.Linear(WIDTH, WIDTH)}).items()}


def shared() -> dict[str, nn.Module]:
    """The same, where first and last layer share a matrix."""
    layers = chain()
    layers["e"].weight = layers["a"].weight
    return layers


def mixed() -> dict[str, nn.Module]:
    """The same with a layer in another format, which is stored separately."""
    return chain() | {"d": Low()}


class Watched:
    """A stage with buckets, and the log of one step: gradients that have left, at the time when they do."""

    def __init__(
        self, layers: dict[str, nn.Module], sizes: list[int], patch: pytest.MonkeyPatch, split: bool, again: tuple[str]
    ) -> None:
        torch.manual_seed(3)
        self.inputs = torch.randn(3, 2, 4, WIDTH, dtype=torch.float64)
        numbers = {0, 1, 2} if split else set()
        self.work, module = stage_of(layers, (self.inputs[0].requires_grad_(),), recompute=again, split=numbers)
        self.optimizer = StageOptimizer(module, partial(build_optimizer, "sgd", rate=0.1))
        self.buckets = Buckets(module.layers, sizes, self.optimizer.parts, 2)
        self.split, self.log, self.ends = split, [], False
        patch.setattr(Flat, "leave", lambda part, start: self._leave(part, start))

    def _leave(self, part: Flat, start: int) -> None:
        self.log.append((self.ends, self.optimizer.parts.index(part), start, part.gradients.clone()))

    def run(self, buckets: Buckets | None) -> list[Tensor]:
        """Run three micro-batches, and return all gradients."""
        self.optimizer.buckets = self.work._buckets = buckets
        self.optimizer.begin()
        for number, given in enumerate(self.inputs):
            (output,) = self.work.forward(number, (given.detach(),), None)
            gradient = (torch.cos(output),)
            if self.split:
                self.work.input_gradient(number, gradient)
                self.work.weight_gradient(number)
            else:
                self.work.backward(number, gradient)
        self.ends = True
        found = [part.gradients.clone() for part in self.optimizer.parts]
        self.optimizer.reduce()
        self.optimizer.skip()
        self.ends = False
        return found


def log_of(
    build: Callable[[], dict[str, nn.Module]], patch: pytest.MonkeyPatch, split: bool, again: tuple[str, ...]
) -> list[tuple[bool, int, int, Tensor]]:
    """Run a step; check that gradients are those without buckets, and complete when they leave; return the log."""
    watched = Watched(build(), [1, 2, 1, 1], patch, split, again)
    expected = watched.run(None)
    assert all(ends for ends, *_ in watched.log)
    watched.log.clear()
    found = watched.run(watched.buckets)
    assert all(map(torch.equal, found, expected))
    for number, gradients in enumerate(found):
        own = [(start, then) for _, part, start, then in watched.log if part == number]
        starts = [start for start, _ in own]
        assert starts == sorted(starts, reverse=True)
        assert starts[-1] == 0
        assert all(torch.equal(then[start:], gradients[start:]) for start, then in own)
    return watched.log


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("again", [(), ("c", "e"), ("a", "b", "c", "d", "e")])
@pytest.mark.parametrize("build", [chain, shared, mixed])
def test_buckets_leave_while_the_last_backward_runs(
    build: Callable[[], dict[str, nn.Module]], split: bool, again: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last layers' gradients are complete and leave before those of the first layers exist; nothing is left to R.

    The third bucket has no parameters of its own, and a matrix that two layers share leaves with the first of them.
    """
    torch.manual_seed(1)
    log = log_of(build, monkeypatch, split, again)
    during = [(start, then) for ends, part, start, then in log if not (ends or part)]
    assert len(during) == 4
    first, then = during[0]
    assert first > 0
    assert not torch.equal(then[: WIDTH * WIDTH], during[-1][1][: WIDTH * WIDTH])  # the first layer's matrix


@pytest.mark.parametrize("split", [False, True])
def test_an_unused_parameter_keeps_its_bucket(split: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bucket and those after it leave at R, in order; delayed gradients show that none is to come."""
    log = log_of(lambda: chain() | {"d": Odd().double()}, monkeypatch, split, ())
    assert [ends for ends, *_ in log] == ([False] * 4 + [True] if split else [False] + [True] * 4)


def test_gradients_that_come_too_late_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reentrant checkpoint accumulates one gradient twice; the second one would be missing in the sum."""
    watched = Watched({"a": nn.Linear(WIDTH, WIDTH).double(), "b": Again().double()}, [1, 1], monkeypatch, False, ())
    with pytest.raises(PlanError, match="use_reentrant=False"):
        watched.run(watched.buckets)


@pytest.mark.parametrize(
    ("backwards", "last"), [("0B0 0B1 0B2", 2), ("0B2 0B0 0B1", 1), ("0I2 0I0 0I1 0W1 0W2 0W0", 0)]
)
def test_buckets_leave_in_the_last_backward_of_the_list(backwards: str, last: int) -> None:
    """Whatever its micro-batch: what later backwards add would miss the sums."""
    _, module = stage_of(chain(), (torch.randn(2, 4, WIDTH, dtype=torch.float64, requires_grad=True),))
    optimizer = StageOptimizer(module, partial(build_optimizer, "sgd", rate=0.1))
    priced = SimpleNamespace(buckets=(Bucket(2, 0, 1), Bucket(3, 0, 1)))
    schedule = Schedule.from_text("by hand", [f"0F0 0F1 0F2 {backwards} 0R 0U"])
    plan = SimpleNamespace(pipeline=SimpleNamespace(stages=[priced]), schedule=schedule, zero=0, priority=())
    found = _buckets(plan, 0, 0, {0: module}, optimizer)  # type: ignore[arg-type]
    assert found is not None and found.last == last


def test_stages_that_share_ranks_have_no_order() -> None:
    """A rank would begin the sums of two stages in an order of its own."""
    layers, given = chain(), torch.randn(2, 4, WIDTH, dtype=torch.float64, requires_grad=True)
    _, module = stage_of(layers, (given,))
    optimizer = StageOptimizer(module, partial(build_optimizer, "sgd", rate=0.1))
    stages = [SimpleNamespace(buckets=(), layers=tuple(layers))] * 2
    orders = (Priority(1, tuple(Send(name, 1, 0, 1, 0) for name in layers)),) * 2
    schedule = Schedule.from_text("by hand", ["0F0 1F0 1B0 0B0 0R 1R 0U 1U"])
    plan = SimpleNamespace(
        pipeline=SimpleNamespace(stages=stages), stages=stages, schedule=schedule, zero=0, priority=orders
    )
    with pytest.raises(PlanError, match="shares ranks"):
        _buckets(plan, 0, 0, {0: module}, optimizer)  # type: ignore[arg-type]


IN_TURN = "0F0 1F0 1B0 0B0 0R 1R 0U 1U"
"""A list of two stages on a rank, whose last backwards end in the order of their sums."""


def two_stages(order: str, shared: bool = False) -> tuple[Buckets | None, Buckets | None]:
    """Buckets of the later and the earlier stage of two on a rank, of two replicas; ``shared``: they share a matrix."""
    every = [chain(), chain()]
    if shared:
        every[1]["a"].weight = every[0]["a"].weight
    given = (torch.randn(2, 4, WIDTH, dtype=torch.float64, requires_grad=True),)
    modules = {number: stage_of(layers, given)[1] for number, layers in enumerate(every)}
    optimizers = [StageOptimizer(module, partial(build_optimizer, "sgd", rate=0.1)) for module in modules.values()]
    stages = [SimpleNamespace(buckets=own) for own in ((Bucket(2, 0, 1), Bucket(3, 0, 1)), ())]
    other = order.replace("F0", "F1").replace("B0", "B1").replace("I0", "I1").replace("W0", "W1")
    schedule = Schedule.from_text("by hand", [order, other])
    pipeline = SimpleNamespace(stages=stages)
    plan = SimpleNamespace(pipeline=pipeline, schedule=schedule, zero=0, priority=(), staleness=0)
    later = _buckets(plan, 1, 0, modules, optimizers[1])  # type: ignore[arg-type]
    return later, _buckets(plan, 0, 0, modules, optimizers[0], later)  # type: ignore[arg-type]


def test_stages_of_a_rank_take_turns() -> None:
    """A stage without planned buckets takes its turn at R, and that of the other one follows, however early it ends."""
    later, earlier = two_stages(IN_TURN)
    assert later is not None and earlier is not None
    assert (later.last, later.firsts, earlier.last, earlier.firsts) == (None, [0], 0, [3, 0])
    for each in (later, earlier):
        each.begin()
    for parameter in reversed([*earlier._home]):
        earlier._missing[earlier._home[parameter]].discard(parameter)
    assert not earlier._advance()
    assert (later._next, earlier._next) == (0, 0)
    earlier.finish()
    assert (later._next, earlier._next) == (1, 2)


def test_lists_that_sum_ahead_of_a_backward_have_no_turns() -> None:
    """An R of one stage ahead of the other one's backward would wait for gradients that are not there."""
    assert two_stages("0F0 1F0 1B0 1R 0B0 0R 0U 1U") == (None, None)


@pytest.mark.parametrize(("backwards", "last"), [("1I0 1W0 0I0 0W0", 0), ("1I0 0I0 0W0 1W0", None)])
def test_common_weights_leave_when_both_stages_have_added(backwards: str, last: int | None) -> None:
    """If another stage of the rank is the last to add to a stage's gradients, these leave at R."""
    _, earlier = two_stages(f"0F0 1F0 {backwards} 0R 1R 0U 1U", shared=True)
    assert earlier is not None and earlier.last == last
    _, earlier = two_stages(f"0F0 1F0 {backwards} 0R 1R 0U 1U")
    assert earlier is not None and earlier.last == 0
