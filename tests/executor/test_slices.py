"""Sequences in slices, one after the other: loss, gradients and outputs are the unsliced model's."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from helpers.captured_models import tiny_bert, tiny_gpt2, tiny_llama
from helpers.distributed import models
from helpers.group_of_one import group_of_one
from helpers.plans import plan_for
from helpers.runnable_schedules import halved
from helpers.sliced import on_one_rank, sliced
from pipeplan.core.errors import PlanError
from pipeplan.core.pipeline import Stage, Transfer
from pipeplan.core.plan import Plan
from pipeplan.frontend.batch import call
from pipeplan.frontend.workload import Workload
from pipeplan.schedules import FAMILIES
from pipeplan.schedules.family import Family
from pipeplan.schedules.slices import sliced_families
from pipeplan_executor.stages.sliced_loss import SlicedLoss
from pipeplan_executor.stages.source import draw
from pipeplan_executor.stages.split import fit
from pipeplan_executor.train.pipeline import Pipeline
from pipeplan_executor.train.prefill import prefill_time
from pipeplan_executor.train.reference import materialised
from pipeplan_executor.train.verify import verify
from pipeplan_executor.zoo.decoder import Block, Embedding

EXACT = 1e-10
TOKENS, WORDS, WIDTH = 6, 20, 8
Build = Callable[[], Workload]


@pytest.fixture(scope="module", autouse=True)
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A process group of this process."""
    with group_of_one(tmp_path_factory.mktemp("alone")):
        yield


def planned(build: Build, tokens: tuple[int, ...], stages: int = 1, split: bool = False, again: bool = False) -> Plan:
    """Two micro-batches of two samples, all stages on one rank."""
    module, names, held = models.blank_model(build)
    schedule = FAMILIES["gpipe"].write((1,) * stages, 2)
    schedule = on_one_rank(halved(schedule) if split else schedule)
    cuts = [round(number * len(names) / stages) for number in range(stages + 1)]
    return sliced(plan_for(module, names, cuts, schedule, 2, "sgd", names if again else (), held), tokens)


class Relu(nn.Module):
    """A layer that treats tokens alike."""

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        return x.relu()


