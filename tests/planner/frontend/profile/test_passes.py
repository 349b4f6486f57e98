"""Timed passes, on a manual clock that only the layers advance."""

from functools import partial

import torch
from torch import Tensor, nn

from pipeplan.frontend.profile.passes import Feed, time_joined, time_split
from pipeplan.frontend.split_backward.queue import WeightQueue, add_gradient


class HandClock:
    """Manual clock that layers advance."""

    def __init__(self) -> None:
        self.now = 0

    def mark(self) -> int:
        return self.now

    def settle(self) -> None:
        pass

    def between(self, start: int, end: int) -> int:
        return end - start


class Spend(torch.autograd.Function):
    """Identity that advances the clock in its backward pass."""

    @staticmethod
    def forward(ctx, x: Tensor, clock: HandClock, time: int) -> Tensor:
        ctx.clock, ctx.time = clock, time
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor):
        ctx.clock.now += ctx.time
        return gradient, None, None


class Leave(Spend):
    """Identity that advances the clock in its backward, or later if there is a queue."""

    @staticmethod
    def forward(ctx, weight: Tensor, clock: HandClock, time: int, queue: WeightQueue | None) -> Tensor:
        ctx.weight, ctx.queue = weight, queue
        return Spend.forward(ctx, weight, clock, time)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        if ctx.queue is None:
            return (*Spend.backward(ctx, gradient), None)

        ctx.queue.put(partial(Leave.later, ctx, gradient))
        return None, None, None, None

    @staticmethod
    def later(ctx, gradient: Tensor) -> None:
        """Add to the gradient, and spend the time."""
        add_gradient(ctx.weight, Spend.backward(ctx, gradient)[0])


class Slow(nn.Linear):
    """Layer y = x + w with known times of forward and both gradients; that of w can be delayed."""

    def __init__(self, clock: HandClock, forward: int, inputs: int, weights: int) -> None:
        super().__init__(3, 1, bias=False)
        self.weight.requires_grad_(weights > 0)
        self.clock, self.times = clock, (forward, inputs, weights)

    def forward(self, x: Tensor) -> Tensor:
        forward, inputs, weights = self.times
        self.clock.now += forward
        queue = getattr(self, "weight_queue", None)
        waits = queue is not None and queue.is_open
        return Spend.apply(x, self.clock, inputs) + Leave.apply(
            self.weight, self.clock, weights, queue if waits else None
        )


def _row(clock: HandClock) -> list[nn.Module]:
    times = [(5, 7, 11), (13, 17, 0), (19, 23, 29), (31, 37, 41)]
    return [Slow(clock, *row) for row in times]


def test_joined_times_go_to_the_layer_that_spends_them() -> None:
    """Hooks inside one backward call separate the layers exactly."""
    clock = HandClock()
    feed = Feed((torch.zeros(2, 3),), (True,))
    assert time_joined(_row(clock), feed, clock) == ([5, 13, 19, 31], [18, 17, 52, 78])


def test_the_loss_belongs_to_the_last_layer() -> None:
    """Time spent in the loss, forward and backward, is added to the last layer."""
    clock = HandClock()

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        clock.now += 100
        return Spend.apply(outputs - targets, clock, 1000).sum()

    feed = Feed((torch.zeros(2, 3),), (True,), loss=loss, targets=torch.ones(2, 3))
    assert time_joined(_row(clock), feed, clock) == ([5, 13, 19, 131], [18, 17, 52, 1078])
    assert time_split(_row(clock), feed, clock) == ([7, 17, 23, 1037], [11, 0, 29, 41])


def test_split_times_are_apart() -> None:
    """Input and weight gradients are measured apart, and a first layer has no input gradient to make."""
    clock = HandClock()
    assert time_split(_row(clock), Feed((torch.zeros(2, 3),), (True,)), clock) == ([7, 17, 23, 37], [11, 0, 29, 41])
    assert time_split(_row(clock), Feed((torch.zeros(2, 3),), (False,)), clock) == ([0, 17, 23, 37], [11, 0, 29, 41])


def test_parameters_that_cannot_wait_count_with_the_input_gradient() -> None:
    """A layer other than linear, convolution or embedding has its whole backward in I."""
    clock = HandClock()

    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return x * Spend.apply(self.weight, clock, 50)

    row = [*_row(clock)[:2], Scale(), *_row(clock)[2:]]
    feed = Feed((torch.zeros(2, 3),), (True,))
    assert time_joined(row, feed, clock)[1] == [18, 17, 50, 52, 78]
    assert time_split(row, feed, clock) == ([7, 17, 50, 23, 37], [11, 0, 0, 29, 41])


def test_relayed_tensors_do_not_blur_the_layers() -> None:
    """Several tensors pass, one of them through layers that do not touch it, and integers among them."""
    clock = HandClock()

    class Relay(nn.Module):
        def __init__(self, inner: nn.Module, use: bool = False) -> None:
            super().__init__()
            self.inner, self.use = inner, use

        def forward(self, x: Tensor, skip: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            return self.inner(x) + mask + skip * self.use, skip, mask

    class Begin(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            y = self.inner(x)
            return y, y * 2.0, mask

    a, b, c, d = _row(clock)
    row = [Begin(a), Relay(b), Relay(c, use=True), Relay(d)]
    feed = Feed((torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.long)), (True, False))
    assert time_joined(row, feed, clock) == ([5, 13, 19, 31], [18, 17, 52, 78])
    assert time_split(row, feed, clock) == ([7, 17, 23, 37], [11, 0, 29, 41])


def test_gradients_add_up() -> None:
    """Every pass adds to the gradients, joined or split, by the same amount."""
    clock = HandClock()
    row = _row(clock)
    feed = Feed((torch.zeros(2, 3),), (True,))
    time_joined(row, feed, clock)
    own = [layer.weight for layer in row if layer.weight.requires_grad]
    once = [weight.grad.clone() for weight in own]
    time_split(row, feed, clock)
    for weight, grad in zip(own, once, strict=True):
        torch.testing.assert_close(weight.grad, 2 * grad)


def test_frozen_and_idle_layers_cost_no_backward() -> None:
    """Nothing flows back into layers in front of the first parameter."""
    clock = HandClock()
    row = [nn.Flatten(), nn.Linear(3, 3).requires_grad_(False), *_row(clock)]
    forward, backward = time_joined(row, Feed((torch.zeros(2, 3),), (False,)), clock)
    assert forward == [0, 0, 5, 13, 19, 31]
    assert backward == [0, 0, 11, 17, 52, 78]


def test_a_layer_that_returns_its_input_costs_nothing() -> None:
    """Two layers may hold the same tensor; no time is counted twice or below zero."""
    clock = HandClock()
    row = [*_row(clock)[:2], nn.Identity(), *_row(clock)[2:]]
    assert time_joined(row, Feed((torch.zeros(2, 3),), (True,)), clock) == ([5, 13, 0, 19, 31], [18, 17, 0, 52, 78])
