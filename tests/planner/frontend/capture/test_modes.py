"""Modes of captured layers, which follow train() and eval()."""

import copy

import pytest
import torch
from torch import nn

from helpers.cut_by_hand import WIDTH, Dropping, LooksAtValuesInEvaluation, OtherInEvaluation
from pipeplan.core.errors import InputError
from pipeplan.frontend.capture import LayerSequence, capture_layers


def through(sequence: LayerSequence, inputs: torch.Tensor) -> torch.Tensor:
    """One pass over all layers."""
    value = inputs
    for layer in sequence.layers:
        value = layer(*value) if isinstance(value, tuple) else layer(value)
    return sequence.restore(value)


@pytest.mark.parametrize("training", [True, False])
def test_dropout_and_batch_norm_do_what_the_module_does(training: bool) -> None:
    """With the same random numbers, outputs and statistics are the module's, in either mode."""
    torch.manual_seed(0)
    module, inputs = Dropping().train(not training), torch.randn(5, WIDTH)
    whole = copy.deepcopy(module).train(training)
    sequence = capture_layers(module, inputs, front_end="graph")
    for layer in sequence.layers:
        layer.train(training)
    for _ in range(2):
        torch.manual_seed(1)
        expected = whole(inputs)
        torch.manual_seed(1)
        torch.testing.assert_close(through(sequence, inputs), expected, rtol=0, atol=0)
    torch.testing.assert_close(dict(module.named_buffers()), dict(whole.named_buffers()), rtol=0, atol=0)
    assert int(whole.norm.num_batches_tracked) == 2 * training


def test_layers_begin_in_the_mode_of_the_module() -> None:
    """Layers of a module in evaluation mode start in evaluation mode."""
    sequence = capture_layers(Dropping().eval(), torch.randn(5, WIDTH), front_end="graph")
    assert not any(layer.training for layer in sequence.layers)


@pytest.mark.parametrize("training", [True, False])
def test_a_module_that_computes_something_else_is_refused_in_the_other_mode(training: bool) -> None:
    """If more than flags differ, layers refuse the other mode, and the error names the captured one."""
    module, inputs = OtherInEvaluation().train(training), torch.randn(5, WIDTH)
    sequence = capture_layers(module, inputs, front_end="graph")
    torch.testing.assert_close(through(sequence, inputs), module(inputs))
    with pytest.raises(InputError, match="captured for"):
        sequence.layers[0].train(not training)(inputs)


def test_a_module_whose_evaluation_cannot_be_captured_still_trains() -> None:
    """Layers of such a module equal it in training, and refuse evaluation."""
    module, inputs = LooksAtValuesInEvaluation(), torch.randn(5, WIDTH)
    sequence = capture_layers(module, inputs, front_end="graph")
    torch.testing.assert_close(through(sequence, inputs), module(inputs))
    with pytest.raises(InputError, match="captured for training only"):
        sequence.layers[0].eval()(inputs)


def test_one_mode_only_when_asked() -> None:
    """Without both modes the layers compute the present one and refuse the other."""
    module, inputs = Dropping().eval(), torch.randn(5, WIDTH)
    sequence = capture_layers(module, inputs, front_end="graph", both_modes=False)
    torch.testing.assert_close(through(sequence, inputs), module(inputs))
    with pytest.raises(InputError, match="both_modes"):
        sequence.layers[0].train()(inputs)


def test_parts_that_are_frozen_in_evaluation_stay_so_in_training() -> None:
    """A norm that the user keeps in evaluation mode uses its statistics although the module trains."""
    module = nn.Sequential(nn.Linear(WIDTH, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    module[1].eval()
    inputs = torch.randn(5, WIDTH)
    sequence = capture_layers(module, inputs, front_end="graph")
    torch.testing.assert_close(through(sequence, inputs), module(inputs))
    assert int(module[1].num_batches_tracked) == 0
