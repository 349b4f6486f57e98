"""Annealing of orders on random pipelines with lanes and link resources."""

from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.found_pipelines import random_orders, random_pipeline
from pipeplan.core.cluster import Overlap
from pipeplan.search.scheduling import schedule_problem
from pipeplan_formulations.schedule import evaluate
from pipeplan_formulations.schedule.constructive.local_search import annealed


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**9))
def test_annealed_orders_are_no_worse_and_as_long_as_they_say(seed: int) -> None:
    """The orders are feasible with the reported makespan, never worse; reaching the bound ends the search at once."""
    pipeline = random_pipeline(seed)
    problem = schedule_problem(pipeline, 4, two_lanes=pipeline.overlap is not Overlap.NONE and seed % 2 == 0)
    orders = random_orders(seed, problem)
    before = evaluate(problem, orders)
    assert before is not None
    value, better = annealed(problem, orders, 0.05, seed)
    assert evaluate(problem, better) == value <= before
    assert annealed(problem, orders, 60.0, seed, bound=before) == (before, orders)
