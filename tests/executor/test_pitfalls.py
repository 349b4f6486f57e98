"""Known ways in which pipelined training goes wrong: each is closed by construction, or refused with a clear error.

Most were seen in engines that run pipelines with torch:

 1. losses kept by position, when micro-batches reach the last stage in another order
 2. data-parallel wrappers that do not see a backward in two parts, 3. sharding ones that lose its gradients
 4. shapes found by running layers on garbage, which spoils batch norm's statistics; so does recomputation
 5. gradients scaled as a whole after the step
 6. receives in another order than sends (test_lower.py)
 7. captured graphs that stay in the mode in which they were captured (tests/distributed: evaluation)
 8. outputs and gradients that are not contiguous, 9. outputs that are views, 10. outputs that are used inside too
11. a stage that begins with an operation in place
12. things that pass between stages and are no tensors, or change their shape
13. targets and inputs that are more than one tensor (tests/distributed: random plans of ``tiny_stages``)
14. skips over a stage, and tensors that nobody reads
15. evaluation with neighbouring stages on one rank (tests/distributed)
16. fewer micro-batches than stages (tests/distributed: random plans)
17. checkpoints that cannot run in a backward in two parts (test_stage.py)
18. ranks that wait for one that is gone (tests/distributed: kills)
"""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from helpers.group_of_one import group_of_one
from helpers.plans import plan_for
from helpers.stages import stage_of
from pipeplan.core.errors import PlanError
from pipeplan.frontend.workload import Workload
from pipeplan.schedules import FAMILIES
from pipeplan_executor.stages.split import fit


