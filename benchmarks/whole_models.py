"""Whole models on a mesh: LLaMA-3 8B as autoparallel's example takes it, and a model like DeepSeek-V3.

``-- llama``: 64 H100 in nodes of eight as 8 x 8, 16 samples of 8,192 tokens, bfloat16, Adam. Seconds of processor time
of one core: capture on the meta device, tables, optimum, whole frontier; and the largest memory of the process so far.
``-- peers``: the same with fewer layers by other solvers, and by coordinate descent (the search of AutoDDL).
``-- deepseek``: four layers of DeepSeek-V3's shape with 16 experts; what cannot be followed is whole on every device.
"""

import resource
import sys
import time
from functools import partial
from typing import Any

import numpy as np
from benchmarks.sharding_frontier import STARTS, descents

from pipeplan import load_cluster, profile
from pipeplan.analysis.sharding.question import step_matrix
from pipeplan.core.model import Model
from pipeplan.costs.layers import item_size
from pipeplan.costs.sharding.clusters import mesh_of, only_kind
from pipeplan.costs.sharding.joined import joined_layers
from pipeplan.costs.sharding.problem import MeshProblem
from pipeplan.costs.sharding.products import products
from pipeplan.costs.sharding.unsplit import unsplit
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits
from pipeplan_formulations.sharding import BACKENDS, Choice, Frontier, Sharding, WeightedSharding, frontier, solve

CLUSTER, SIZES, DTYPE, OPTIMIZER = "64-h100", (8, 8), "bfloat16", "adam"
BATCH, TOKENS, LAYERS = 16, 8192, 32
"""Of the example: two samples for each of the eight rows of the mesh."""
FEWER = (2,)
"""Layers of the comparison with other solvers."""
SECONDS = 60.0
"""Limits of each of them."""
EXPERTS, DEEP_LAYERS, DEEP_TOKENS, DEEP_BATCH = 16, 4, 4096, 16


def main() -> None:
    """Print the tables."""
    words = sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []
    for name, show in {"llama": _llama, "peers": _peers, "deepseek": _deepseek}.items():
        if not words or name in words:
            show()


class Laps:
    """Processor seconds between events."""

    def __init__(self, name: str) -> None:
        self.name, self.last = name, time.process_time()

    def __call__(self, text: str) -> None:
        """Print the seconds since the last event."""
        now, peak = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"{self.name:12} {text:60} {now - self.last:7.2f} s  {peak:5.2f} GiB", flush=True)
        self.last = time.process_time()


def _llama() -> None:
    """Capture LLaMA-3 8B, and find its frontier."""
    lap = Laps("llama")
    model = _captured_llama(LAYERS)
    lap(f"capture, {len(model.layers)} layers")
    problem = _problem(model, BATCH)
    sharding = _stated(problem, lap)
    _optimum(sharding, lap)
    _frontier(model, problem, sharding, lap)


def _peers() -> None:
    """Compare the least time of a few layers, without and with a cap on memory, with other solvers."""
    for layers in FEWER:
        model = _captured_llama(layers)
        problem = _problem(model, BATCH).sharding.project(step_matrix(model.dtype, OPTIMIZER))
        began = time.perf_counter()
        least = int(frontier(problem.project(np.array([[1, 0]], np.int64)), Clock(Limits(SECONDS))).points[0, 0])
        took = time.perf_counter() - began
        print(f"peers        {layers} layers: elimination {least / 1e6:.3f} ms, {took:.1f} s on the clock", flush=True)
        began = time.perf_counter()
        ends = descents(WeightedSharding(problem, (1, 0)), Limits(SECONDS), STARTS)
        best, took = min(value for value in ends if value is not None), time.perf_counter() - began
        print(f"peers        {layers} layers: descent {best / 1e6:.3f} ms, {took:.1f} s on the clock", flush=True)
        for backend in BACKENDS:
            began = time.perf_counter()
            report = solve(problem, (1, 0), (), Limits(SECONDS), backend=backend)
            value = "none" if report.objective is None else f"{report.objective / 1e6:.3f} ms"
            print(
                f"peers        {layers} layers, {len(problem.costs)} operators: {backend:8} {value:>12}, bound "
                f"{report.bound / 1e6:.3f} ms, {report.status.value}, {time.perf_counter() - began:.1f} s on the clock",
                flush=True,
            )


def _deepseek() -> None:
    """Capture a model like DeepSeek-V3, and find its optimum and what is whole."""
    lap = Laps("deepseek")
    model = _captured_deepseek()
    lap(f"capture, {len(model.layers)} layers")
    problem = _problem(model, DEEP_BATCH)
    least = _optimum(_stated(problem, lap), lap)
    joined = joined_layers(model, only_kind(load_cluster(CLUSTER)), DEEP_BATCH, OPTIMIZER)
    for each in unsplit(joined.of, problem.mesh.team)[:8]:
        print(
            f"deepseek     whole: {len(each.names):3} of {each.kind:22} {each.time / 1e6:8.2f} ms, of which an even "
            f"split would save {each.lost / 1e6:8.2f} ms; {each.parameters / 2**30:6.2f} GiB of weights"
        )
    _products(model, problem, least.choice(0), lap)


