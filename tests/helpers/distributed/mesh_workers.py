"""Models on meshes of several axes with random words, and the workers that run them."""

import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from math import lcm, prod

import numpy as np

from helpers.distributed.models import random_cuts
from helpers.plans import plan_for
from pipeplan.core.cluster import DeviceKind, Link
from pipeplan.core.model import LayerCost
from pipeplan.core.plan import Plan
from pipeplan.core.schedule import Schedule
from pipeplan.core.words import UNSPLIT, WHOLE, LayerWords, Layout
from pipeplan.costs.meshes.problem import MeshProblem
from pipeplan.costs.meshes.shapes import Mesh
from pipeplan.costs.teams.rooflines import Rooflines
from pipeplan.costs.teams.signatures import stream
from pipeplan.frontend.capture import capture_layers
from pipeplan.frontend.operators.find import named_weights
from pipeplan.frontend.operators.follow import program_of
from pipeplan.frontend.operators.program import Program
from pipeplan.frontend.operators.record import record
from pipeplan.frontend.workload import Workload
from pipeplan_executor.sharding.mesh.shapes import shapes_of
from pipeplan_executor.stages import source
from pipeplan_executor.stages.shapes import trace
from pipeplan_executor.train.verify import worst_error
from pipeplan_formulations.common.report import Limits
from pipeplan_formulations.common.sentinels import UNLIMITED
from pipeplan_formulations.sharding import Edge, Sharding, solve

NOTHING = LayerCost(
    **dict.fromkeys(
        ("forward", "backward", "input_gradient", "weight_gradient", "saved", "output", "workspace", "update"), 0
    )
)
SAMPLES = 4


def on_mesh(
    build: Callable[[], Workload], sizes: tuple[int, ...], schedule: Schedule, seed: int, gathers: bool = True
) -> Plan:
    """A plan of as many stages as the schedule has, on meshes of these sizes, with random words and layouts."""
    draw = random.Random(seed)
    workload = source.build(build)
    sequence = capture_layers(workload.module, inputs := source.draw(workload, SAMPLES, 0)[0])
    flow = trace(sequence, inputs)
    weights = named_weights(workload.module, sequence)
    programs = [
        program_of(record(layer, flow.tensors[n], nullcontext, None, None), weights[n], SAMPLES)
        for n, layer in enumerate(sequence.layers)
    ]
    words, before = [], tuple[int, ...]()
    for number, program in enumerate(programs):
        after = () if number == len(programs) - 1 else _between(draw, program, programs[number + 1], sizes)
        words.append(_words(draw, program, sizes, before, after, gathers))
        before = after
    cuts = random_cuts(draw, len(programs), schedule.stages)
    plan = plan_for(workload.module, sequence.names, cuts, schedule, SAMPLES, held=sequence.parameters)
    links = (Link(10**9, 1000), *(Link(10**10, 100),) * (len(sizes) - 1))
    stages = tuple(replace(stage, team=prod(sizes), mesh=sizes, links=links) for stage in plan.stages)
    return replace(plan, stages=stages, words=tuple(zip(sequence.names, words, strict=True)))


def _between(draw: random.Random, one: Program, other: Program, sizes: tuple[int, ...]) -> Layout:
    """A layout of what passes between two layers, whole if nothing can be split."""
    made, read = stream(one.graph, one.graph.outputs), stream(other.graph, tuple(other.graph.inputs))
    if not made or not read or made in one.graph.inputs or read in other.graph.outputs:
        return ()
    parts = [_parts(program, name) for program, name in ((one, made), (other, read))]
    if [shapes_of(one)[made].lengths] != [shapes_of(other)[read].lengths]:
        return ()
    while True:
        layout = tuple(draw.choice((WHOLE, *range(len(parts[0])))) for _ in sizes)
        counts = [prod(n for n, e in zip(sizes, layout, strict=True) if e == axis) for axis in range(len(parts[0]))]
        if not any(length % count for row in parts for length, count in zip(row, counts, strict=True)):
            return layout


def _parts(program: Program, name: str) -> list[int]:
    """Into how many parts the axes of a tensor may be split."""
    rows = [(each, each.reads[name]) for each in program.graph.operators if name in each.reads]
    rows += [(each, each.makes) for each in program.graph.operators if each.name == name]
    return [lcm(*(each.loops.get(axes[axis], 1) for each, axes in rows)) for axis in range(len(rows[0][1]))]


def _words(
    draw: random.Random, program: Program, sizes: tuple[int, ...], before: Layout, after: Layout, gathers: bool
) -> LayerWords:
    """Random words of a layer: those that cost least if everything costs something random."""
    graph, numbers = program.graph, np.random.default_rng(draw.randrange(10**9))
    mesh = Mesh(sizes, (Link(10**9, 1000), *(Link(10**10, 100),) * (len(sizes) - 1)))
    own = Rooflines(graph, NOTHING, graph.parameters, DeviceKind("made up"), None, SAMPLES)
    problem = MeshProblem(own, mesh, before, after, gathers=gathers)
    costs = tuple(
        np.where(each >= UNLIMITED, each, numbers.integers(0, 10**6, each.shape)) for each in problem.sharding.costs
    )
    edges = tuple(
        Edge(a, b, np.where(each >= UNLIMITED, each, numbers.integers(0, 10**6, each.shape)))
        for a, b, each in problem.sharding.edges
    )
    for operator, own, each in zip(graph.operators, problem.signatures, costs, strict=False):
        tied = any(weight.shared for weight in operator.weights)
        each[[tied and any(letter != UNSPLIT for letter, _ in word) for word, _ in own]] = UNLIMITED
    found = solve(Sharding(costs, edges), (1,) + (0,) * (costs[0].shape[1] - 1), (), Limits(60)).solution
    assert found is not None
    chosen = found[len(graph.operators) :]
    sums = {each.tensor: each.layouts[k] for each, k in zip(problem.sums, chosen, strict=True)}
    return LayerWords(problem.words(found), sums, before, after)


def errors(plans: tuple[Plan, ...], build: Callable[[], Workload]) -> list[float]:
    """The largest relative difference to the unsplit model, of each plan."""
    return [worst_error(plan, build, 3) for plan in plans]
