"""Queue of delayed weight gradients: delayed operations, exceptions, and clean-up."""

import copy
import gc
import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from helpers.split_nets import Shifted
from pipeplan.frontend.split_backward.attach import attach, attached
from pipeplan.frontend.split_backward.queue import WeightQueue, run_delayed


def pair() -> nn.Sequential:
    """Two linear layers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))


def test_weights_get_their_gradients_in_the_second_part() -> None:
    """After I only the gradients of the input and of a norm exist; after W those of linear layers too."""
    net = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    queue, x = WeightQueue(), torch.randn(2, 3, requires_grad=True)
    attach(queue, [net])
    with queue.opened():
        net(x).square().sum().backward()
    assert x.grad is not None
    assert net[1].weight.grad is not None
    assert net[0].weight.grad is net[0].bias.grad is None
    run_delayed(queue.take())
    assert net[0].weight.grad is not None
    assert net[0].bias.grad is not None


def test_a_first_stage_has_both_parts() -> None:
    """Without a gradient of the input, the layers after the first still run backward within I."""
    net, x = pair(), torch.randn(2, 3)
    net(x).sum().backward()
    expected = [parameter.grad for parameter in net.parameters()]
    net.zero_grad()
    queue = WeightQueue()
    with attached(queue, [net]), queue.opened():
        net(x).sum().backward()
    assert len(queue) == 2
    run_delayed(queue.take())
    assert all(torch.allclose(p.grad, e) for p, e in zip(net.parameters(), expected, strict=True))


@pytest.mark.parametrize("how", ["frozen bias", "hook", "hook afterwards", "computed", "no gradients", "closed"])
def test_what_does_not_wait(how: str) -> None:
    """Frozen, computed and hooked parameters use torch's backward, as does everything while the queue is closed."""
    net, queue, calls = pair(), WeightQueue(), []
    if how == "frozen bias":
        net[2].bias.requires_grad_(False)
    elif how == "hook":
        net[2].weight.register_hook(calls.append)
    elif how == "hook afterwards":
        net[2].weight.register_post_accumulate_grad_hook(calls.append)
    elif how == "computed":
        nn.utils.parametrizations.weight_norm(net[2])
    with attached(queue, [net]), queue.opened(how != "closed"), torch.set_grad_enabled(how != "no gradients"):
        y = net(torch.randn(2, 3))
        if y.requires_grad:
            y.sum().backward()
    assert len(queue) == {"closed": 0, "no gradients": 0}.get(how, 1)
    assert len(calls) == ("hook" in how)
    queue.clear()
    assert len(queue) == 0


def test_a_module_is_as_before_afterwards() -> None:
    """Classes, attributes and the code of graphs are restored; state and copies never change."""
    net = nn.Sequential(nn.Linear(3, 3), Shifted(3, 3), nn.Embedding(4, 3), nn.Conv1d(1, 1, 1)).double()
    graph = torch.export.export(pair(), (torch.randn(2, 3),)).module()
    before = [(type(part), dict(part.__dict__)) for part in net.modules()]
    code, state = graph.code, list(net.state_dict())
    queue = WeightQueue()
    with attached(queue, [net, graph]):
        assert graph.code != code
        assert list(net.state_dict()) == state
        assert isinstance(net[1], Shifted)
        twin = copy.deepcopy(net)
        assert twin[0].weight_queue is twin[1].weight_queue is not queue
    assert graph.code == code
    assert [(type(part), dict(part.__dict__)) for part in net.modules()] == before
    assert not hasattr(graph, "weight_queue")


def test_a_module_may_change_its_queue() -> None:
    """The new queue gets the delayed work, and the old one again afterwards."""
    graph = torch.export.export(pair(), (torch.randn(2, 3),)).module()
    for module in (pair(), graph):
        first, second = WeightQueue(), WeightQueue()
        with attached(first, [module]):
            with attached(second, [module]), first.opened(), second.opened():
                module(torch.randn(2, 3)).sum().backward()
            assert (len(first), len(second)) == (0, 2)
            with first.opened(), second.opened():
                module(torch.randn(2, 3)).sum().backward()
            assert (len(first), len(second)) == (2, 2)


