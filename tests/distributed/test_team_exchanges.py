"""What the members of a team send each other, beside what plans are priced with, for splits worth searching."""

from collections.abc import Callable

import pytest

from helpers.distributed import exchange_workers, models
from helpers.distributed.exchange_workers import BACKWARD, FORWARD, MEMBERS
from pipeplan.frontend.workload import Workload
from pipeplan_executor import launch
from pipeplan_executor.zoo import decoder

EXACT = (models.tiny_decoder, models.tiny_vgg, models.tiny_mlp)
MOST = 6
"""Splits, with whole tensors, with split tokens and with products on these."""


@pytest.mark.parametrize("build", EXACT, ids=lambda build: build.__name__)
def test_members_send_what_was_predicted(build: Callable[[], Workload]) -> None:
    """Kinds, counts and bytes of all collectives: in a forward, in a backward, at the end of a step."""
    cases = exchange_workers.cases(build, MOST)
    found = launch(exchange_workers.seen, MEMBERS, build, tuple(case.plan for case in cases))
    assert sum(sum(sums.values()) for case in cases for sums in case.sent)  # there is something to compare
    for case, sent in zip(cases, found, strict=True):
        assert not exchange_workers.compared(build, case, sent), case.plan.shards


def test_tied_tables_send_at_most_what_was_predicted() -> None:
    """A table that is read as an embedding and as a head: the executor saves moves that the plan is priced with."""
    cases = exchange_workers.cases(models.tiny_tied, MOST)
    found = launch(exchange_workers.seen, MEMBERS, models.tiny_tied, tuple(case.plan for case in cases))
    exact = 0
    for case, sent in zip(cases, found, strict=True):
        wrong = exchange_workers.compared(models.tiny_tied, case, sent)
        exact += not wrong
        for when in (FORWARD, BACKWARD):
            more, less = wrong.get(when, {}).get("more", {}), wrong.get(when, {}).get("less", {})
            assert sum(size * n for (_, size), n in more.items()) <= sum(size * n for (_, size), n in less.items())
    assert exact >= len(cases) // 2


def wide_decoder() -> Workload:
    """Decoder of a block whose heads and tokens four members can share out."""
    return decoder(blocks=1, width=16, heads=4, vocabulary=50, length=8, hidden=32)


ON_TOKENS = [
    pytest.param(wide_decoder, 4),
    pytest.param(wide_decoder, 2, marks=pytest.mark.slow),
    *[pytest.param(models.tiny_llama, 2)] * models.HAS_TRANSFORMERS,
    *[pytest.param(models.tiny_llama, 4, marks=pytest.mark.slow)] * models.HAS_TRANSFORMERS,
    *[pytest.param(models.tiny_gpt2, 2, marks=pytest.mark.slow)] * models.HAS_TRANSFORMERS,
]


@pytest.mark.parametrize(("build", "members"), ON_TOKENS)
def test_products_and_attention_on_tokens_are_exact(build: Callable[[], Workload], members: int) -> None:
    """By keys and by heads: causal, masked, with grouped keys, of a fused matrix; all collectives as predicted."""
    cases = exchange_workers.on_tokens(build, members)
    assert {by for case in cases for _, _, by in case.plan.context.attention} == {"keys", "heads"}
    errors, found = launch(exchange_workers.exact, members, build, tuple(case.plan for case in cases))
    assert max(errors) < 1e-10, errors
    for case, sent in zip(cases, found, strict=True):
        assert not exchange_workers.compared(build, case, sent), case.plan.context
