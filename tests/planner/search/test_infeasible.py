"""Jobs whose static bytes exceed all devices together: no partition, replication or recomputation helps."""

import time
from collections import Counter
from dataclasses import replace
from itertools import chain
from random import Random

import pytest

from helpers.instances import equal_devices, model_of
from pipeplan.core.cluster import Cluster, DeviceKind, Link
from pipeplan.core.errors import InfeasibleError
from pipeplan.core.job import Job, Recompute
from pipeplan.search.infeasible import held_memory_shortfall, least_sufficient_memory, total_memory_shortfall
from pipeplan.search.nodes.shapes import sorted_shapes
from pipeplan.search.space.space import Space
from pipeplan.search.space.spaces import Spaces
from pipeplan.solve import solve

MODEL = model_of([1, 1, 1], parameters=[100, 100, 100])
"""600 bytes of parameters and gradients; with Adam 1,200 in all."""


def why(cluster: Cluster, **options: object) -> str | None:
    """The message for a step of four samples."""
    return total_memory_shortfall(Space(MODEL, cluster, Job(4, **options)))  # type: ignore[arg-type]


def test_the_sum_decides_to_the_byte() -> None:
    """Three devices of 200 bytes hold the 600 bytes, of 199 they do not; Adam's state counts, sharded or not."""
    assert why(equal_devices(3, memory=200)) is None
    assert why(equal_devices(3, memory=199)) is not None
    for level in (0, 1):
        assert why(equal_devices(3, memory=400), optimizer="adam", zero=(level,)) is None
        assert why(equal_devices(3, memory=399), optimizer="adam", zero=(level,)) is not None


def test_runtime_and_memory_option_reduce_the_limit() -> None:
    """Runtime bytes and the job's limit reduce the memory; without a limit every sum fits."""
    roomy = equal_devices(3, memory=200)
    kind = replace(roomy.kinds["unit"], runtime=1)
    assert why(replace(roomy, kinds={"unit": kind})) is not None
    assert why(roomy, memory=199) is not None
    assert why(equal_devices(3)) is None


def test_a_limit_of_the_job_is_that_of_devices_with_so_much() -> None:
    """Drawn memories, runtimes and limits: the same sums fit, and shapes have the same bounds."""
    outcomes, draw = Counter[bool](), Random("limits")
    for _ in range(12):
        memory, limit = draw.choice((None, draw.randint(190, 300))), draw.randint(190, 300)
        kind = DeviceKind("unit", memory=memory, runtime=draw.randint(0, 60))
        less = replace(kind, memory=min(limit, memory or limit))
        limited, owned = (
            Space(MODEL, Cluster.uniform(3, own, Link(10**9)), Job(4, zero=(0,), depths=(3,), memory=most))
            for own, most in ((kind, limit), (less, None))
        )
        fits = [total_memory_shortfall(space) is None for space in (limited, owned)]
        assert fits[0] == fits[1], (kind, limit)
        assert sorted_shapes(limited, 1) == sorted_shapes(owned, 1), (kind, limit)
        outcomes[fits[0]] += 1
    assert min(outcomes[True], outcomes[False]) > 2


def test_activations_count_where_all_micro_batches_are_held() -> None:
    """GPipe holds four micro-batches of 3 x 10 bytes, 2 if recomputed, beside 600 bytes: 208 or 240 per device."""
    model = replace(model_of([1, 1, 1], saved=[10] * 3, output=[2] * 3, parameters=[100] * 3))

    def short(memory: int, **options: object) -> bool:
        space = Space(model, equal_devices(3, memory=memory), Job(4, **options))  # type: ignore[arg-type]
        return held_memory_shortfall(space) is not None

    assert not short(208, schedules=("gpipe",))
    assert short(207, schedules=("gpipe",))
    assert not short(240, schedules=("gpipe",), recompute="none")
    assert short(239, schedules=("gpipe",), recompute="none")
    assert not short(207)
    assert not short(207, schedules=("gpipe", "1f1b-sno"))
    assert not short(207, schedules=("gpipe", "any"))
    # at a size of 2 that holds more than two of 1 do, the other size decides
    small = model_of([1, 1, 1], saved=[10] * 3, output=[2] * 3, parameters=[100] * 3, sizes=(1, 2))
    costs = small.profiles[1].costs
    fat = tuple(replace(cost, saved=3 * cost.saved, output=3 * cost.output) for cost in costs)
    model = replace(small, profiles=(small.profiles[0], replace(small.profiles[1], costs=fat)))
    assert not short(208, schedules=("gpipe",))
    assert short(207, schedules=("gpipe",))
    with pytest.raises(InfeasibleError, match="Under gpipe all micro-batches of a step are in flight at once"):
        solve(model, equal_devices(3, memory=207), job=Job(4, schedules=("gpipe",)), time_limit=1)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"together": (("l0", "l1"),)}, "and together leaves at most 2 stages, as 1 of the 2 cuts"),
        ({"no_cut_after": ("l0", "l1")}, "and no_cut_after leaves at most 1 stage, as 2 of the 2 cuts"),
        ({"together": (("l0", "l1"),), "no_cut_after": ("l1",)}, "and together and no_cut_after leave at most 1 stage"),
    ],
)
def test_what_forbids_cuts_is_named(asked: dict, said: str) -> None:
    """Where too few cuts are left for the stages that are asked for: that option alone, or both."""
    impossible = Space(MODEL, equal_devices(3), Job(4, depths=(3,), **asked)).impossible
    assert impossible is not None and said in impossible


def test_the_message_comes_at_once_and_helps() -> None:
    """No search is started; the text has the sums and the number of devices needed, and with them a plan fits."""
    with pytest.raises(InfeasibleError) as caught:
        solve(MODEL, equal_devices(2, memory=200), job=Job(4), time_limit=1e-9)
    assert "600 B" in str(caught.value)
    assert "400 B together" in str(caught.value)
    assert "1 more such device at least, or devices of at least 300 B; activations come on top" in str(caught.value)
    assert solve(MODEL, equal_devices(3, memory=200), job=Job(4), backend="exact").value
    assert solve(MODEL, equal_devices(2, memory=400), job=Job(4), backend="exact").value


def test_memory_that_would_fit_is_not_that_of_super_layers() -> None:
    """Their bytes are the least of several stages, so with as many no plan need fit."""
    model = model_of([1] * 8, saved=[900, 900, 900, 900, 1, 1, 1, 1], output=[1] * 8)
    spaces = Spaces(model, equal_devices(2, link=Link(10**9)), Job(4, chunks=(1, 2), recompute=Recompute.NONE))
    found = least_sufficient_memory(spaces.lean)
    less = least_sufficient_memory(chain.from_iterable(spaces.folded.values()))
    assert found is not None and less is not None
    assert found[1].unfolding is None and less[0] < found[0]


@pytest.mark.parametrize("seconds", [60.0, -1.0])
def test_the_first_plan_that_would_fit_has_more_time_than_the_others(seconds: float) -> None:
    """On a busy machine the time for reasons may be over before any memory is known, long before the limit."""
    spaces = Spaces(MODEL, equal_devices(2, memory=200), Job(4))
    now = time.monotonic()
    whole, first = least_sufficient_memory(spaces.lean), least_sufficient_memory(spaces.lean, now, now + seconds)
    assert whole is not None
    assert (first is None) is (seconds < 0)
    assert first is None or first[0] >= whole[0]