@pytest.mark.parametrize(
    ("first", "x"),
    [
        (nn.Linear(3, 4), torch.randn(2, 5, 3)),
        (nn.Linear(3, 4, bias=False), torch.randn(2, 5, 3).transpose(0, 1)),
        (nn.Embedding(6, 4), torch.arange(6).view(2, 3)),
        (nn.Conv1d(3, 4, 2), torch.randn(2, 3, 5)),
        (nn.ConvTranspose2d(3, 4, 2), torch.randn(2, 3, 5, 5)),
    ],
)
def test_what_they_return_may_be_written_into(first: nn.Module, x: Tensor) -> None:
    """The next layer may work in place, as after torch's own layers."""
    whole = nn.Sequential(copy.deepcopy(first), nn.Sigmoid())
    whole(x).sum().backward()
    net, queue = nn.Sequential(first, nn.Hardtanh(-100, 100, inplace=True), nn.Sigmoid()), WeightQueue()
    with attached(queue, [net]), queue.opened():
        net(x).sum().backward()
    run_delayed(queue.take())
    assert all(
        torch.allclose(p.grad, e.grad, atol=1e-6) for p, e in zip(net.parameters(), whole.parameters(), strict=True)
    )


def test_nothing_is_left_of_a_step_that_broke_off() -> None:
    """The graph is freed after I, delayed work after W or when the queue is cleared; an error closes the queue."""
    net, queue = pair(), WeightQueue()
    attach(queue, [net])
    for end in (lambda: run_delayed(queue.take()), queue.clear):
        x = torch.randn(2, 3)
        between = x + 1.0
        with queue.opened():
            output = net(between)
            graph = weakref.ref(output.grad_fn)
            output.sum().backward()
        del x, between, output
        gc.collect()
        assert graph() is None
        assert len(queue) == 2
        end()
        assert len(queue) == 0

    class Breaks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"), queue.opened():
        Breaks()(net(torch.randn(2, 3)))
    assert not queue.is_open


def test_autocast_products_have_its_precision() -> None:
    """Under autocast outputs, and gradients up to rounding, are those of torch's own layers, of tied weights too."""
    torch.manual_seed(0)
    table = nn.Embedding(9, 8)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.up, self.conv = table, nn.Linear(8, 8), nn.Conv1d(5, 5, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.conv(self.up(self.table(x))).relu()
            return functional.linear(x, self.up.weight) @ self.table.weight.t()

    net, numbers, found = Net(), torch.randint(9, (4, 5)), []
    for split in (False, True):
        net.zero_grad()
        queue = WeightQueue()
        with attached(queue, [net]), queue.opened(split):
            with torch.autocast("cpu", torch.bfloat16):
                output = net(numbers)
            output.float().square().sum().backward()
        assert len(queue) == 3 * split
        run_delayed(queue.take())
        found.append((output.detach(), [p.grad for p in net.parameters()]))
    (plain, expected), (waiting, sums) = found
    assert plain.dtype == waiting.dtype == torch.bfloat16
    assert torch.equal(plain, waiting)
    for gradient, wanted in zip(sums, expected, strict=True):
        assert gradient.dtype == torch.float32
        assert torch.allclose(gradient, wanted, rtol=0.02, atol=0.02 * float(wanted.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("padding", [None, 3])
def test_a_row_that_is_looked_up_often_is_summed_well(dtype: torch.dtype, padding: int | None) -> None:
    """Thousands of small gradients of one row are summed exactly enough in 16 bits; the padding row gets none."""
    table, queue = nn.Embedding(5, 2, padding_idx=padding, dtype=dtype), WeightQueue()
    numbers = torch.tensor([1] * 3000 + [3] * 7)
    with attached(queue, [table]), queue.opened():
        (table(numbers) * 0.01).sum().backward()
    run_delayed(queue.take())
    expected = torch.tensor([0.0, 30.0, 0.0, 0.0 if padding else 0.07, 0.0])
    assert torch.allclose(table.weight.grad.float(), expected[:, None].expand(5, 2), rtol=0.01)
