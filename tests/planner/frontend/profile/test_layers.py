"""Chain of layers in a module."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeplan.core.errors import InputError
from pipeplan.frontend.profile.layers import find_layers


class Residual(nn.Module):
    """Block that is not a chain, as its input is used twice."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(width, width), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Net(nn.Module):
    """Module of two named parts with an operation between them."""

    def __init__(self, between=lambda x: x, after=lambda x: x) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.between, self.after = between, after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.second(self.between(self.first(x))))


ROWS = torch.zeros(2, 4)


def test_nested_chains_open_and_residual_blocks_stay_whole() -> None:
    """Layers are named by their module paths, in the order in which they run."""
    module = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)), Residual(), Net(), nn.Identity())
    assert find_layers(module, ROWS) == ("0.0", "0.1", "1", "2.first", "2.second", "3")


@pytest.mark.parametrize(("pattern", "expected"), [("0", ("0", "1.0", "1.1")), ("Sequential", ("0", "1"))])
def test_group_keeps_what_matches_whole(pattern: str, expected: tuple[str, ...]) -> None:
    """A path or a class name in ``group`` is one layer although it is a chain."""
    module = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(2)))
    assert find_layers(module, ROWS, group=(pattern,)) == expected


def test_meta_modules_are_read_without_values() -> None:
    """A module without values shows the same layers."""
    with torch.device("meta"):
        module = nn.Sequential(nn.Linear(4, 4), Residual())
    assert find_layers(module, ROWS.to("meta")) == ("0", "1")


def test_no_hook_is_left_behind() -> None:
    """Recording the calls of a module leaves no hook on it."""
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    find_layers(module, ROWS)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())


@pytest.mark.parametrize(
    "change",
    [lambda x: x * 2, lambda x: x.flatten(0), functional.relu_, lambda x: x.view_as(x)],
    ids=["new tensor", "new shape", "in place", "view"],
)
def test_an_operation_between_modules_breaks_the_chain(change) -> None:
    """Any operation between two modules is found, also in place, and the error names both."""
    with pytest.raises(InputError, match=r"outside any module between 'first' and 'second'"):
        find_layers(Net(between=lambda x: change(x).reshape(2, 4)), ROWS)


def test_an_operation_at_the_end_breaks_the_chain() -> None:
    """An operation after the last module is found too."""
    with pytest.raises(InputError, match=r"between 'second' and the model's output.*nn\.Flatten"):
        find_layers(Net(after=lambda x: x.flatten()), ROWS)


def test_a_module_used_twice_is_named() -> None:
    """One activation module called at two places cannot be two layers."""

    class Twice(Net):
        def __init__(self) -> None:
            super().__init__()
            self.act = nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.second(self.act(self.first(x))))

    with pytest.raises(InputError, match=r"'act' is called more than once"):
        find_layers(Twice(), ROWS)


def test_an_unused_parameter_is_named() -> None:
    """A parameter that no layer owns would silently not be trained."""
    net = Net()
    net.scale = nn.Parameter(torch.ones(1))
    with pytest.raises(InputError, match=r"'scale' belongs to no module that runs"):
        find_layers(net, ROWS)


def test_a_module_that_returns_a_tuple_is_named() -> None:
    """An LSTM's pair of outputs has to be wrapped."""

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.lstm(x)[0])

    with pytest.raises(InputError, match=r"'lstm' returns tuple"):
        find_layers(Recurrent(), ROWS)


@pytest.mark.parametrize(
    ("module", "message"), [(nn.Linear(4, 4), "nn.Sequential"), (nn.Sequential(nn.Linear(4, 4)), "nothing to cut")]
)
def test_a_single_layer_is_refused(module: nn.Module, message: str) -> None:
    """There is nothing to plan for one layer."""
    with pytest.raises(InputError, match=message):
        find_layers(module, ROWS)


def test_two_inputs_are_refused() -> None:
    """A chain passes one tensor."""
    with pytest.raises(InputError, match="got 2 inputs"):
        find_layers(Net(), (ROWS, ROWS))
