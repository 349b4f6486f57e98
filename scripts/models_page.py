"""Profile, plan, run and verify small models of ``transformers``: ``python scripts/models_page.py PAGE.md [NAME …]``.

Each has random weights and is cut into two stages for two processes of this machine. The table of the page is
replaced; with names, only their rows are. A model that fails gets its reason, in one line.
"""

import sys
import warnings
from pathlib import Path

from experiments_page import BEGIN, END, with_tables

from pipeplan import Cluster, load_cluster, profile, solve
from pipeplan.core.plan import Plan
from pipeplan.io.atomic import write_whole
from pipeplan_executor import launch
from pipeplan_executor.train.report import layers_by_stage
from pipeplan_executor.train.verify import verify

AT_ONCE = 3
"""Models that two processes verify one after the other, before the next ones are planned."""
HEAD = ("| model | layers | in two stages | loss and gradients |", "|---|---|---|---|")
TEXT = "vocab_size=96&tokens=12&pad_token_id=0&bos_token_id=1&eos_token_id=2"
DEEP = f"{TEXT}&num_hidden_layers=2&hidden_size=32&num_attention_heads=4&intermediate_size=48"
GROUPED = f"{DEEP}&num_key_value_heads=2"
HEADS = f"{GROUPED}&head_dim=8"
EXPERTS = "num_experts_per_tok=2&moe_intermediate_size=16"
SEEING = "num_hidden_layers=2&hidden_size=32&num_attention_heads=4&intermediate_size=48&image_size=32&patch_size=8"
BOTH = (
    f"{TEXT}&d_model=32&encoder_layers=2&decoder_layers=2&encoder_attention_heads=4&decoder_attention_heads=4&"
    "encoder_ffn_dim=48&decoder_ffn_dim=48"
)
MODELS = {
    "GPT-2": f"hf:gpt2?{TEXT}&n_layer=2&n_embd=32&n_head=4",
    "GPT-J": f"hf:gptj?{TEXT}&n_layer=2&n_embd=32&n_head=4&rotary_dim=4",
    "GPT-NeoX": f"hf:gpt_neox?{DEEP}",
    "BLOOM": f"hf:bloom?{TEXT}&n_layer=2&hidden_size=32&n_head=4",
    "OPT": f"hf:opt?{TEXT}&num_hidden_layers=2&hidden_size=32&num_attention_heads=4&ffn_dim=48&word_embed_proj_dim=32",
    "Falcon": f"hf:falcon?{TEXT}&num_hidden_layers=2&hidden_size=32&num_attention_heads=4",
    "Llama": f"hf:llama?{GROUPED}",
    "Mistral": f"hf:mistral?{HEADS}",
    "Qwen2": f"hf:qwen2?{GROUPED}",
    "Qwen3": f"hf:qwen3?{HEADS}",
    "Phi": f"hf:phi?{DEEP}",
    "Gemma": f"hf:gemma?{HEADS}",
    "Gemma 3": f"hf:gemma3_text?{HEADS}&sliding_window=8",
    "Mixtral": f"hf:mixtral?{GROUPED}&num_local_experts=4",
    "Qwen2-MoE": f"hf:qwen2_moe?{GROUPED}&{EXPERTS}&num_experts=4&shared_expert_intermediate_size=16",
    "Mamba": f"hf:mamba?{TEXT}&num_hidden_layers=2&hidden_size=32&state_size=4",
    "Mamba-2": f"hf:mamba2?{TEXT}&num_hidden_layers=2&hidden_size=32&state_size=8&num_heads=8&head_dim=8&n_groups=2",
    "BERT": f"hf:bert?{DEEP}",
    "DistilBERT": f"hf:distilbert?{TEXT}&n_layers=2&dim=32&n_heads=4&hidden_dim=48",
    "RoBERTa": f"hf:roberta?{DEEP}",
    "ALBERT": f"hf:albert?{DEEP}&embedding_size=16",
    "ELECTRA": f"hf:electra?{DEEP}&embedding_size=16",
    "T5": f"hf:t5?{TEXT.replace('&bos_token_id=1', '')}&d_model=32&d_kv=8&d_ff=48&num_layers=2&num_heads=4",
    "BART": f"hf:bart?{BOTH}",
    "Whisper": f"hf:whisper?{BOTH}&max_source_positions=20&max_target_positions=16&num_mel_bins=8",
    "Wav2Vec2": (
        "hf:wav2vec2?num_hidden_layers=2&hidden_size=32&num_attention_heads=4&intermediate_size=48&conv_dim=[16,16]&"
        "conv_stride=[5,2]&conv_kernel=[10,3]&num_feat_extract_layers=2&num_conv_pos_embeddings=4&"
        "num_conv_pos_embedding_groups=2&tokens=400"
    ),
    "ViT": f"hf:vit?{SEEING}",
    "DeiT": f"hf:deit?{SEEING}",
    "Swin": "hf:swin?image_size=32&patch_size=2&embed_dim=8&depths=[2,2]&num_heads=[1,2]&window_size=4",
    "ConvNeXt": "hf:convnext?image_size=32&depths=[1,1,2,1]&hidden_sizes=[8,8,16,16]",
    "CLIP": (
        'hf:clip?projection_dim=16&text_config={"vocab_size":96,"hidden_size":32,"num_hidden_layers":2,'
        '"num_attention_heads":4,"intermediate_size":48,"eos_token_id":2}&vision_config={"hidden_size":32,'
        '"num_hidden_layers":2,"num_attention_heads":4,"intermediate_size":48,"image_size":32,"patch_size":8}&tokens=12'
    ),
    "ResNet-18": "vision_models:resnet18",
    "ResNet-50": "vision_models:resnet50",
    "VGG-11": "vision_models:vgg11",
    "VGG-16 (batch norm)": "vision_models:vgg16_bn",
    "DenseNet-121": "vision_models:densenet121",
    "GoogLeNet": "vision_models:googlenet",
    "Inception v3": "vision_models:inception_v3",
    "MobileNetV3 small": "vision_models:mobilenet_v3_small",
    "EfficientNet-B0": "vision_models:efficientnet_b0",
    "ConvNeXt-Tiny": "vision_models:convnext_tiny",
    "Swin-T": "vision_models:swin_t",
    "ViT-B/16": "vision_models:vit_b_16",
}


