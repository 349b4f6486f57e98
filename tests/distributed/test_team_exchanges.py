"""What the members of a team send each other, beside what plans are priced with, for splits worth searching."""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from helpers.captured_models import tiny_bert, tiny_gpt2, tiny_llama, tiny_t5
from helpers.distributed import exchange_workers, models
from helpers.distributed.exchange_workers import BACKWARD, FORWARD, MEMBERS, Case, Sums
from helpers.distributed.together import Job
from pipeplan.core.grouped_axis import GroupedAxis
from pipeplan.core.plan import Plan
from pipeplan.costs.sharding.exchanges import Exchange
from pipeplan.frontend.workload import Workload
from pipeplan_executor import launch

MOST = 6
"""Splits, with whole tensors, with split tokens and with products on these."""
FEW = 3
"""So many of captured models, and in quick runs."""


def jobs(world: int, folder: Path) -> dict[str, Job]:
    """Jobs of the decoders of quick runs."""
    if world != MEMBERS:
        return {}
    return {
        "exchanges": (exchange_workers.seen, (models.tiny_decoder, _plans(of_a_decoder()))),
        "exchanges on tokens": (exchange_workers.exact, (models.wide_decoder, _plans(on_tokens()))),
    }


@cache
def of_a_decoder() -> tuple[Case, ...]:
    """Ways to split a decoder."""
    return exchange_workers.cases(models.tiny_decoder, FEW)


@cache
def on_tokens() -> tuple[Case, ...]:
    """Ways to run a decoder on parts of the tokens."""
    return exchange_workers.on_tokens(models.wide_decoder, MEMBERS)


def _plans(cases: tuple[Case, ...]) -> tuple[Plan, ...]:
    return tuple(case.plan for case in cases)


