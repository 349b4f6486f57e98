"""Cut models compute the same as unsplit models."""

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from helpers.captured_models import OURS, TRANSFORMERS, tiny_bert, tiny_gpt2, tiny_llama, tiny_t5
from helpers.cut_passes import differences, pass_through, relative
from helpers.quick import QUICK
from pipeplan.frontend.batch import call, mapped
from pipeplan.frontend.capture.graph.captured import CapturedModel
from pipeplan.frontend.workload import Workload

CUT_SETS = 7 if QUICK else 20


@pytest.fixture(params=[*OURS, *TRANSFORMERS], ids=lambda build: build.__name__)
def workload(request: pytest.FixtureRequest) -> Workload:
    """Every model, in float64."""
    if request.param in TRANSFORMERS:
        pytest.importorskip("transformers")
    torch.manual_seed(0)
    return in_float64(request.param())


def in_float64(workload: Workload) -> Workload:
    """The workload with its module in float64."""
    workload.module.double()
    return workload


def test_loss_gradients_and_buffers_at_random_cut_sets(workload: Workload) -> None:
    """Loss, all gradients and all buffers equal the unsplit model's to 1e-10 in float64, wherever the graph is cut."""
    assert worst_of_cut_sets(workload, CUT_SETS) <= 1e-10


def worst_of_cut_sets(workload: Workload, count: int, samples: int = 2) -> float:
    """Largest relative difference over random cut sets and the default cuts."""
    module = workload.module
    inputs, targets = draw(workload, samples)
    model = CapturedModel(module, inputs, both_modes=False)
    state = copy.deepcopy(module.state_dict())
    whole = copy.deepcopy(module)
    reference = workload.loss(call(whole, inputs), targets)
    reference.backward()
    generator = random.Random(0)
    worst = 0.0
    for number in range(count):
        places = model.places
        some = sorted(generator.sample(places, min(len(places), generator.randint(1, 7))))
        module.load_state_dict(state)
        module.zero_grad()
        sequence = model.cut_at(some if number else model.module_cuts())
        loss = pass_through(sequence, inputs, lambda outputs: workload.loss(outputs, targets))
        worst = max(worst, relative(loss, reference), *differences(module, whole))
    return worst


def draw(workload: Workload, samples: int) -> tuple[Any, Any]:
    """A batch whose floating-point parts are float64."""
    inputs, targets = workload.draw(samples, torch.Generator().manual_seed(3))
    return mapped(inputs, lambda tensor: tensor.double() if tensor.is_floating_point() else tensor), targets


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "layers"), [(tiny_gpt2, 24), (tiny_bert, 24), (tiny_llama, 16), (tiny_t5, 12)], ids=lambda v: str(v)
)
def test_real_depths(build: Callable[[int], Workload], layers: int) -> None:
    """Loss, gradients and buffers are equal for the depths of GPT-2 medium, BERT-large, Llama 1B and T5-base."""
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    assert worst_of_cut_sets(in_float64(build(layers)), CUT_SETS) <= 1e-10
