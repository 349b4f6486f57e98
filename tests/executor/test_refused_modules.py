"""What `run` refuses in a module is told when the module is profiled, in the same words."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from helpers.plans import plan_for
from helpers.refused_models import draw, loss, refused_workload, special
from pipeplan.core.errors import InputError, PlanError
from pipeplan.core.model import Model
from pipeplan.frontend.capture import Stages
from pipeplan.frontend.profile import profile, profile_workload
from pipeplan.frontend.runnable import check_plain
from pipeplan.frontend.workload import Workload
from pipeplan.schedules import FAMILIES
from pipeplan_executor.stages.split import fit


class Does(nn.Module):
    """A layer from a function, with a matrix of its own."""

    def __init__(self, function: Callable[..., object], constant: Tensor | None = None) -> None:
        super().__init__()
        self.function, self.constant, self.mix = function, constant, nn.Linear(4, 4)

    def forward(self, *tensors: Tensor) -> object:
        return self.function(self, *tensors)


class Counts(nn.Module):
    """Adds to a buffer, which it holds with others."""

    def __init__(self, counter: Tensor) -> None:
        super().__init__()
        self.mix = nn.Linear(4, 4)
        self.register_buffer("counter", counter)

    def forward(self, x: Tensor) -> Tensor:
        self.counter.add_(1)
        return self.mix(x) + self.counter


def written() -> nn.Module:
    """Stages of which the second writes into a tensor that it also gets as a view."""
    first = Does(lambda own, x: (y := own.mix(x), y.view(-1)))
    return Stages(first, Does(lambda own, x, flat: own.mix(x.mul_(2) * 1) + flat.view_as(x)))


def counting() -> nn.Module:
    """Stages that share a buffer which changes."""
    counter = torch.zeros(1)
    return Stages(Counts(counter), Counts(counter))


def after(layer: nn.Module) -> nn.Module:
    """Stages of which this layer is the second."""
    return Stages(nn.Linear(4, 4), layer)


REFUSED = {
    "another class of parameter": (special, "0.bias is a Special"),
    "a dict": (lambda: after(Does(lambda own, x: {"y": own.mix(x)})), "layer 1 returns dict"),
    "a branch": (
        lambda: after(Does(lambda own, x: own.mix(x) if x.sum() > 0 else x)),
        "layer 1 cannot be called without values.*depend on no value in the batch",
    ),
    "a size": (lambda: after(Does(lambda own, x: own.mix(x[x[:, 0] > -9]))), "layer 1 cannot be called without values"),
    "a tensor that is no buffer": (
        lambda: after(Does(lambda own, x: own.mix(x) + own.constant, torch.ones(4))),
        "layer 1 cannot be called without values.*must be parameters or buffers",
    ),
    "a write under two names": (written, "layer 1 or a later one writes in place into a tensor"),
    "a buffer that changes": (counting, r"layers 0 and 1 share a buffer that changes \(0.counter\)"),
}


def profiled(module: nn.Module, **how: object) -> tuple[Model, list[str]]:
    """The quickest profile of a module, and what was said of `run`."""
    told: list[str] = []
    batch, targets = draw(1, torch.Generator().manual_seed(0))
    settings = {"micro_batches": (1,), "repeats": 1, "warmup": 0, "loss": loss, "targets": targets, **how}
    return profile(module, batch, on_refusal=told.append, **settings), told


@pytest.mark.parametrize("name", REFUSED)
def test_a_profile_tells_what_a_run_refuses(name: str) -> None:
    """A module that can be measured but not run is measured, with the reason; a run refuses it with the same one."""
    build, reason = REFUSED[name]
    model, (told,) = profiled(build())
    assert model.names == ("0", "1")
    assert not any("refuse" in note for note in model.notes)
    with pytest.raises(PlanError, match=reason) as refused:
        module = build()
        plan = plan_for(nn.Sequential(*module), "01", (0, 1, 2), FAMILIES["gpipe"].write((1, 1), 2))
        fit(plan, Workload(module, draw, loss))
    assert told.startswith("pipeplan run refuses ")
    assert str(refused.value) in told


class Experts(nn.Module):
    """Each row is mapped by one of two layers, which get as many rows as they are chosen for."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.GELU()) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        chosen, result = x.argmax(-1) % 2, torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            (rows,) = (chosen == number).nonzero(as_tuple=True)
            result.index_add_(0, rows, expert(x[rows]))
        return x + result


def test_a_chain_with_sizes_that_depend_on_values_is_refused_in_one_line() -> None:
    """Such a chain is only found with values; a run says what to write instead, and not to profile it again."""
    module = nn.Sequential(nn.Linear(4, 4), Experts(), Experts(), nn.Linear(4, 4))
    plan = plan_for(module, "0123", (0, 1, 4), FAMILIES["gpipe"].write((1, 1), 2))
    with pytest.raises(PlanError, match=r"without values.*depend.*masks") as refused:
        fit(plan, Workload(module, draw, loss))
    assert "\n" not in str(refused.value)
    assert "profile this model" not in str(refused.value)


def test_sparse_gradients_are_refused() -> None:
    """Stages add and sum gradients as dense tensors; the error names the module and the setting."""
    with pytest.raises(PlanError, match=r"0 makes sparse gradients.*sparse=False"):
        check_plain(nn.Sequential(nn.EmbeddingBag(8, 4, sparse=True), nn.Linear(4, 4)))


class LooksUp(nn.Module):
    """A table whose gradient is sparse, without a module of torch that says so."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.embedding((x > 0).long(), self.table, sparse=True).sum(1)


def test_sparse_gradients_of_functions_are_refused() -> None:
    """The profile names the layer and the operation, as a run would."""
    reasons = profiled(nn.Sequential(nn.Linear(4, 4), LooksUp(), nn.Linear(4, 4)), micro_batches=(2,))[1]
    assert len(reasons) == 1
    assert "layer 1 makes sparse gradients (aten::embedding with sparse=True)" in reasons[0]


def test_a_model_with_nothing_to_train_is_refused() -> None:
    """A backward of it would fail in every rank."""
    with pytest.raises(PlanError, match="no parameter requires a gradient"):
        check_plain(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).requires_grad_(False))


def test_a_module_that_runs_is_profiled_without_a_word() -> None:
    """Nothing is said of a chain, nor of a captured graph with batch norm."""
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    for front_end in ("chain", "graph"):
        assert profiled(module, front_end=front_end, micro_batches=(2,))[1] == []


def test_without_a_listener_it_is_a_warning() -> None:
    """`pipeplan.profile` warns where nobody listens, and names the caller's line."""
    build, reason = REFUSED["a dict"]
    with pytest.warns(UserWarning, match=reason) as caught:
        profile(build(), draw(1, torch.Generator())[0], micro_batches=(1,), repeats=1, warmup=0)
    assert caught[0].filename == __file__


def test_what_cannot_even_be_profiled_is_refused() -> None:
    """Lazy layers have no sizes, and on the meta device there are no values to branch on."""
    with pytest.raises(InputError, match=r"0.weight has no shape yet; call the module with a batch"):
        profiled(nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 4)))
    with pytest.raises(InputError, match=r"cannot be described without values \(DataDependent.*--device cpu"):
        profiled(REFUSED["a branch"][0](), device="meta")


def test_the_measuring_process_passes_it_on() -> None:
    """What is found in the process that measures is told in this one."""
    told: list[str] = []
    profile_workload(refused_workload, micro_batches=(1,), repeats=1, warmup=0, on_refusal=told.append)
    assert len(told) == 1
    assert "0.bias is a Special" in told[0]
