"""Sources of tensors' values: a part of a model gets the same values as in the whole."""

import pytest
import torch
from torch import nn

from pipeplan.core.errors import InputError, PlanError
from pipeplan.frontend.capture.private import on_meta
from pipeplan.frontend.parameters import named_tensors
from pipeplan_executor.stages.materialise import put, values_of


class Block(nn.Module):
    """Tensors of many kinds: a matrix, a recurrent cell, statistics, a buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.cell, self.norm = nn.Linear(4, 4), nn.LSTM(4, 4), nn.BatchNorm1d(4)
        self.ways = Ways()


class Ways(nn.Module):
    """A constant that is part of no state dict."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("angles", torch.empty(3), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.angles.copy_(torch.arange(3.0))


class Master(nn.Module):
    """Draws its submodules' weights itself, a child's through its parent, as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.free = Pair(), Bare()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, Pair):
            module.child.weight.normal_(mean=100.0)
        if isinstance(module, Bare):
            module.scale.fill_(7.0)


class Pair(nn.Module):
    """A child with a reset of its own, which its parent overrules."""

    def __init__(self) -> None:
        super().__init__()
        self.child = nn.Linear(4, 4)


class Bare(nn.Module):
    """A parameter without a rule of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(4))


def test_parts_are_drawn_as_the_whole_is() -> None:
    """Any set of names gets the values that it gets among all names, to the last bit; other seeds give others."""
    model = on_meta(nn.Sequential(Block(), Block()))
    names = list(dict(named_tensors(model)))
    whole = values_of(model, model, names, seed=5)
    assert all(not tensor.is_meta for tensor in whole.values())
    for part in (names[::3], names[1:2], ["1.cell.weight_hh_l0", "0.mix.bias"]):
        assert all(torch.equal(value, whole[name]) for name, value in values_of(model, model, part, seed=5).items())
    other = values_of(model, model, names, seed=6)
    assert not torch.equal(other["0.mix.weight"], whole["0.mix.weight"])
    assert not torch.equal(whole["1.mix.weight"], whole["0.mix.weight"])
    assert whole["0.ways.angles"].tolist() == [0, 1, 2]


def test_random_numbers_of_the_process_are_left_alone() -> None:
    """Drawing weights does not move the generator that the user draws from."""
    model = on_meta(Block())
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    values_of(model, model, dict(named_tensors(model)))
    assert torch.equal(torch.rand(3), expected)


def test_masters_draw_the_weights_of_their_submodules() -> None:
    """A surrounding module's rule overrides a submodule's own; without either, a tensor is refused with advice."""
    model = on_meta(Master())
    found = values_of(model, model, dict(named_tensors(model)))
    assert float(found["block.child.weight"].detach().mean()) > 90
    assert float(found["block.child.bias"].detach().abs().max()) <= 0.5
    assert found["free.scale"].tolist() == [7.0] * 4
    alone = on_meta(nn.Sequential(nn.Linear(2, 2), Bare()))
    with pytest.raises(PlanError, match=r"1.scale has no values.*Bare has no reset_parameters"):
        values_of(alone, alone, dict(named_tensors(alone)))
    assert values_of(alone, alone, ["0.weight"]).keys() == {"0.weight"}


def test_each_module_is_drawn_by_the_innermost_master_around_it() -> None:
    """A master within another one draws its submodules; the outer one draws itself, which the inner does not know."""

    class Inner(Master):
        def _init_weights(self, module: nn.Module) -> None:
            assert not isinstance(module, Outer)
            super()._init_weights(module)

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.scale = Inner(), nn.Parameter(torch.empty(2))

        def _init_weights(self, module: nn.Module) -> None:
            assert module is self or not isinstance(module, Bare)
            if isinstance(module, Outer):
                module.scale.fill_(3.0)

    model = on_meta(Outer())
    found = values_of(model, model, dict(named_tensors(model)))
    assert found["scale"].tolist() == [3.0] * 2
    assert found["inner.free.scale"].tolist() == [7.0] * 4


def test_tied_names_get_one_tensor() -> None:
    """Under each of its names a tensor has the values of the first name's owner, in the same memory."""
    first, second = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
    second.weight = first.weight
    model = on_meta(nn.ModuleDict({"first": first, "second": second}))
    assert model["first"].weight is model["second"].weight
    both = values_of(model, model, ["first.weight", "second.weight"])
    assert both["first.weight"] is both["second.weight"]
    assert torch.equal(values_of(model, model, ["second.weight"])["second.weight"], both["first.weight"])


def test_real_values_are_kept_and_copied() -> None:
    """Values of the user's module are copied, not shared; missing ones are drawn."""
    own = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).to("meta"))
    model = on_meta(own)
    found = values_of(model, own, dict(named_tensors(model)), dtype=torch.float64)
    assert torch.equal(found["0.weight"], own[0].weight.double())
    assert not found["1.weight"].is_meta
    again = values_of(model, own, ["0.weight"])["0.weight"]
    assert again.data_ptr() != own[0].weight.data_ptr()
    assert again.requires_grad


def test_a_file_has_the_last_word(tmp_path) -> None:
    """Its tensors are read under any of their names; what is never saved is drawn; gaps and other shapes are named."""
    source = Block()
    state = source.state_dict()
    torch.save(state, tmp_path / "w.pt")
    model = on_meta(Block())
    found = values_of(model, source, dict(named_tensors(model)), weights=tmp_path / "w.pt")
    assert all(torch.equal(found[name], value) for name, value in state.items())
    assert found["ways.angles"].tolist() == [0, 1, 2]
    torch.save({**state, "mix.bias": torch.zeros(5)}, tmp_path / "other.pt")
    with pytest.raises(InputError, match=r"mix.bias has shape \(5,\), the model needs \(4,\)"):
        values_of(model, source, ["mix.bias"], weights=tmp_path / "other.pt")
    torch.save({name: value for name, value in state.items() if name != "mix.bias"}, tmp_path / "gap.pt")
    with pytest.raises(InputError, match=r"has no mix\.bias"):
        values_of(model, source, ["mix.bias"], weights=tmp_path / "gap.pt")
    with pytest.raises(InputError, match="cannot read weights"):
        values_of(model, source, ["mix.bias"], weights=tmp_path / "nothing.pt")


def test_recurrent_layers_use_what_is_put_into_them() -> None:
    """An LSTM keeps a list of its weights beside them; both must be the new ones."""
    cell = on_meta(nn.LSTM(4, 4))
    model = on_meta(nn.ModuleDict({"cell": nn.LSTM(4, 4)}))
    for name, value in values_of(model, model, dict(named_tensors(model))).items():
        put(cell, name.removeprefix("cell."), value)
    x = torch.randn(2, 1, 4)
    cell(x)[0].sum().backward()
    assert cell.weight_hh_l0.grad is not None