def test_members_send_what_was_predicted(ranks: Callable[[int], dict[str, Any]]) -> None:
    """Kinds, counts and bytes of all collectives: in a forward, in a backward, at the end of a step."""
    _compare(models.tiny_decoder, of_a_decoder(), ranks(MEMBERS)["exchanges"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "build",
    [models.tiny_decoder, models.tiny_vgg, models.tiny_convolutions, models.tiny_mlp],
    ids=lambda build: build.__name__,
)
def test_more_members_send_what_was_predicted(build: Callable[[], Workload]) -> None:
    """So do those of more models, split in more ways."""
    _all_as_predicted(build, exchange_workers.cases(build, MOST))


@pytest.mark.slow
@pytest.mark.skipif(not models.HAS_TRANSFORMERS, reason="transformers is not installed")
def test_a_captured_gpt2_sends_what_megatron_would() -> None:
    """Blocks sum twice each way, or with split tokens gather and scatter twice, and gather twice more in a backward.

    So does a cut by hand, whose members have heads: queries, keys and values in one matrix are split group by group.
    """
    cases = exchange_workers.cases(tiny_gpt2, 1, ("GPT2Block",), context=False)
    _all_as_predicted(tiny_gpt2, cases)
    blocks = [sent for case in cases for sent in case.blocks if _is_megatron(case.plan, sent.layer)]
    size = 2 * 12 * 16 * 4  # micro-batches of two samples of 12 tokens
    sums, gathers, scatters = ({(kind, size): 2} for kind in (Exchange.SUM, Exchange.GATHER, Exchange.SCATTER))
    whole = [sent for sent in blocks if sent.ends == (False, False)]
    assert whole
    assert all((sent.forward, sent.backward) == (sums, sums) for sent in whole)
    split = [sent for sent in blocks if sent.ends == (True, True)]
    assert split
    twice = {(Exchange.GATHER, size): 4}
    assert all((sent.forward, sent.backward) == (gathers | scatters, twice | scatters) for sent in split)


def _is_megatron(plan: Plan, block: str) -> bool:
    """Whether a block's pairs are split by columns, then by rows, and all that is made between them by heads."""
    columns = {"weight": 1, "bias": 0}
    thirds = {f"{block}.attn.c_attn.{name}": GroupedAxis(axis, (1, 1, 1)) for name, axis in columns.items()}
    wide = {f"{block}.mlp.c_fc.{name}": axis for name, axis in columns.items()}
    narrow = {f"{block}.{name}.c_proj.weight": 0 for name in ("attn", "mlp")}
    return {name: axis for name, axis in plan.shards if name.startswith(f"{block}.")} == thirds | wide | narrow


@pytest.mark.slow
@pytest.mark.skipif(not models.HAS_TRANSFORMERS, reason="transformers is not installed")
@pytest.mark.parametrize(
    ("build", "block"),
    [(tiny_gpt2, "GPT2Block"), (tiny_llama, "LlamaDecoderLayer"), (tiny_t5, "T5Block")],
    ids=["gpt2", "llama", "t5"],
)
def test_captured_models_send_what_was_predicted(build: Callable[[], Workload], block: str) -> None:
    """Norms and rotations written as elementwise operations, masks, biases of scores and tables beside what is split.

    Not where the scale of a norm is split, beside which more is sent.
    """
    _all_as_predicted(build, exchange_workers.cases(build, FEW, (block,), whole="norm"))


def _all_as_predicted(build: Callable[[], Workload], cases: tuple[Case, ...]) -> None:
    _compare(build, cases, launch(exchange_workers.seen, MEMBERS, build, _plans(cases)))


def _compare(build: Callable[[], Workload], cases: tuple[Case, ...], found: Sequence[Iterable[Sums]]) -> None:
    assert sum(sum(sums.values()) for case in cases for sums in case.sent)  # there is something to compare
    for case, sent in zip(cases, found, strict=True):
        assert not exchange_workers.compared(build, case, sent), case.plan.shards


@pytest.mark.slow
def test_tied_tables_send_at_most_what_was_predicted() -> None:
    """A table that is read as an embedding and as a head: the executor saves moves that the plan is priced with."""
    _at_most_as_predicted(models.tiny_tied, exchange_workers.cases(models.tiny_tied, MOST))


@pytest.mark.slow
@pytest.mark.skipif(not models.HAS_TRANSFORMERS, reason="transformers is not installed")
def test_gradients_that_pass_several_layers_are_gathered_once() -> None:
    """Plans are priced layer by layer: that of the sum of BERT's three tables is needed in three of them."""
    _at_most_as_predicted(tiny_bert, exchange_workers.cases(tiny_bert, FEW, ("BertLayer",)))


def _at_most_as_predicted(build: Callable[[], Workload], cases: tuple[Case, ...]) -> None:
    found = launch(exchange_workers.seen, MEMBERS, build, _plans(cases))
    exact = 0
    for case, sent in zip(cases, found, strict=True):
        wrong = exchange_workers.compared(build, case, sent)
        exact += not wrong
        for when in (FORWARD, BACKWARD):
            more, less = wrong.get(when, {}).get("more", {}), wrong.get(when, {}).get("less", {})
            assert sum(size * n for (_, size), n in more.items()) <= sum(size * n for (_, size), n in less.items())
    assert exact >= len(cases) // 2


def test_products_and_attention_on_tokens_are_exact(ranks: Callable[[int], dict[str, Any]]) -> None:
    """By keys, by heads and by ring; all collectives as predicted."""
    _compare_exact(models.wide_decoder, on_tokens(), *ranks(MEMBERS)["exchanges on tokens"])


MORE = [
    (models.wide_decoder, 4),
    *[(models.tiny_llama, 2), (models.tiny_llama, 4), (models.tiny_gpt2, 2)] * models.HAS_TRANSFORMERS,
]


@pytest.mark.slow
@pytest.mark.parametrize(("build", "members"), MORE)
def test_more_products_and_attention_on_tokens_are_exact(build: Callable[[], Workload], members: int) -> None:
    """So are those of four members, masked, with grouped keys, of a fused matrix."""
    cases = exchange_workers.on_tokens(build, members)
    _compare_exact(build, cases, *launch(exchange_workers.exact, members, build, _plans(cases)))


def _compare_exact(
    build: Callable[[], Workload], cases: tuple[Case, ...], errors: list[float], found: Sequence[Iterable[Sums]]
) -> None:
    assert {by for case in cases for _, _, by in case.plan.context.attention} == {"keys", "heads", "ring"}
    assert max(errors) < 1e-10, errors
    for case, sent in zip(cases, found, strict=True):
        assert not exchange_workers.compared(build, case, sent), case.plan.context