class Calls(nn.Module):
    """A layer from a function, with a matrix of its own."""

    def __init__(self, function: Callable[..., Tensor | tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.function, self.mix = function, nn.Linear(6, 6, bias=False)

    def forward(self, *tensors: Tensor) -> Tensor | tuple[Tensor, ...]:
        return self.function(self, *tensors)


def given(*shape: int, seed: int = 0, gradient: bool = True) -> Tensor:
    """Any numbers."""
    numbers = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return numbers.requires_grad_(gradient)


def ran(layers: dict[str, nn.Module], inputs: tuple[Tensor, ...], split: bool) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs, and gradients of inputs and parameters, of a stage whose layers get these inputs over the network."""
    for layer in layers.values():
        layer.double()
    work, module = stage_of(layers, inputs, split={0} if split else frozenset())
    outputs = work.forward(0, tuple(tensor.detach().clone() for tensor in inputs), None)
    wanted = [t for t, meta in zip(outputs, work._boundary.outputs, strict=True) if meta.requires_grad]
    gradients = tuple(torch.cos(output) for output in wanted)
    returned = work.input_gradient(0, gradients) if split else work.backward(0, gradients)
    if split:
        work.weight_gradient(0)
    return list(outputs), [*returned, *(p.grad for p in module.parameters() if p.grad is not None)]


def expected(layers: dict[str, nn.Module], inputs: tuple[Tensor, ...]) -> tuple[list[Tensor], list[Tensor]]:
    """The same by autograd on the layers as they stand."""
    leaves = [tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in inputs]
    values: tuple[Tensor, ...] = tuple(leaf * 1 if leaf.requires_grad else leaf for leaf in leaves)
    for layer in layers.values():
        layer.double()
        made = layer(*values)
        values = made if isinstance(made, tuple) else (made,)
    roots = [value for value in values if value.requires_grad]
    torch.autograd.backward(roots, [torch.cos(root.detach()) for root in roots])
    own = [p.grad for layer in layers.values() for p in layer.parameters() if p.grad is not None]
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    return [v.detach() for v in values], [torch.zeros_like(v) if v.grad is None else v.grad for v in wanted] + own


LAYERS = {
    "8: not contiguous": lambda self, x: self.mix(x).transpose(0, 1),
    "8: expanded": lambda self, x: self.mix(x).sum(0, keepdim=True).expand(4, 6),
    "8: gradient expanded": lambda self, x: x.sum(1),
    "9: view": lambda self, x: self.mix(x).view(2, 2, 6),
    "9: view of what was saved": lambda self, x: torch.tanh(self.mix(x)).flatten(),
    "10: used inside": lambda self, x: (y := self.mix(x), torch.tanh(y) * y),
    "10: twice": lambda self, x: (y := torch.sigmoid(self.mix(x)), y),
    "11: in place": lambda self, x: self.mix(x.relu_()),
    "11: in place through a view": lambda self, x: self.mix(x.view(24).exp_().view(4, 6)),
    "11: in place behind a product": lambda self, x: self.mix(x.view(2, 2, 6)).tanh_(),
    "12: whole numbers": lambda self, x: (self.mix(x), x.detach().argmax(1), x.detach() > 0),
    "14: passed on": lambda self, x: (x, self.mix(x)),
    "14: passed on alone": lambda self, x: x,
    "14: output without gradient": lambda self, x: (self.mix(x), x.detach() * 2),
    "14: a parameter as output": lambda self, x: (self.mix(x), self.mix.weight),
}


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_outputs_and_gradients_of_awkward_stages(name: str, split: bool) -> None:
    """8 to 14: whatever a stage does with its tensors, outputs and gradients are autograd's, and ready to be sent."""
    torch.manual_seed(1)
    layers = {"a": Calls(LAYERS[name])}
    inputs = (given(4, 6),)
    wanted, gradients = expected(copy.deepcopy(layers), inputs)
    found, returned = ran(layers, inputs, split)
    assert all(tensor.is_contiguous() and not tensor.requires_grad for tensor in (*found, *returned))
    assert [tuple(t.shape) for t in found] == [tuple(t.shape) for t in wanted]
    assert all(torch.allclose(a.double(), b.double(), rtol=1e-13) for a, b in zip(found, wanted, strict=True))
    assert len(returned) == len(gradients)
    assert all(torch.allclose(a, b, rtol=1e-12, atol=1e-14) for a, b in zip(returned, gradients, strict=True))


@pytest.mark.parametrize("split", [False, True])
def test_inputs_that_nobody_reads_get_gradients_of_zero(split: bool) -> None:
    """14: the previous stage waits for a gradient of its output, and gets one also from a stage that reads nothing."""
    torch.manual_seed(1)
    inputs = (given(4, 6), given(3, seed=1), torch.arange(4), given(2, seed=2, gradient=False))
    _, (first, second, *_) = ran({"a": Calls(lambda self, x, y, n, z: (self.mix(x) * n[:, None], z))}, inputs, split)
    assert first.abs().sum() > 0
    assert torch.equal(second, torch.zeros(3, dtype=torch.float64))
    _, returned = ran({"a": Calls(lambda self, x, y, n, z: self.mix(torch.ones_like(x)))}, inputs, split)
    assert all(torch.equal(g, torch.zeros_like(t)) for g, t in zip(returned[:2], inputs[:2], strict=True))


def test_what_arrived_is_not_written_into() -> None:
    """11: in-place writes change neither tensors of a neighbouring stage nor the user's batch."""
    for recompute in ((), ("a",)):
        work, _ = stage_of({"a": nn.ReLU(inplace=True), "b": nn.Sigmoid()}, (given(4, 6),), recompute=recompute)
        arrived = given(4, 6, gradient=False)
        before = arrived.clone()
        (output,) = work.forward(0, (arrived,), None)
        (gradient,) = work.backward(0, (torch.ones_like(output),))
        assert torch.equal(arrived, before)
        assert torch.allclose(gradient, output * (1 - output) * (before > 0))


def test_writing_into_one_of_two_names_of_a_tensor_is_refused() -> None:
    """11: apart, the two would differ."""
    first, second = Calls(lambda self, x: (y := self.mix(x), y.view(24))), Calls(lambda self, x, y: x.exp_() + y.sum())
    with pytest.raises(PlanError, match=r"second or a later one writes in place.*under another name"):
        stage_of({"first": first, "second": second}, (given(4, 6).float(),))


def test_losses_belong_to_micro_batches_in_any_order() -> None:
    """1: forwards in another order than backwards, and micro-batches that count differently."""
    torch.manual_seed(1)
    layer = nn.Linear(6, 2).double()
    whole = copy.deepcopy(layer)
    inputs, weights = [given(3, 6, seed=number, gradient=False) for number in range(3)], (0.5, 0.2, 0.3)
    work, _ = stage_of({"a": layer}, (given(3, 6),), loss=lambda output, target: (output * target).square().mean())
    work.weights = weights
    targets = [torch.tensor(float(number + 1)) for number in range(3)]
    for number in (1, 0, 2):
        work.forward(number, (inputs[number],), targets[number])
    for number in (2, 0, 1):
        work.backward(number, ())
    for number in range(3):
        loss = (whole(inputs[number]) * targets[number]).square().mean()
        assert float(work.losses[number]) == pytest.approx(float(loss.detach()), rel=1e-12)
        (weights[number] * loss).backward()
    assert torch.allclose(layer.weight.grad, whole.weight.grad, rtol=1e-12)


def test_gradients_of_two_steps_add_up() -> None:
    """5: nothing is scaled after the fact, so a second pass without an update doubles the gradients."""
    work, module = stage_of({"a": nn.Linear(6, 2)}, (given(3, 6).float(),))
    once = None
    for _ in range(2):
        (output,) = work.forward(0, (given(3, 6, gradient=False).float(),), None)
        work.backward(0, (torch.ones_like(output),))
        once = once if once is not None else module.layers[0].weight.grad.clone()
    assert torch.allclose(module.layers[0].weight.grad, 2 * once)


@pytest.mark.parametrize("split", [frozenset(), frozenset({0, 1})])
def test_statistics_change_once_a_micro_batch(split: frozenset[int]) -> None:
    """4: a recomputed batch norm has seen each micro-batch once, like an unsplit one."""
    norm = nn.BatchNorm1d(6).double()
    whole = copy.deepcopy(norm)
    work, _ = stage_of({"a": norm}, (given(5, 6),), recompute=("a",), split=split)
    for number in range(2):
        arrived = given(5, 6, seed=number, gradient=False)
        whole(arrived)
        work.forward(number, (arrived,), None)
    for number in range(2):
        (work.input_gradient if split else work.backward)(number, (given(5, 6, seed=9, gradient=False),))
    assert int(norm.num_batches_tracked) == 2
    assert torch.equal(norm.running_mean, whole.running_mean)
    assert torch.equal(norm.running_var, whole.running_var)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda self, x: {"x": x}, "layer a returns dict, and only tensors pass"),
        (lambda self, x: (x, 3), "layer a returns tuple, and only tensors pass"),
        (lambda self, x: None, "layer a returns NoneType"),
    ],
)
def test_what_is_no_tensor_cannot_pass(function: Callable[..., Tensor], said: str) -> None:
    """12: before anything runs."""
    with pytest.raises(PlanError, match=said):
        stage_of({"a": Calls(function)}, (given(4, 6),))


