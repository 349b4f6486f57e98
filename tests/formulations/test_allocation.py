"""The chain allocation problem on instances with an obvious answer, and its edge cases."""

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings

from helpers.allocations import brute_force, chain_allocations, objective
from pipeplan_formulations import allocation
from pipeplan_formulations.allocation import ChainAllocation, Place
from pipeplan_formulations.allocation.suffix_bounds.largest_backward import LargestBackward
from pipeplan_formulations.allocation.suffix_bounds.spans import Spans
from pipeplan_formulations.allocation.suffix_bounds.usage import Grid
from pipeplan_formulations.common import recomputation as recompute
from pipeplan_formulations.common.clock import Clock
from pipeplan_formulations.common.report import Limits, Status, Stop

FREE = 2**40


def equal_chain(layers=8, units=(4,), widths=(1,), micro_batches=16, slow=(1, 3), **settings) -> ChainAllocation:
    """Equal layers (forward 10, backward 20) on units without limits, links or reductions by default."""
    kinds = len(units)
    forward = np.full(layers, 10) * np.array(slow)[:kinds, None]
    defaults = {
        "forward": forward,
        "backward": 2 * forward,
        "saved": np.full(layers, 10),
        "output": np.full(layers, 1),
        "recomputable": np.ones(layers, np.bool_),
        "received": np.full(layers - 1, 1),
        "limit": np.full(kinds, FREE),
        "units": np.array(units),
        "node": np.full(kinds, 1000),
        "micro_batches": micro_batches,
        "widths": widths,
    }
    return ChainAllocation(**{**defaults, **settings})


def optimum(problem: ChainAllocation) -> tuple[Place, ...]:
    """The stages of the proved optimum."""
    report = allocation.solve(problem, Limits(time=30))
    assert report.status is Status.OPTIMAL
    assert report.solution is not None
    return report.solution


def test_expensive_hops_make_one_replicated_stage() -> None:
    """If every hop costs more than all the work, all units share one stage."""
    dear = equal_chain(widths=(1, 2, 3, 4))
    dear = replace(dear, send=dear.send + 10**6, send_back=dear.send_back + 10**6)
    assert optimum(dear) == (Place(0, 8, 0, 4),)


def test_an_expensive_reduction_leaves_the_first_stage_alone() -> None:
    """If reductions are expensive, the first stage has one replica, because nothing runs behind its backward."""
    problem = equal_chain(widths=(1, 2, 3, 4), micro_batches=64)
    dear = replace(problem, reduce=np.full((1, 4, 8), 10**6) * (np.array([1, 2, 3, 4]) > 1)[None, :, None])
    stages = optimum(dear)
    assert stages[0].width == 1
    assert sum(place.width for place in stages) == 4


def test_a_hopeless_kind_stays_unused() -> None:
    """Units so slow that a single layer there takes longer than all on the others are left out."""
    stages = optimum(equal_chain(units=(3, 3), slow=(1, 1000)))
    assert {place.kind for place in stages} == {0}


def test_hops_between_nodes_fall_where_the_tensor_is_small() -> None:
    """With two units per node, the one hop that leaves a node is at the cut with the cheap send."""
    problem = equal_chain(layers=8, units=(4,), micro_batches=4, node=np.array([2]))
    send = np.zeros((1, 1, 2, 7), np.int64)
    send[0, 0, 1] = 500
    send[0, 0, 1, 2] = 0  # behind the third layer
    stages = optimum(replace(problem, send=send, send_back=send))
    assert len(stages) > 2
    assert stages[-2].start == 3


def test_the_first_stage_recomputes_what_the_last_need_not() -> None:
    """A limit for all units binds on the stage with the most micro-batches in flight."""
    problem = equal_chain(layers=8, units=(4,), limit=np.array([40]), last=((0, 1),) * 4)
    stages = optimum(problem)
    again = [len(layers) if layers is not None else -1 for layers in problem.recompute(stages)]
    assert again[0] > 0
    assert again[-1] == 0
    assert again == sorted(again, reverse=True)


def test_constraints_are_kept() -> None:
    """Forced first and last modes and forbidden cuts change the answer, and its value includes their cost."""
    free = equal_chain(units=(3, 2), widths=(1, 2))
    cuts = np.ones(7, np.bool_)
    cuts[[1, 3, 5]] = False
    constrained = replace(free, first=((1, 2),), last=((0, 2), (0, 1)), cuts=cuts)
    stages = optimum(constrained)
    assert stages[0].mode == (1, 2)
    assert [place.mode for place in stages[-2:]] == [(0, 2), (0, 1)]
    assert all(cuts[place.start - 1] for place in stages[1:])
    assert constrained.evaluate(stages) >= free.evaluate(optimum(free))


def test_progress_only_improves_and_ends_at_the_report() -> None:
    """Incumbents decrease, bounds increase, they never cross, and the last call equals the report."""
    told: list[tuple[int | None, int]] = []
    rng = np.random.default_rng(1)
    problem = equal_chain(layers=12, units=(3, 3), slow=(1, 2))
    problem = replace(problem, forward=rng.integers(5, 40, (2, 12)))
    report = allocation.solve(problem, Limits(time=30), on_progress=lambda high, low: told.append((high, low)))
    highs = [high for high, _ in told if high is not None]
    lows = [low for _, low in told]
    assert highs == sorted(highs, reverse=True)
    assert lows == sorted(lows)
    assert all(high is None or low <= high for high, low in told)
    assert told[-1] == (report.objective, report.bound)