def _problem(model: Model, batch: int) -> MeshProblem:
    cluster = load_cluster(CLUSTER)
    return MeshProblem(joined_layers(model, only_kind(cluster), batch, OPTIMIZER), mesh_of(cluster, SIZES))


def _stated(problem: MeshProblem, lap: Laps) -> Sharding:
    """The problem in time and memory."""
    sharding = problem.sharding.project(step_matrix(DTYPE, OPTIMIZER))
    lap(f"tables, {len(sharding.costs)} operators, {len(sharding.edges)} edges")
    return sharding


def _optimum(sharding: Sharding, lap: Laps) -> Frontier:
    found = frontier(sharding.project(np.array([[1, 0]], np.int64)), Clock(Limits()))
    lap(f"least time, proved: {found.points[0, 0] / 1e6:.2f} ms")
    return found


def _frontier(model: Model, problem: MeshProblem, sharding: Sharding, lap: Laps) -> None:
    found = frontier(sharding, Clock(Limits(600.0)))
    (fastest, most), (leanest, least) = found.points[[0, -1]].tolist()
    lap(
        f"frontier, {len(found.points)} points: {fastest / 1e6:.1f} ms {most / 2**30:.2f} GiB to "
        f"{leanest / 1e6:.1f} ms {least / 2**30:.2f} GiB"
    )
    choice = found.choice(0)
    assert sharding.evaluate(choice) == (fastest, most)
    _products(model, problem, choice, lap)


def _products(model: Model, problem: MeshProblem, choice: Choice, lap: Laps) -> None:
    own = products(problem, choice, item_size(model.dtype))
    lap(f"the fastest choice, and its {len(own)} products")
    bounded = [each for each in own if each.least]
    if bounded:
        total = sum(each.received for each in bounded) / sum(each.least for each in bounded)
        largest = max(each.received / each.least for each in bounded)
        print(f"{lap.name:12} {len(bounded)} receive {total:.2f} times the least in sum, {largest:.2f} at most")


def _captured_llama(layers: int) -> Model:
    """The transformers package's Llama of LLaMA-3 8B's shape, without weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    shape: Any = LlamaConfig(  # type: ignore[call-arg]
        vocab_size=128_256,
        hidden_size=4096,
        intermediate_size=14_336,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=TOKENS,
        rms_norm_eps=1e-5,
        rope_theta=500_000.0,
        use_cache=False,
        attn_implementation="sdpa",
    )
    return _captured(partial(LlamaForCausalLM, shape), TOKENS, ("LlamaDecoderLayer",))


def _captured_deepseek() -> Model:
    """The transformers package's DeepSeek-V3 with fewer layers and experts, the first layer without experts.

    It writes keys into a new tensor part by part, which the capture does not follow; here they are concatenated.
    """
    import torch
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention

    def expand(self: Any, latent: Any, rotated: Any) -> tuple[Any, Any]:
        shape = (latent.shape[0], latent.shape[2], -1, self.qk_nope_head_dim + self.v_head_dim)
        both = self.kv_b_proj(latent).view(shape).transpose(1, 2)
        keys, values = torch.split(both, [self.qk_nope_head_dim, self.v_head_dim], dim=-1)
        return torch.cat((keys, rotated.expand(-1, keys.shape[1], -1, -1)), dim=-1), values

    DeepseekV3Attention.expand_kv = expand  # type: ignore[method-assign,assignment]
    shape: Any = DeepseekV3Config(  # type: ignore[call-arg]
        num_hidden_layers=DEEP_LAYERS,
        first_k_dense_replace=1,
        n_routed_experts=EXPERTS,
        max_position_embeddings=DEEP_TOKENS,
        use_cache=False,
        attn_implementation="sdpa",
    )
    return _captured(partial(DeepseekV3ForCausalLM, shape), DEEP_TOKENS, ())


def _captured(build: Any, tokens: int, group: tuple[str, ...]) -> Model:
    import torch

    with torch.device("meta"):
        module = build().to(getattr(torch, DTYPE))
    text = torch.zeros((2, tokens), dtype=torch.int64)

    def loss(outputs: Any, targets: Any) -> Any:
        logits = outputs.logits[:, :-1].flatten(0, 1).float()
        return torch.nn.functional.cross_entropy(logits, targets[:, 1:].flatten())

    return profile(module, {"input_ids": text}, targets=text, loss=loss, micro_batches=(2,), device="meta", group=group)


if __name__ == "__main__":
    main()