def test_another_shape_than_was_announced_is_refused() -> None:
    """12: outputs of another shape are refused; the next rank would wait for missing bytes, or take others for them."""
    work, _ = stage_of({"a": nn.Linear(6, 2)}, (given(3, 6).float(),), number=4)
    with pytest.raises(
        PlanError, match=r"stage 4 returned \(2, 2\) of float32.*but \(3, 2\) of float32 with gradient was"
    ):
        work.forward(0, (torch.zeros(2, 6),), None)


def drawn(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A batch for two linear layers."""
    return torch.randn(samples, 6, generator=generator), torch.zeros(samples, 6)


def test_wrappers_that_sum_or_shard_by_themselves_are_refused(tmp_path) -> None:
    """2, 3: data parallelism is the plan's own; a wrapper would sum nothing, or lose gradients, without a word."""
    with group_of_one(tmp_path):
        wrapped = nn.Sequential(nn.parallel.DistributedDataParallel(nn.Linear(6, 6)), nn.Linear(6, 6))
    plain = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    plan = plan_for(plain, "01", (0, 1, 2), FAMILIES["gpipe"].write((1, 1), 2))
    with pytest.raises(PlanError, match="0 is wrapped in DistributedDataParallel; give the bare module"):
        fit(plan, Workload(wrapped, drawn, nn.functional.mse_loss))
    lazy = nn.Sequential(nn.LazyLinear(6), nn.Linear(6, 6))
    with pytest.raises(PlanError, match=r"0.weight is a UninitializedParameter.*plain parameters"):
        fit(plan, Workload(lazy, drawn, nn.functional.mse_loss))


class Borrows(nn.Module):
    """A layer that reads a weight of another one, which it does not hold."""

    def __init__(self, other: nn.Linear) -> None:
        super().__init__()
        self.other = [other]

    def forward(self, x: Tensor) -> Tensor:
        return x * self.other[0].weight.sum()


def test_weights_of_other_layers_are_explained() -> None:
    """A stage that reads a weight which none of its layers holds has no values for it."""
    work, _ = stage_of({"a": Borrows(nn.Linear(4, 4, device="meta"))}, (torch.randn(2, 4).requires_grad_(),))
    with pytest.raises(PlanError, match=r"a weight that none of its own modules holds.*as for tied weights"):
        work.forward(0, (torch.randn(2, 4),), None)
