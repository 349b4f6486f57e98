"""Other architectures of `transformers`, whose results are unchanged by cuts; in the slow run only."""

import copy
import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers.cut_passes import differences, pass_through, relative
from pipeplan.frontend.batch import call
from pipeplan.frontend.capture.graph.captured import CapturedModel

WORDS, IMAGE, LENGTH = 64, 32, 8
SMALL = {
    "vocab_size": WORDS,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
    "use_cache": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**SMALL, "num_key_value_heads": 1}
SEEING = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": IMAGE,
    "patch_size": 8,
}
BOTH = {
    "vocab_size": WORDS,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "use_cache": False,
}
NESTED = {"text_config": SMALL, "vision_config": SEEING, "projection_dim": 8}
OPT = {**SMALL, "ffn_dim": 32, "word_embed_proj_dim": 16}
SWIN = {"image_size": 32, "patch_size": 2, "embed_dim": 8, "depths": [2, 2], "num_heads": [1, 2], "window_size": 4}
CONVNEXT = {"depths": [1, 1, 2, 1], "hidden_sizes": [8, 8, 16, 16]}
GPTJ = {"vocab_size": WORDS, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2, "rotary_dim": 4}
XLNET = {"vocab_size": WORDS, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 32}
DEBERTA = {**SMALL, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}

CASES: list[tuple[str, str, dict[str, Any], str]] = [
    ("MistralForCausalLM", "MistralConfig", {**GROUPED, "head_dim": 8}, "text"),
    ("Qwen3ForCausalLM", "Qwen3Config", {**GROUPED, "head_dim": 8}, "text"),
    ("Gemma2ForCausalLM", "Gemma2Config", {**GROUPED, "head_dim": 8}, "text"),
    ("Phi3ForCausalLM", "Phi3Config", GROUPED, "text"),
    ("GPTNeoXForCausalLM", "GPTNeoXConfig", SMALL, "text"),
    ("GPTJForCausalLM", "GPTJConfig", {**GPTJ, "use_cache": False}, "text"),
    ("OPTForCausalLM", "OPTConfig", OPT, "text"),
    ("BloomForCausalLM", "BloomConfig", {**SMALL, "n_layer": 2, "n_head": 2}, "text"),
    ("MambaForCausalLM", "MambaConfig", {**SMALL, "state_size": 4}, "text"),
    ("RobertaForMaskedLM", "RobertaConfig", SMALL, "text"),
    ("ElectraForMaskedLM", "ElectraConfig", {**SMALL, "embedding_size": 16}, "text"),
    ("AlbertForMaskedLM", "AlbertConfig", {**SMALL, "embedding_size": 8}, "text"),
    ("DebertaV2ForMaskedLM", "DebertaV2Config", DEBERTA, "text"),
    ("XLNetLMHeadModel", "XLNetConfig", XLNET, "text"),
    ("BartForConditionalGeneration", "BartConfig", {**BOTH, "max_position_embeddings": 32}, "both"),
    ("ViTForImageClassification", "ViTConfig", SEEING, "image"),
    ("SwinForImageClassification", "SwinConfig", SWIN, "image"),
    ("ConvNextForImageClassification", "ConvNextConfig", CONVNEXT, "image"),
    ("CLIPModel", "CLIPConfig", NESTED, "text and image"),
]


def inputs_for(kind: str) -> dict[str, Tensor]:
    """Inputs of two samples."""
    text = torch.randint(3, WORDS, (2, LENGTH))
    image = torch.randn(2, 3, IMAGE, IMAGE, dtype=torch.float64)
    return {
        "text": {"input_ids": text},
        "both": {"input_ids": text, "decoder_input_ids": text.flip(1)},
        "image": {"pixel_values": image},
        "text and image": {"input_ids": text, "pixel_values": image},
    }[kind]


def without_chance(config: Any) -> Any:
    """The configuration with every dropout at zero."""
    for part in (config, getattr(config, "text_config", None), getattr(config, "vision_config", None)):
        for name, value in vars(part or config).items():
            if isinstance(value, float) and ("drop" in name or "pdrop" in name):
                setattr(part or config, name, 0.0)
    return config


def squares(outputs: object) -> Tensor:
    """Sum of squares of every floating-point output."""
    leaves = torch.utils._pytree.tree_leaves(outputs)
    found = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    return sum((leaf * (n + 1)).square().mean() for n, leaf in enumerate(found))  # type: ignore[return-value]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "config", "shape", "kind"), CASES, ids=[case[0] for case in CASES])
def test_architecture(model: str, config: str, shape: dict[str, Any], kind: str) -> None:
    """Loss and gradients equal the unsplit model's to 1e-10 in float64, at its own cuts and at random ones."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    settings = without_chance(getattr(transformers, config)(**shape))
    module: nn.Module = getattr(transformers, model)(settings).double().train()
    inputs = inputs_for(kind)
    captured = CapturedModel(module, inputs, both_modes=False)
    whole = copy.deepcopy(module)
    state = copy.deepcopy(module.state_dict())
    expected = squares(call(whole, inputs))
    expected.backward()
    generator = random.Random(0)
    sets = [captured.module_cuts(), *(sorted(generator.sample(captured.places, 3)) for _ in range(4))]
    for cuts in sets:
        module.load_state_dict(state)
        module.zero_grad()
        loss = pass_through(captured.cut_at(cuts), inputs, squares)
        assert max(relative(loss, expected), *differences(module, whole)) <= 1e-10
