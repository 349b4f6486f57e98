"""Models that are not chains of modules, small enough to be cut in many ways, importable by other processes."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeplan.frontend.workload import Workload
from pipeplan_executor.zoo import gnmt, resnet50, unet, vgg16


def tiny_gnmt() -> Workload:
    """GNMT with two inputs, residuals, and a context that every layer of the decoder reads."""
    return gnmt(layers=3, width=16, vocabulary=40, source=7, target=6)


def tiny_unet() -> Workload:
    """U-Net with skips over most of the model and rectifiers in place."""
    return unet(image=16, classes=3, width=8, depth=2)


def tiny_vgg() -> Workload:
    """VGG: a chain, captured as a graph."""
    return vgg16(image=32, classes=7, classifier=12, channels=((4, 4), (4, 4), (6, 6, 6), (6, 6, 6), (8, 8, 8)))


def tiny_resnet() -> Workload:
    """ResNet: residual blocks with batch norm, whose statistics change with every pass."""
    return resnet50(image=32, classes=5, width=4, blocks=(1, 2, 1, 1))


def tiny_gpt2(layers: int = 2) -> Workload:
    """GPT-2 with tied embedding and head."""
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=layers, n_head=2, use_cache=False)
    shape.update({"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0})
    return _language(GPT2LMHeadModel(shape), lambda text: {"input_ids": text})


def tiny_bert(layers: int = 2) -> Workload:
    """BERT that fills masked words, with padding."""
    from transformers import BertConfig, BertForMaskedLM

    shape = BertConfig(
        vocab_size=64,
        hidden_size=16,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return _language(BertForMaskedLM(shape), lambda text: {"input_ids": text, "attention_mask": _padding(text)})


def tiny_llama(layers: int = 2) -> Workload:
    """Llama: rotary positions, grouped queries; the batch lists its tensors in another order than the module."""
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=16,
        use_cache=False,
    )
    return _language(LlamaForCausalLM(shape), lambda text: {"attention_mask": _padding(text), "input_ids": text})


def tiny_t5(layers: int = 2) -> Workload:
    """T5: encoder and decoder, position biases that the first block makes for all, a matrix in three places."""
    from transformers import T5Config, T5ForConditionalGeneration

    shape = T5Config(
        vocab_size=64,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=layers,
        num_heads=2,
        use_cache=False,
        dropout_rate=0.0,
        decoder_start_token_id=0,
        tie_word_embeddings=True,
    )
    return _language(
        T5ForConditionalGeneration(shape),
        lambda text: {"input_ids": text.flip(1), "decoder_input_ids": text.roll(1, 1)},
    )


def _language(module: nn.Module, inputs: Callable[[Tensor], dict[str, Tensor]], length: int = 12) -> Workload:
    module.train()

    def draw(samples: int, generator: torch.Generator) -> tuple[dict[str, Tensor], Tensor]:
        text = torch.randint(1, 64, (samples, length), generator=generator)
        return inputs(text), torch.randint(64, (samples, length), generator=generator)

    def loss(outputs: dict[str, Tensor], targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs["logits"].flatten(0, 1), targets.flatten())

    return Workload(module, draw, loss)


def _padding(text: Tensor) -> Tensor:
    """Every other sample is a third shorter."""
    length = torch.where(torch.arange(len(text)) % 2 == 0, text.shape[1], 2 * text.shape[1] // 3)
    return (torch.arange(text.shape[1]) < length[:, None]).long()


OURS: tuple[Callable[[], Workload], ...] = (tiny_gnmt, tiny_unet, tiny_vgg, tiny_resnet)
TRANSFORMERS: tuple[Callable[..., Workload], ...] = (tiny_gpt2, tiny_bert, tiny_llama, tiny_t5)
"""Models that need the package ``transformers``."""
