"""Plans that say by shards and tokens what teams split: exact, and sent is what their strategies are priced with."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from helpers.captured_models import tiny_bert, tiny_gpt2, tiny_llama, tiny_t5
from helpers.distributed import exchange_workers, models
from helpers.distributed.exchange_workers import Sent, plan_of
from helpers.distributed.tensor_parallel_workers import CONVERTED, FUSED, LLAMAS
from helpers.distributed.together import Job
from pipeplan.core.plan import Plan
from pipeplan.costs.sharding.exchanges import Exchange
from pipeplan.frontend.workload import Workload
from pipeplan_executor import launch
from pipeplan_executor.zoo.decoder import SHARDS

MEMBERS = 2
EXACT, ROUNDED = 1e-10, 1e-5
"""The latter of models that round to float32 inside, for inputs of any type."""
MATRICES = {"linear0.weight": 0, "linear0.bias": 0, "linear1.weight": 1}


def body(layers: Sequence[str]) -> Sequence[str]:
    """All layers but the first and the last."""
    return layers[1:-1]


@cache
def of_a_decoder() -> tuple[Plan, ...]:
    """Ways to split a decoder: by columns and rows, its tables, along tokens, and with products and attention there."""
    build, pair = models.wide_decoder, {"*.widen.*": 0, "*.narrow.weight": 1}
    return (
        plan_of(build, {**SHARDS, "embedding.tokens.weight": 0, "head.weight": 0}),
        plan_of(build, SHARDS, body),
        *(plan_of(build, {}, body, way) for way in ("keys", "ring", "heads")),
        plan_of(build, pair, body, "keys"),
    )


def jobs(world: int, folder: Path) -> dict[str, Job]:
    """A job of the decoder in quick runs."""
    return {"exchanges": (exchange_workers.exact, (models.wide_decoder, of_a_decoder()))} if world == MEMBERS else {}


def _compare(found: list[tuple[float, Sent, Sent]], limit: float = EXACT) -> None:
    assert found
    for error, sent, priced in found:
        assert error < limit
        assert sent.forward
        assert sent == priced


def test_members_send_what_was_priced(ranks: Callable[[int], dict[str, Any]]) -> None:
    """Kinds, counts and bytes of all collectives: in a forward, in a backward, at the end of a step."""
    _compare(ranks(MEMBERS)["exchanges"])


@pytest.mark.slow
@pytest.mark.skipif(not models.HAS_TRANSFORMERS, reason="transformers is not installed")
@pytest.mark.parametrize(
    ("build", "block", "shards", "limit"),
    [
        (tiny_gpt2, "GPT2Block", CONVERTED | FUSED, EXACT),
        (tiny_llama, "LlamaDecoderLayer", LLAMAS, ROUNDED),
        (tiny_t5, "T5Block", {"*.DenseReluDense.wi.weight": 0, "*.DenseReluDense.wo.weight": 1}, ROUNDED),
        (tiny_bert, "BertLayer", {"*.intermediate.dense.*": 0, "*.layer.*.output.dense.weight": 1}, EXACT),
    ],
    ids=["gpt2", "llama", "t5", "bert"],
)
def test_captured_models_send_what_was_priced(
    build: Callable[[], Workload], block: str, shards: dict[str, Any], limit: float
) -> None:
    """Norms and rotations written as elementwise operations, masks and tables beside what is split."""
    plans = (plan_of(build, shards, group=(block,)),)
    _compare(launch(exchange_workers.exact, MEMBERS, build, plans, timeout=200), limit)


@pytest.mark.slow
@pytest.mark.skipif(not models.HAS_TRANSFORMERS, reason="transformers is not installed")
def test_a_captured_gpt2_sends_what_megatron_would() -> None:
    """Its two blocks sum twice each way: members have heads, as queries, keys and values are split group by group."""
    plan = plan_of(tiny_gpt2, CONVERTED | FUSED, group=("GPT2Block",))
    ((_, sent, _),) = launch(exchange_workers.exact, MEMBERS, tiny_gpt2, (plan,), timeout=200)
    size = 2 * 12 * 16 * 4  # micro-batches of two samples of 12 tokens
    sums = dict.fromkeys(((kind.value, size) for kind in (Exchange.SCATTER, Exchange.GATHER)), 2 * 2 * 2)
    assert dict(sent.forward) == dict(sent.backward) == sums


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "shards"),
    [(models.tiny_mlp, MATRICES), (models.tiny_tied, {**SHARDS, "embedding.tokens.weight": 0})],
    ids=["perceptron", "tied"],
)
def test_more_members_send_what_was_priced(build: Callable[[], Workload], shards: dict[str, int]) -> None:
    """So do those of a perceptron, and of a decoder whose table is its head."""
    _compare(launch(exchange_workers.exact, MEMBERS, build, (plan_of(build, shards),), timeout=200))