def test_an_interrupt_hands_back_what_there_is() -> None:
    """Ctrl-C at the first incumbent ends with that incumbent and a valid bound."""

    def stop(high: int | None, low: int) -> None:
        if high is not None:
            raise KeyboardInterrupt

    rng = np.random.default_rng(2)
    problem = replace(equal_chain(layers=12, units=(3, 3), slow=(1, 2)), forward=rng.integers(5, 40, (2, 12)))
    best = allocation.solve(problem, Limits(time=30)).objective
    report = allocation.solve(problem, Limits(time=30), on_progress=stop)
    assert report.stop is Stop.INTERRUPT
    assert best is not None
    assert report.objective is not None
    assert report.bound <= best <= report.objective


def test_a_hint_is_never_lost() -> None:
    """With no time at all the answer is the hint, if it is feasible."""
    problem = equal_chain()
    hint = (Place(0, 5, 0, 1), Place(5, 8, 0, 1))
    report = allocation.solve(problem, Limits(time=0), hint=hint)
    assert (report.solution, report.objective) == (hint, problem.evaluate(hint))
    infeasible = (Place(0, 8, 0, 2),)
    assert allocation.solve(problem, Limits(time=0), hint=infeasible).solution is None


def test_boxes_of_one_e_are_cut_along_the_largest_backward() -> None:
    """Times of a few nanoseconds, whose intervals of e are soon too short to split, still end in a proof."""
    short = equal_chain(
        layers=2,
        units=(2,),
        micro_batches=4,
        forward=np.array([[5, 0]]),
        backward=np.array([[4, 3]]),
        update=np.array([[[1, 2]]]),
        latency=np.full((1, 1, 2), 2),
        in_flight_rule="full",
        alternating=False,
        phases=True,
    )
    report = allocation.solve(short, Limits(time=20))
    assert (report.status, report.objective) == (Status.OPTIMAL, brute_force(short))


def test_a_large_instance_is_nearly_closed_by_the_programme_alone() -> None:
    """Ninety-eight layers on 16 + 16 units of two kinds: bound and allocation within 1 %."""
    problem = equal_chain(layers=98, units=(16, 16), micro_batches=128, slow=(10, 18), node=np.array([8, 8]))
    report = allocation.solve(problem, Limits(time=60, gap=0.01))
    assert report.gap is not None
    assert report.gap <= 0.01


@given(chain_allocations())
@settings(max_examples=100, deadline=None)
def test_thinned_recomputation_still_brackets_the_optimum(problem: ChainAllocation) -> None:
    """With thinned lists of recomputed layers, the bound stays a bound, and status optimal means optimal."""
    best = brute_force(problem)
    with patch.object(recompute, "CAP", 2):
        report = allocation.solve(problem, Limits(time=30))
        value = None if report.solution is None else problem.evaluate(report.solution)
    if best is None:
        assert report.status is Status.INFEASIBLE
        return
    assert report.solution is not None
    assert report.bound <= best <= report.objective == value
    true = objective(problem, report.solution)
    assert true is not None
    assert true <= report.objective


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"micro_batches": 0}, "micro-batches"),
        ({"widths": (2, 1)}, "widths"),
        ({"widths": (1, 2), "update": np.zeros((1, 1, 8), int)}, "shape"),
        ({"overlap": "some"}, "overlap"),
        ({"in_flight_rule": "many"}, "in_flight_rule"),
        ({"objective": "beauty"}, "objective"),
        ({"first": ((3, 1),)}, "forced"),
        ({"node": np.array([0])}, "node"),
        ({"saved": np.full(8, -1)}, "negative"),
        ({"forward": np.full((1, 8), 2**60)}, "scale"),
    ],
)
def test_what_does_not_fit_together_is_named(change: dict, word: str) -> None:
    """A wrong instance is rejected at once, and the message names the error."""
    with pytest.raises(ValueError, match=word):
        equal_chain(**change)


def test_forced_stages_that_need_too_much_are_infeasible() -> None:
    """More forced units than available, or more forced stages than layers, are infeasible."""
    too_many = equal_chain(layers=3, units=(2,), first=((0, 1),), last=((0, 1), (0, 1)))
    too_deep = equal_chain(layers=2, units=(4,), first=((0, 1),), last=((0, 1), (0, 1)))
    for problem in (too_many, too_deep):
        assert allocation.solve(problem, Limits(time=10)).status is Status.INFEASIBLE


def test_two_phases_are_left_out_only_above_the_ceiling() -> None:
    """A stage of width 2 stays while its forwards and the least largest backward, one round less, are within it."""
    largest = LargestBackward(least=3, most=5, widths=(2,), last=0, rounds=0, least_forward=0)
    forward = np.array([0, 1, 4, 5, 9])
    assert largest.allows_phases(40, 5, 2, forward).tolist() == [4 * (each + 6) <= 40 for each in (0, 1, 4, 5, 9)]
    assert largest.allows_phases(0, 1, 2, forward).all()


def test_like_layers_with_other_inputs_recompute_for_themselves() -> None:
    """Spans of equal layers with as much room for one micro-batch, of which some receive more, need other times."""
    draw, needed = np.random.default_rng(2), set[int]()
    for _ in range(20):
        received, limit, resident = draw.integers(0, 9, 5), int(draw.integers(60, 120)), [20, 20]
        for more in received[:4].tolist():  # as many bytes in all of what is static and one input
            resident.append(40 - more - resident[-1])
        problem = equal_chain(
            6, micro_batches=4, resident=np.array([[resident]]), received=received, limit=np.array([limit])
        )
        starts = np.arange(5)

        def spans(problem: ChainAllocation = problem) -> Spans:
            return Spans(problem, Grid(problem), 10**6, Clock(Limits(9)))

        together = spans().extra(0, 0, starts, starts + 2, 3)
        each = [int(spans().extra(0, 0, np.array([s]), np.array([s + 2]), 3)[0]) for s in starts]
        assert together.tolist() == each
        needed |= {*each}
    assert {0, 10, 20} <= needed
