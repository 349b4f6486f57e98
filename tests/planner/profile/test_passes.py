"""Timed passes, on a clock that only the layers move."""

import torch
from torch import Tensor, nn

from pipeplan.profile.passes import Feed, time_joined, time_split


class HandClock:
    """A clock that stands still unless a layer moves it."""

    def __init__(self) -> None:
        self.now = 0

    def mark(self) -> int:
        return self.now

    def settle(self) -> None:
        pass

    def between(self, start: int, end: int) -> int:
        return end - start


class Spend(torch.autograd.Function):
    """Identity that moves the clock in its backward pass."""

    @staticmethod
    def forward(ctx, x: Tensor, clock: HandClock, time: int) -> Tensor:
        ctx.clock, ctx.time = clock, time
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor):
        ctx.clock.now += ctx.time
        return gradient, None, None


class Slow(nn.Module):
    """y = x + w: forward, the gradient of x and the gradient of w take known times."""

    def __init__(self, clock: HandClock, forward: int, inputs: int, weights: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3)) if weights else None
        self.clock, self.times = clock, (forward, inputs, weights)

    def forward(self, x: Tensor) -> Tensor:
        forward, inputs, weights = self.times
        self.clock.now += forward
        y = Spend.apply(x, self.clock, inputs)
        return y if self.weight is None else y + Spend.apply(self.weight, self.clock, weights)


def _row(clock: HandClock) -> list[nn.Module]:
    times = [(5, 7, 11), (13, 17, 0), (19, 23, 29), (31, 37, 41)]
    return [Slow(clock, *row) for row in times]


def test_joined_times_go_to_the_layer_that_spends_them() -> None:
    """Hooks inside one backward call separate the layers exactly."""
    clock = HandClock()
    feed = Feed(torch.zeros(2, 3), wants_gradient=True)
    assert time_joined(_row(clock), feed, clock) == ([5, 13, 19, 31], [18, 17, 52, 78])


def test_the_loss_belongs_to_the_last_layer() -> None:
    """Time spent in the loss, forward and backward, is added to the last layer."""
    clock = HandClock()

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        clock.now += 100
        return Spend.apply(outputs - targets, clock, 1000).sum()

    feed = Feed(torch.zeros(2, 3), wants_gradient=True, loss=loss, targets=torch.ones(2, 3))
    assert time_joined(_row(clock), feed, clock) == ([5, 13, 19, 131], [18, 17, 52, 1078])
    assert time_split(_row(clock), feed, clock) == ([7, 17, 23, 1037], [11, 0, 29, 41])


def test_split_times_are_apart() -> None:
    """Input and weight gradients are measured apart, and a first layer without input gradient has none."""
    clock = HandClock()
    assert time_split(_row(clock), Feed(torch.zeros(2, 3), True), clock) == ([7, 17, 23, 37], [11, 0, 29, 41])
    assert time_split(_row(clock), Feed(torch.zeros(2, 3), False), clock) == ([None, 17, 23, 37], [None, 0, 29, 41])


def test_gradients_add_up() -> None:
    """Every pass adds to the gradients, joined or split, by the same amount."""
    clock = HandClock()
    row = _row(clock)
    feed = Feed(torch.zeros(2, 3), wants_gradient=True)
    time_joined(row, feed, clock)
    once = [layer.weight.grad.clone() for layer in row if layer.weight is not None]
    time_split(row, feed, clock)
    for layer, grad in zip((layer for layer in row if layer.weight is not None), once, strict=True):
        torch.testing.assert_close(layer.weight.grad, 2 * grad)


def test_frozen_and_idle_layers_cost_no_backward() -> None:
    """Nothing flows back into layers in front of the first parameter."""
    clock = HandClock()
    row = [nn.Flatten(), nn.Linear(3, 3).requires_grad_(False), *_row(clock)]
    forward, backward = time_joined(row, Feed(torch.zeros(2, 3), False), clock)
    assert forward == [0, 0, 5, 13, 19, 31]
    assert backward == [0, 0, 11, 17, 52, 78]


def test_a_layer_that_returns_its_input_costs_nothing() -> None:
    """Two layers may hold the same tensor; no time is counted twice or below zero."""
    clock = HandClock()
    row = [*_row(clock)[:2], nn.Identity(), *_row(clock)[2:]]
    assert time_joined(row, Feed(torch.zeros(2, 3), True), clock) == ([5, 13, 0, 19, 31], [18, 17, 0, 52, 78])