def language(*between: Callable[[], nn.Module], first: Callable[[], nn.Module] | None = None) -> Workload:
    """A causal block between an embedding and a head, with other layers behind it; some labels are ignored."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["embedding"] = first() if first else Embedding(WORDS, TOKENS, WIDTH)
    layers["block"] = Block(WIDTH, 2, 16)
    layers |= {f"between{number}": make() for number, make in enumerate(between)}
    layers["head"] = nn.Linear(WIDTH, WORDS)

    def drawn(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        text = torch.randint(WORDS, (samples, TOKENS + 1), generator=generator)
        ignored = torch.rand((samples, TOKENS), generator=generator) < 0.3
        return text[:, :-1].contiguous(), text[:, 1:].masked_fill(ignored, -100)

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    return Workload(nn.Sequential(layers), drawn, loss)


@pytest.mark.parametrize(
    ("tokens", "stages", "split", "again"),
    [((2, 2, 2), 3, True, False), ((3, 2, 1), 2, False, True), ((1, 5), 1, True, True)],
)
def test_gradients_are_those_of_whole_sequences(tokens: tuple[int, ...], stages: int, split: bool, again: bool) -> None:
    """Equal and unequal slices, joined and split backwards, kept and recomputed."""
    plan = planned(models.tiny_decoder, tokens, stages, split, again)
    assert verify(plan, models.tiny_decoder, 2).error < EXACT


@pytest.mark.slow
@pytest.mark.parametrize("build", [tiny_gpt2, tiny_llama])
@pytest.mark.parametrize(("split", "again"), [(False, False), (True, True)])
def test_gradients_of_captured_models_are_those_of_whole_sequences(build: Build, split: bool, again: bool) -> None:
    """With masks and rotary tables, grouped queries, padding, two tensors between layers."""
    stages = 1 if build is tiny_gpt2 else 3  # tied weights have ranks of their own
    for tokens in ((4, 4, 4), (6, 5, 1)):
        assert verify(planned(build, tokens, stages, split, again), build, 2).error < EXACT


@pytest.mark.parametrize(
    ("options", "dtype", "most"),
    [
        ({"precision": "fp16", "clip": 0.1}, None, 0.01),
        pytest.param({"precision": "bf16"}, None, 0.03, marks=pytest.mark.slow),
        pytest.param({"clip": 0.1}, torch.float64, EXACT, marks=pytest.mark.slow),
    ],
)
def test_clipped_and_mixed_training_is_that_of_whole_sequences(
    options: dict[str, Any], dtype: torch.dtype | None, most: float
) -> None:
    """Three updates; in mixed precision but for rounding, as what slices keep of each other is rounded too."""

    def trained(tokens: tuple[int, ...]) -> Tensor:
        plan = planned(models.tiny_decoder, tokens, 2)
        pipeline = Pipeline(plan, models.tiny_decoder, seed=2, dtype=dtype, evaluates=False, **options)
        before = nn.utils.parameters_to_vector(pipeline.parameters()).detach().clone()
        for number in range(3):
            pipeline.step(*draw(pipeline.workload, plan.batch, 0, dtype, number))
        return nn.utils.parameters_to_vector(pipeline.parameters()).detach() - before

    whole, cut = trained((TOKENS,)), trained((3, 2, 1))
    assert float((whole - cut).norm()) < most * float(whole.norm())


def test_what_is_evaluated_and_predicted_is_that_of_whole_sequences() -> None:
    """Outputs of slices are put together again."""
    pipeline = Pipeline(planned(models.tiny_decoder, (3, 2, 1), 2), models.tiny_decoder, seed=2, dtype=torch.float64)
    inputs, targets = draw(pipeline.workload, 4, 0, torch.float64)
    with torch.no_grad():
        made = call(materialised(pipeline.fitted, seed=2, dtype=torch.float64), inputs)
    assert pipeline.evaluate(inputs, targets) == pytest.approx(float(pipeline.workload.loss(made, targets)), rel=1e-9)
    assert torch.allclose(pipeline.predict(inputs), made)


@pytest.mark.parametrize("family", sliced_families(3))
def test_forwards_alone_take_the_way_of_the_last_slice(family: Family) -> None:
    """Of equal stages a slice follows the one before it; later slices take longer, and backwards nothing."""
    stage = Stage((10, 20, 30), (50, 50, 50))
    plan = planned(models.tiny_decoder, (2, 2, 2))
    ends = {"placement": ((0,), (1,)), "transfers": ((Transfer(),),), "returns": ((Transfer(5),),)}
    pipeline = replace(plan.pipeline, stages=(stage, stage), runtime=(0, 0), limits=(2**40,) * 2, **ends)
    assert prefill_time(replace(plan, schedule=family.write((1, 1), 1), pipeline=pipeline)) == 10 + 20 + 30 + 30


class Window(nn.Module):
    """Causal attention with a mask: to the last three tokens."""

    def __init__(self, ahead: int = 0) -> None:
        super().__init__()
        self.linear, self.ahead = nn.Linear(WIDTH, WIDTH), ahead

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        y = self.linear(x).unsqueeze(1)
        mask = torch.ones(TOKENS, TOKENS, dtype=torch.bool, device=x.device).tril(self.ahead).triu(-2)
        return x + functional.scaled_dot_product_attention(y, y, y, attn_mask=mask).squeeze(1)


class Norm(nn.Module):
    """A norm of squares."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        return x + self.norm(x)


class Counted(nn.Module):
    """An embedding with positions that the layer counts itself, and a longer table of them."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(TOKENS + 4, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return the embedded words."""
        places = torch.arange(x.shape[1], device=x.device)
        return self.words(x) + self.positions(places) + self.positions.weight[2 : 2 + x.shape[1]] * places[:, None]


class Dropped(nn.Module):
    """Dropout of a product."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        return x + functional.dropout(self.linear(x), 0.4, self.training)


@pytest.mark.parametrize("build", [partial(language, Window, Norm), partial(language, Dropped, first=Counted)])
def test_positions_masks_and_dropout_are_cut(build: Build) -> None:
    """Each slice has the positions, rows of masks and random numbers that its tokens have in the whole sequence."""
    assert verify(planned(build, (3, 2, 1)), build, 2).error < EXACT


class Pooled(nn.Module):
    """The mean over tokens."""

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        return x + x.mean(1, keepdim=True)


class Ahead(nn.Module):
    """The next token."""

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        return x + functional.pad(x[:, 1:], (0, 0, 0, 1))


class Recurrent(nn.Module):
    """A state that passes from token to token."""

    def __init__(self) -> None:
        super().__init__()
        self.state = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        return x + self.state(x)[0]


class Normalised(nn.Module):
    """Batch norm, whose statistics are over all tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        return x + self.norm(x.transpose(1, 2)).transpose(1, 2)


class Everywhere(nn.Module):
    """Attention to all tokens."""

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        y = x.unsqueeze(1)
        return x + functional.scaled_dot_product_attention(y, y, y).squeeze(1)


