"""Models of ``transformers`` by a line of text, with random weights and batches."""

import json
from pathlib import Path

import pytest
import torch

import pipeplan
from pipeplan.core.errors import InputError
from pipeplan.frontend.workload import load_workload

pytest.importorskip("transformers")
SMALL = "hf:gpt2?n_layer=1&n_embd=16&n_head=2&vocab_size=32&tokens=8&bos_token_id=1&eos_token_id=2"


@pytest.mark.parametrize(
    ("spec", "inputs", "targets"),
    [
        (SMALL, {"input_ids": (2, 8)}, (2, 8)),
        (
            "hf:vit?num_hidden_layers=1&hidden_size=16&num_attention_heads=2&image_size=16&patch_size=8",
            {"pixel_values": (2, 3, 16, 16)},
            (2,),
        ),
        (  # of several classes for images, the plain one
            "hf:deit?num_hidden_layers=1&hidden_size=16&num_attention_heads=2&image_size=16&patch_size=8",
            {"pixel_values": (2, 3, 16, 16)},
            (2,),
        ),
        (
            "hf:t5?d_model=16&d_kv=8&d_ff=16&num_layers=1&num_heads=2&vocab_size=32&tokens=6",
            {"input_ids": (2, 6), "decoder_input_ids": (2, 6)},
            (2, 6),
        ),
    ],
)
def test_batches_are_what_the_model_reads(spec: str, inputs: dict, targets: tuple[int, ...]) -> None:
    """Text, images and pairs of text get a loss with a gradient."""
    workload = load_workload(spec)
    drawn, wanted = workload.draw(2, torch.Generator().manual_seed(0))
    assert {name: tuple(tensor.shape) for name, tensor in drawn.items()} == inputs
    assert tuple(wanted.shape) == targets
    workload.loss(workload.module(**drawn), wanted).backward()
    assert any(parameter.grad is not None for parameter in workload.module.parameters())


def test_it_is_profiled_by_its_name_with_the_cache_off() -> None:
    """``profile("hf:…")`` draws the inputs; the cache, which is on by default, is off in what is captured."""
    model = pipeplan.profile(SMALL, micro_batches=(2,), device="meta")
    assert model.name == "gpt2"
    assert [layer.name for layer in model.layers][-1] == "lm_head"
    assert load_workload(SMALL).module.config.use_cache


def test_a_folder_with_a_configuration(tmp_path: Path) -> None:
    """A local config.json gives the sizes, and the text may change some."""
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 3, "n_embd": 16, "n_head": 2}
    (tmp_path / "config.json").write_text(json.dumps({**config, "vocab_size": 32, "eos_token_id": 2}))
    module = load_workload(f"hf:{tmp_path}?n_layer=1").module
    assert len(module.transformer.h) == 1
    assert module.transformer.wte.weight.shape == (32, 16)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("hf:gpt22", r"'gpt22' is neither a type of model nor a folder.*did you mean 'gpt2'"),
        ("hf:gpt2?n_layers=2", r"GPT2Config has no n_layers; did you mean 'n_layer'"),
        ("hf:gpt2?n_layer", r"'n_layer' is no option; write name=value"),
        ("hf:gpt2?tokens=none", r"tokens is the length of a sample"),
        ("hf:gpt2?n_embd=15&n_head=2", r"cannot build hf:gpt2\?n_embd=15&n_head=2: .*divisible"),
    ],
)
def test_what_cannot_be_built_is_refused(spec: str, text: str) -> None:
    """The error names what is wrong, and what is near."""
    with pytest.raises(InputError, match=text):
        load_workload(spec)


def test_experts_are_counted() -> None:
    """Every token of a mixture is multiplied with the matrices of two experts, and with each in both gradients."""
    sizes = "num_hidden_layers=1&hidden_size=16&intermediate_size=32&num_attention_heads=2&num_key_value_heads=1"
    model = pipeplan.profile(f"hf:mixtral?{sizes}&vocab_size=64&tokens=8", micro_batches=(1,), device="meta")
    experts = [layer.work for layer in model.layers if "experts" in layer.name]
    products = 2 * 8 * 2 * 3 * 16 * 32  # experts of a token, matrices of an expert
    for name in ("forward_flops", "input_gradient_flops", "weight_gradient_flops"):
        assert sum(getattr(work, name) for work in experts) == products
    assert not model.uncounted