def planned(name: str, cluster: Cluster) -> tuple[str, str, Plan | str]:
    """Return the number of layers, those of each stage, and the plan, or the reason why there is none."""
    layers = ""
    try:
        model = profile(MODELS[name], micro_batches=(2,), repeats=1, warmup=0, name=name)
        layers = str(len(model.layers))
        plan = solve(model, cluster, batch=8, depths=(2,), replicas=(1,), gap=0.5, time_limit=20).plan
    except Exception as error:  # the page says why, whatever it is
        return layers, "", reason(error)
    return layers, layers_by_stage(plan).replace(" | ", " and "), plan


def verified(plans: dict[str, Plan]) -> dict[str, str]:
    """Return the verdict on each plan; called on both processes."""
    found = {}
    for name, plan in plans.items():
        try:
            found[name] = str(verify(plan, MODELS[name], seed=0)).removeprefix("loss and gradients ")
        except Exception as error:  # as above; it is the same on both processes
            found[name] = reason(error)
    return found


def reason(error: Exception) -> str:
    """Return the first line of an error."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:300]}"


def main() -> None:
    """Rewrite the page after every few models, whole or not at all."""
    warnings.simplefilter("ignore")
    page, wanted = Path(sys.argv[1]), sys.argv[2:] or list(MODELS)
    text = page.read_text(encoding="utf-8")
    lines = text.partition(BEGIN)[2].partition(END)[0].splitlines()
    rows = {line.split("|")[1].strip(): line for line in lines if line.startswith("| ") and line not in HEAD}
    cluster = load_cluster("2-cpu")
    for names in (wanted[start : start + AT_ONCE] for start in range(0, len(wanted), AT_ONCE)):
        found = {name: planned(name, cluster) for name in names}
        plans = {name: plan for name, (_, _, plan) in found.items() if isinstance(plan, Plan)}
        try:
            verdicts = launch(verified, 2, plans, device="cpu", timeout=300.0)
        except Exception as error:  # a process was lost
            verdicts = dict.fromkeys(plans, reason(error))
        for name, (layers, stages, plan) in found.items():
            verdict = verdicts.get(name, plan).replace("|", "/")
            rows[name] = f"| {name} | {layers} | {stages} | {verdict} |"
            print(rows[name], file=sys.stderr, flush=True)
        write_whole(page, with_tables(text, "\n".join((*HEAD, *(rows[each] for each in MODELS if each in rows)))))


if __name__ == "__main__":
    main()
