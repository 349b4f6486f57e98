"""Shared weights: found, counted once, and timed once, on any device."""

import torch
from torch import nn

from helpers.torch_chains import Block
from helpers.torch_chains import transformer as untied
from pipeplan.core.model import Tie
from pipeplan.frontend.parameters import find_ties, held_by
from pipeplan.frontend.profile import profile

TABLE = 4 * 50 * 16
NAMES = ("0", "1", "2", "3", "4")


def tied() -> tuple[nn.Sequential, torch.Tensor]:
    """Chain of embedding, two blocks, norm, and a head with the embedding's matrix and a bias."""
    module, batch = untied()
    module[4].weight = module[0].weight
    return module, batch


def test_the_shared_matrix_counts_with_the_first_layer() -> None:
    """The model names the tie, and its parameters add up to the module's."""
    module, batch = tied()
    model = profile(module, batch, micro_batches=(2,), repeats=1, warmup=0)
    assert model.ties == (Tie(("0", "4"), TABLE),)
    assert [model.layers[i].parameters for i in (0, 4)] == [TABLE, 4 * 50]
    assert sum(layer.parameters for layer in model.layers) == 4 * sum(p.numel() for p in module.parameters())
    assert module[4].weight is module[0].weight


def test_a_module_without_values_is_profiled_alike() -> None:
    """Layers measured from the meta device have the same ties and fingerprint; the head still steps its bias."""
    module, batch = tied()
    here = profile(module, batch, micro_batches=(2,), repeats=1, warmup=0)
    with torch.device("meta"):
        blank, _ = tied()
    there = profile(blank, batch, micro_batches=(2,), repeats=1, warmup=0)
    assert there.ties == here.ties
    assert there.fingerprint == here.fingerprint
    assert all(model.profiles[0].costs[4].update > 0 for model in (here, there))


def test_a_layer_whose_weights_all_count_elsewhere_has_no_update() -> None:
    """A head without a bias of its own has nothing to step, and no bytes of parameters."""
    module, batch = untied()
    module[4] = nn.Linear(16, 50, bias=False)
    module[4].weight = module[0].weight
    model = profile(module, batch, micro_batches=(2,), repeats=1, warmup=0)
    assert model.layers[4].parameters == model.profiles[0].costs[4].update == 0
    assert model.profiles[0].costs[0].update > 0


def test_sets_of_layers_that_share_are_told_apart() -> None:
    """Two matrices of the same two blocks are one tie, one shared with a third layer another; frozen ones are apart."""
    blocks = [Block(16, 2) for _ in range(3)]
    module = nn.Sequential(nn.Embedding(50, 16), *blocks, nn.Linear(16, 50))
    blocks[1].up.weight, blocks[1].down.weight = blocks[0].up.weight, blocks[0].down.weight
    for block in blocks[1:]:
        block.qkv.weight = blocks[0].qkv.weight
        block.norm.weight = blocks[0].norm.weight.requires_grad_(False)
    ties = {tie.layers: tie.parameters for tie in find_ties(module, NAMES, held_by(module, NAMES))}
    assert ties == {("1", "2"): 4 * 2 * 16 * 64, ("1", "2", "3"): 4 * 16 * 48}
    found = find_ties(module, NAMES, held_by(module, NAMES))
    assert {tie.layers: tie.frozen for tie in found if tie.frozen} == {("1", "2", "3"): 4 * 16}


def test_nothing_shared_is_no_tie() -> None:
    """A module whose layers have parameters of their own has no ties."""
    assert find_ties(untied()[0], NAMES, held_by(untied()[0], NAMES)) == ()
