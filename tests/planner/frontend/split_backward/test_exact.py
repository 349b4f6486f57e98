"""Split backward, compared with torch's joined backward in float64."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from helpers.split_nets import gradients, image_nets, inputs_of, sequence_nets
from pipeplan.frontend.split_backward.attach import attached
from pipeplan.frontend.split_backward.queue import WeightQueue, run_delayed

NETS = st.one_of(sequence_nets(), image_nets())


def ready(net: nn.Sequential) -> nn.Sequential:
    """The net with initialised layers and fixed statistics."""
    net(inputs_of(net, 0))
    for part in net.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.track_running_stats = False
    return net


@settings(max_examples=60, deadline=None)
@given(net=NETS, split=st.lists(st.booleans(), min_size=1, max_size=3), recompute=st.booleans(), there=st.booleans())
def test_any_net(net: nn.Sequential, split: list[bool], recompute: bool, there: bool) -> None:
    """All gradients are those of joined backwards, also where only some micro-batches are split, or recomputed."""
    net = ready(net)
    joined = gradients(net, net, [False] * len(split), there=there)
    assert joined.waited == 0
    parted = gradients(net, net, split, recompute, there)
    assert not parted.differs(joined)
    linear = isinstance(net[-1], nn.Linear) and net[-1].weight.requires_grad
    assert parted.waited >= sum(split) * linear


@settings(max_examples=15, deadline=None)
@given(net=NETS, recompute=st.booleans())
def test_any_captured_net(net: nn.Sequential, recompute: bool) -> None:
    """All gradients are those of joined backwards for captured nets too, with products of bare parameters delayed."""
    net = ready(net)
    graph = torch.export.export(net, (inputs_of(net, 0).detach(),)).module()
    for name, parameter in net.named_parameters(remove_duplicate=False):
        *path, last = name.split(".")
        graph.get_submodule(".".join(path)).register_parameter(last, parameter)
    joined = gradients(net, net, [False, False])
    parted = gradients(net, graph, [True, True], recompute)
    assert not parted.differs(joined)
    assert parted.waited >= gradients(net, net, [True, True]).waited


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("bias", [True, False])
def test_convolutions_of_every_number_of_axes(axes: int, bias: bool) -> None:
    """Convolutions are exact: strided, padded, dilated, grouped, and transposed with a given output size."""
    torch.manual_seed(axes)
    kinds = {1: (nn.Conv1d, nn.ConvTranspose1d), 2: (nn.Conv2d, nn.ConvTranspose2d), 3: (nn.Conv3d, nn.ConvTranspose3d)}
    plain, transposed = kinds[axes]

    class Wished(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = transposed(6, 4, 3, stride=2, groups=2, bias=bias)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x, output_size=[2 * size + 2 for size in x.shape[2:]])

    net = nn.Sequential(
        plain(4, 6, 3, stride=2, padding=2, dilation=2, groups=2, bias=bias),
        plain(6, 6, 3, padding="same", bias=bias),
        plain(6, 6, 2, padding="valid", bias=bias),
        Wished(),
        transposed(4, 4, 2, stride=2, padding=1, output_padding=1, dilation=2, bias=bias),
    ).double()
    found = []
    for split in (False, True):
        x = torch.randn(2, 4, *(9,) * axes, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        own, queue = copy.deepcopy(net), WeightQueue()
        with attached(queue, [own]), queue.opened(split):
            own(x.requires_grad_()).square().sum().backward()
        assert len(queue) == (len(net) if split else 0)
        run_delayed(queue.take())
        found.append([x.grad, *(parameter.grad for parameter in own.parameters())])
    assert all(torch.allclose(a, b, rtol=1e-12, atol=1e-12) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("turn", ["t()", "T", "transpose(0, 1)", "permute(1, 0)"])
@pytest.mark.parametrize("bias", [True, False])
def test_captured_products_with_a_transposed_matrix(turn: str, bias: bool) -> None:
    """Products with a transposed parameter, as in a tied head, are delayed and exact."""

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            turned = eval(f"self.weight.{turn}")
            return torch.addmm(self.bias, x, turned) if bias else x @ turned + self.bias

    torch.manual_seed(0)
    net, x = Head().double(), torch.randn(3, 4, dtype=torch.float64)
    net(x).cos().sum().backward()
    expected = net.weight.grad
    graph = torch.export.export(net, (x,)).module()
    queue = WeightQueue()
    with attached(queue, [graph]), queue.opened():
        graph(x).cos().sum().backward()
    assert len(queue) == 1
    run_delayed(queue.take())
    assert torch.allclose(graph.weight.grad, expected, rtol=1e-12, atol=1e-14)
