"""A plan of one process: its training is plain torch's, and the verdict says what it was compared with."""

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from helpers.distributed import models
from helpers.group_of_one import group_of_one
from helpers.plans import plan_for
from helpers.runnable_schedules import halved
from pipeplan.core.errors import InputError
from pipeplan.core.plan import Plan
from pipeplan.frontend.batch import call
from pipeplan.frontend.workload import Workload
from pipeplan.schedules import FAMILIES
from pipeplan_executor.runtime.gloo import TINY, message_thread, schedule_messages
from pipeplan_executor.stages.source import draw
from pipeplan_executor.stages.stage import StageWork
from pipeplan_executor.train.pipeline import Pipeline
from pipeplan_executor.train.reference import materialised
from pipeplan_executor.train.verify import verify

SEED, RATE, EXACT = 3, 0.05, 1e-12
SCHEDULE = FAMILIES["gpipe"].write((1,), 3)


@pytest.fixture(scope="module", autouse=True)
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A process group of this process."""
    with group_of_one(tmp_path_factory.mktemp("alone")):
        yield


class Total(nn.Module):
    """The sum of all numbers of a micro-batch."""

    def forward(self, x: Tensor) -> Tensor:
        """A number."""
        return x.sum()


def totals() -> Workload:
    """A model that returns a number for a micro-batch."""

    def drawn(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return torch.randn(samples, 8, generator=generator), torch.zeros(samples)

    return Workload(nn.Sequential(nn.Linear(8, 4), Total()), drawn, lambda total, _: total.square())


def planned(build: Callable[[], Workload], split: bool = False, optimizer: str = "sgd") -> Plan:
    """Three micro-batches of two samples on one stage."""
    module, names, held = models.blank_model(build)
    schedule = halved(SCHEDULE) if split else SCHEDULE
    return plan_for(module, names, (0, len(names)), schedule, 2, optimizer, names[:1], held)


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("split", [False, True])
def test_training_is_that_of_a_plain_loop(split: bool, clip: float | None) -> None:
    """Losses, weights, evaluation and predictions, with gradients of a weighted step that count in the next update."""
    plan = planned(models.tiny_mlp, split, "adam")
    pipeline = Pipeline(plan, models.tiny_mlp, seed=SEED, dtype=torch.float64, learning_rate=RATE, clip=clip)
    whole = materialised(pipeline.fitted, seed=SEED, dtype=torch.float64)
    optimizer = torch.optim.Adam(whole.parameters(), lr=RATE)

    def loss(number: int, weight: float = 1.0) -> float:
        inputs, targets = draw(pipeline.workload, plan.batch, 0, torch.float64, number)
        found = pipeline.workload.loss(call(whole, inputs), targets)
        (weight * found).backward()
        return float(found.detach())

    for number in range(3):
        batch = draw(pipeline.workload, plan.batch, 0, torch.float64, number)
        optimizer.zero_grad()
        if number == 1:
            assert pipeline.step(*batch, update=False, weight=0.5) == pytest.approx(loss(1, 0.5), rel=EXACT)
            assert pipeline.accumulates
        assert pipeline.step(*batch) == pytest.approx(loss(number), rel=EXACT)
        if clip is not None:
            assert nn.utils.clip_grad_norm_(whole.parameters(), clip) > clip
        optimizer.step()
    expected = dict(whole.named_parameters())
    for name, parameter in pipeline.named_parameters():
        assert torch.allclose(parameter, expected[name], rtol=0, atol=1e-10), name
    inputs, targets = batch = draw(pipeline.workload, plan.batch, 0, torch.float64, 7)
    with torch.no_grad():
        made = call(whole, inputs)
    assert pipeline.evaluate(*batch) == pytest.approx(float(pipeline.workload.loss(made, targets)), rel=1e-9)
    assert torch.allclose(pipeline.predict(inputs), made)


@pytest.mark.parametrize("clip", [None, 0.05])
def test_late_gradients_are_applied_in_order(clip: float | None, tmp_path: Path) -> None:
    """Batch t runs with W(t - 1) and its gradient makes W(t + 1) of W(t), evaluated, saved and resumed on the way."""
    plan = replace(planned(models.tiny_mlp, optimizer="adam"), staleness=1)

    def begun() -> Pipeline:
        return Pipeline(plan, models.tiny_mlp, seed=SEED, dtype=torch.float64, learning_rate=RATE, clip=clip)

    def batch(number: int) -> tuple[Tensor, Tensor]:
        return draw(pipeline.workload, plan.batch, 0, torch.float64, number)

    pipeline = begun()
    whole = materialised(pipeline.fitted, seed=SEED, dtype=torch.float64)
    parameters = list(whole.parameters())
    optimizer = torch.optim.Adam(parameters, lr=RATE)
    losses, found, late = [], [], None
    for number in range(6):
        inputs, targets = batch(number)
        loss = pipeline.workload.loss(call(whole, inputs), targets)
        fresh = torch.autograd.grad(loss, parameters)
        for parameter, gradient in zip(parameters, late or (), strict=bool(late)):
            parameter.grad = gradient
        if late and clip is not None:
            nn.utils.clip_grad_norm_(parameters, clip)
        optimizer.step()
        losses.append(float(loss.detach()))
        late = fresh
        found.append(pipeline.step(inputs, targets))
        if number == 3:  # its batch ends, and another pipeline goes on
            pipeline.save(tmp_path)
            found.append(pipeline.drain())
            pipeline = begun()
            pipeline.load(tmp_path)
            evaluated = pipeline.evaluate(*batch(7))
            assert evaluated != losses[-1]
    found = [loss for loss in (*found, pipeline.drain()) if loss == loss]
    assert found == pytest.approx(losses, rel=EXACT)
    assert math.isnan(pipeline.drain())
    with pytest.raises(InputError, match="every batch has an update of its own"):
        pipeline.step(*batch(0), update=False)


def test_a_verdict_of_late_gradients_is_over_several_updates() -> None:
    """Delayed updates of the unsplit model are what such a plan is compared with; nothing else would be equal."""
    found = verify(replace(planned(models.tiny_mlp), staleness=1), models.tiny_mlp, SEED)
    assert found.holds and found.error < 1e-10
    assert "losses and weights equal" in str(found) and "4 updates in one process" in found.compared


def test_numbers_of_micro_batches_are_predicted_one_behind_the_other() -> None:
    """What has no axis of samples is stacked."""
    pipeline = Pipeline(planned(totals), totals, seed=SEED)
    inputs, _ = draw(pipeline.workload, 6, 0)
    whole = materialised(pipeline.fitted, seed=SEED)
    assert torch.allclose(pipeline.predict(inputs), torch.stack([call(whole, part) for part in inputs.split(2)]))


@pytest.mark.parametrize(
    ("build", "dtype", "compared", "changed"),
    [
        (models.tiny_mlp, "float64", "", False),
        (models.tiny_stages, "float64", "", False),
        (models.tiny_dropping, "float64", "micro-batch by micro-batch, without dropout and with it", False),
        (models.tiny_single, "float32", "", False),
        (models.tiny_sums, "float64", "", True),
    ],
)
def test_a_verdict_says_what_was_compared(
    build: Callable[[], Workload], dtype: str, compared: str, changed: bool
) -> None:
    """The whole batch at once where samples are treated apart; a loss that is no mean is told, and nothing else."""
    found = verify(planned(build), build, SEED)
    assert found.error <= found.tolerance
    assert (found.dtype, bool(found.changed), found.holds) == (dtype, changed, not changed)
    assert compared in found.compared and (bool(compared) or changed or not found.compared)
    assert found.spread is None


def test_rounding_inside_is_measured() -> None:
    """A model that rounds to float32 inside differs from itself in another order, and by that it is judged."""
    found = verify(planned(models.tiny_rounding), models.tiny_rounding, SEED)
    assert found.holds and found.spread is not None
    assert found.spread < found.tolerance < 1e-3


def test_gradients_that_are_no_numbers_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the loss is right: they are not smaller than the tolerance, as no comparison with them is true."""
    monkeypatch.setattr(StageWork, "_first_gradient", lambda work, n: torch.full_like(work.losses[n], torch.nan))
    found = verify(planned(models.tiny_mlp), models.tiny_mlp, SEED)
    assert not found.holds


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="policies of Linux")
def test_the_thread_of_tiny_messages_displaces_no_other() -> None:
    """Gloo's thread steps back for an action's thread if all messages fit into a socket's buffer, and else does not."""
    schedule_messages(TINY)
    assert os.sched_getscheduler(message_thread()) == os.SCHED_BATCH
    schedule_messages(TINY + 1)
    assert os.sched_getscheduler(message_thread()) == os.SCHED_OTHER
