"""Values of plans without lists, their lower bounds, and the check of the plan that is returned."""

from dataclasses import replace

import pytest

import pipeplan
from pipeplan.core.job import Job
from pipeplan.search.evaluate import EvaluatedPlan, evaluate, least_value
from pipeplan.search.space.space import Space
from pipeplan.simulate import simulate

CLUSTER = pipeplan.load_cluster("64-h100")


@pytest.fixture(scope="module")
def plans() -> list[EvaluatedPlan]:
    """Plans of tied weights on pairs of replicas that lie in two nodes, and on single devices of four nodes."""
    model, devices = pipeplan.load_model("gpt2-small"), CLUSTER.devices
    space = Space(model, CLUSTER, Job(batch=32, micro_batches=(1,)))
    layers = len(model.layers)
    found = []
    for groups in (((*devices[0:1], *devices[8:9]), devices[1:2], devices[9:11]), [(d,) for d in devices[:32:8]]):
        edges = tuple(layers * s // len(groups) for s in range(len(groups) + 1))
        found += [evaluate(CLUSTER, candidate, edges) for candidate in space.candidates(tuple(groups), 1)]
    return found


def test_values_are_those_of_the_simulation(plans: list[EvaluatedPlan]) -> None:
    """The value of every family is the simulated step time, and its lower bound no more."""
    assert len({plan.candidate.family.name for plan in plans}) > 2
    for plan in plans:
        assert plan.value == simulate(plan.schedule, plan.pipeline).makespan == plan.timeline.makespan
        assert least_value(CLUSTER, plan.candidate, plan.boundaries) <= plan.value


def test_a_wrong_value_is_noticed(plans: list[EvaluatedPlan]) -> None:
    """A plan is refused that takes another time than the search counted."""
    with pytest.raises(AssertionError, match="the search counted"):
        replace(plans[0], value=plans[0].value - 1).check()