@pytest.mark.parametrize(
    ("layer", "operator"),
    [
        (Pooled, "mean"),
        (Ahead, "padding"),
        (Recurrent, "state"),
        (Normalised, "norm"),
        (Everywhere, "attention"),
    ],
)
def test_models_that_mix_tokens_are_refused(layer: Callable[[], nn.Module], operator: str) -> None:
    """The error names the operator, the layer, and the line."""
    build = partial(language, layer)
    with pytest.raises(PlanError, match=rf"'{operator}' in layer between0 \(test_slices.py, line \d+\) needs other"):
        fit(planned(build, (3, 3)), build)


def test_masks_that_show_later_tokens_are_refused() -> None:
    """They are known when the attention runs."""
    build = partial(language, partial(Window, 1))
    pipeline = Pipeline(planned(build, (3, 3)), build)
    with pytest.raises(PlanError, match="between0 attends to later tokens"):
        pipeline.step(*draw(pipeline.workload, 4, 0))


@pytest.mark.slow
def test_captured_models_that_look_both_ways_are_refused() -> None:
    """BERT's mask hides padding only."""
    pipeline = Pipeline(planned(tiny_bert, (6, 6)), tiny_bert)
    with pytest.raises(PlanError, match="attends to later tokens"):
        pipeline.step(*draw(pipeline.workload, 4, 0))


@pytest.mark.parametrize("tokens", [(3, 2), (3, 3, 3)])
def test_slices_of_other_sequences_are_refused(tokens: tuple[int, ...]) -> None:
    """Their tokens add up to those of the model."""
    with pytest.raises(PlanError, match=f"sequences of {sum(tokens)} tokens, and those of layer embedding have 6"):
        fit(planned(models.tiny_decoder, tokens), models.tiny_decoder)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"staleness": 1}, "staleness and slices"),
        ({"slices": ()}, r"the schedule has 2 slices of each sequence, and the plan names tokens of \(\)"),
    ],
)
def test_what_does_not_run_in_slices_is_refused(change: dict[str, Any], why: str) -> None:
    """The error says what to leave out."""
    with pytest.raises(PlanError, match=why):
        fit(replace(planned(models.tiny_decoder, (3, 3)), **change), models.tiny_decoder)


def _shifted(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits[:, :-1].reshape(-1, WORDS), labels[:, 1:].reshape(-1))


def _padded(logits: Tensor, labels: Tensor) -> Tensor:
    labels = functional.pad(labels, (0, 1), value=-100)[..., 1:].contiguous()
    return functional.cross_entropy(
        logits.view(-1, WORDS), labels.view(-1), weight=torch.linspace(1, 2, WORDS).double()
    )


def _summed(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits.transpose(1, 2), labels, reduction="sum") / 100


def _gathered(logits: Tensor, labels: Tensor) -> Tensor:
    own = logits.log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None]).squeeze(-1)
    return -(own * (labels >= 0)).mean() + 0.1 * logits.square().mean()


@pytest.mark.parametrize("loss", [_shifted, _padded, _summed, _gathered])
def test_losses_of_slices_add_up(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Labels are cut behind their shift, and a mean is over all that count."""
    draws = torch.Generator().manual_seed(1)
    logits = torch.randn(3, TOKENS, WORDS, dtype=torch.float64, generator=draws).requires_grad_()
    labels = torch.randint(WORDS, (3, TOKENS), generator=draws)
    labels[0, 2:5] = labels[2, 4] = -100
    blank = logits.detach().to("meta").requires_grad_()
    tokens = (2, 3, 1)
    own = SlicedLoss(
        lambda out, labels: loss(*out, labels), (blank,), labels.to("meta"), (1,), tokens, torch.enable_grad
    )
    whole = loss(logits, labels)
    parts = [own((part,), labels, number) for number, part in enumerate(logits.split(tokens, 1))]
    assert torch.allclose(sum(parts), whole)
    expected, found = (torch.autograd.grad(each, logits)[0] for each in (whole, sum(parts)))
    assert torch.allclose(found, expected)


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        (lambda out, labels: functional.cross_entropy(out[0][:, 0], labels[:, 0]), "'select' mixes tokens"),
        (lambda out, labels: out[0].mean() ** 2 * labels.sum(), "'pow' reads it"),
        (lambda out, labels: out[0].mean(1).square().mean() * labels.sum(), "'pow' reads it"),
        (lambda out, labels: out[0].flip(1).mean() * labels.sum(), "'flip' mixes tokens"),
    ],
)
def test_losses_that_are_no_sums_are_refused(loss: Callable[..., Tensor], why: str) -> None:
    """The error says what a loss may be."""
    blank, labels = torch.empty(3, TOKENS, WORDS, device="meta", requires_grad=True), torch.zeros(3, TOKENS).long()
    with pytest.raises(PlanError, match=f"must be a sum or mean over tokens: {why}"):
        SlicedLoss(loss, (blank,), labels.to("meta"), (1,), (3, 3), torch.enable_grad)
