"""Evaluation of shares of layers: as a simulated pipeline, and as a plan."""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pipeplan.core.job import Job, Objective
from pipeplan.core.model import Model
from pipeplan.core.pipeline import Pipeline, Stage
from pipeplan.core.plan import MemoryParts, Plan, PlanStage
from pipeplan.core.schedule import Kind, Schedule
from pipeplan.core.throughput import yardstick
from pipeplan.costs.network import transfer
from pipeplan.fpga.line import Line
from pipeplan.simulate import makespan
from pipeplan_formulations.fractional import Positions

NOTHING = 1e-9
"""Largest share of layers of a stage that counts as empty; its device is left out."""


@dataclass(frozen=True)
class EvaluatedLine:
    """A line with its shares, their value in nanoseconds, and what was simulated."""

    line: Line
    positions: Positions
    value: int
    pipeline: Pipeline
    schedule: Schedule


def evaluate(line: Line, positions: Positions) -> EvaluatedLine:
    """Simulate the line's schedule on these shares. Empty stages shorten the line.

    For the bottleneck objective the value is the largest stage load per sample.
    """
    line, positions = without_empty_stages(line, positions)
    stages = line.chain.stages
    schedule = line.family.write((1,) * stages, line.micro_batches)
    pipeline = _pipeline(line, positions)
    if line.objective is Objective.STEP:
        value = makespan(schedule, pipeline)
    else:
        sends = [way.occupancy for own in pipeline.transfers for way in own]
        value = -(-max([stage.total(Kind.FORWARD, Kind.BACKWARD) for stage in pipeline.stages] + sends) // line.per)
    return EvaluatedLine(line, positions, value, pipeline, schedule)


def without_empty_stages(line: Line, positions: Positions) -> tuple[Line, Positions]:
    """Return the line and shares without devices that hold nothing."""
    kept = [s for s, (a, b) in enumerate(pairwise(positions)) if b - a > NOTHING]
    if len(kept) == line.chain.stages:
        return line, positions
    ends = [positions[s + 1] for s in kept[:-1]]
    return line.select(kept), (positions[0], *ends, positions[-1])


def plan(model: Model, job: Job, evaluated: EvaluatedLine, bound: int) -> Plan:
    """Return the plan of an evaluated line, with its proven bound in nanoseconds."""
    line, chain = evaluated.line, evaluated.line.chain
    shares = line.problem.shares(evaluated.positions)
    return Plan(
        model=model.name,
        fingerprint=model.fingerprint,
        cluster=line.cluster.name,
        device_kinds=tuple(device.kind.name for device in line.cluster.devices),
        micro_batch=chain.micro_batch,
        micro_batches=line.micro_batches,
        optimizer=job.of(model).optimizer,
        state_bytes=job.state_bytes,
        gradient_bytes=job.gradient_bytes,
        stages=tuple(_plan_stage(evaluated, s, row) for s, row in enumerate(shares)),
        schedule=evaluated.schedule,
        ranks=tuple(device.index for device in chain.devices),
        step_time=evaluated.value,
        bound=bound,
        zero=chain.zero,
        pipeline=evaluated.pipeline,
        yardstick=yardstick(model, line.cluster),
    )


def _pipeline(line: Line, positions: Positions) -> Pipeline:
    chain, devices = line.chain, line.chain.devices
    shares, streamed = line.problem.shares(positions), line.problem.streamed(positions)
    sizes = [_crossing(line, position) for position in positions[1:-1]]
    hops = list(zip(pairwise(devices), sizes, strict=True))
    return Pipeline(
        stages=tuple(_stage(line, s, row, streamed[s], sizes[s - 1] if s else 0) for s, row in enumerate(shares)),
        placement=tuple((s,) for s in range(chain.stages)),
        transfers=tuple((transfer(line.cluster, a, b, size),) for (a, b), size in hops),
        returns=tuple((transfer(line.cluster, b, a, size),) for (a, b), size in hops),
        overlap=chain.overlap,
        runtime=tuple(int(size) for size in chain.runtime),
        limits=tuple(int(size) for size in chain.limit),
    )


def _crossing(line: Line, position: float) -> int:
    """Bytes over a boundary: those in front of its layer, and those of the left share of the layer's output."""
    layer = math.floor(position)
    return up(line.through_bytes[layer] + (position - layer) * line.own_bytes[layer])


def _stage(line: Line, s: int, row: NDArray[np.float64], streamed: bool, received: int) -> Stage:
    chain = line.chain
    forward, backward = (chain.forward, chain.backward) if streamed else line.on_chip
    return Stage(
        forward=part(row, forward[s]),
        backward=part(row, backward[s]),
        update=part(row, chain.update[s]),
        resident=sum(part(row, sizes) for sizes in (chain.weights[s], chain.gradients[s], chain.optimizer[s])),
        held=part(row, chain.saved[s]) + received,
        workspace=up(float((row * chain.workspace[s]).max())),
    )


def _plan_stage(evaluated: EvaluatedLine, s: int, row: NDArray[np.float64]) -> PlanStage:
    line, chain, priced = evaluated.line, evaluated.line.chain, evaluated.pipeline.stages[s]
    touched = [i for i, share in enumerate(row.tolist()) if share > NOTHING]
    in_flight = line.in_flight[s]
    return PlanStage(
        layers=tuple(chain.names[i] for i in touched),
        devices=(chain.devices[s].index,),
        forward=priced.total(Kind.FORWARD),
        backward=priced.total(Kind.BACKWARD),
        in_flight=in_flight,
        memory=MemoryParts(
            weights=part(row, chain.weights[s]),
            gradients=part(row, chain.gradients[s]),
            optimizer=part(row, chain.optimizer[s]),
            activations=in_flight * priced.held,
            workspace=priced.workspace * (2 if line.family.two_lanes else 1),
            runtime=int(chain.runtime[s]),
            frozen=part(row, chain.frozen[s]),
        ),
        shares=tuple((chain.names[i], float(row[i])) for i in touched if row[i] < 1 - NOTHING),
    )


def part(row: NDArray[np.float64], values: NDArray[np.int64]) -> int:
    """Sum of shares times the values of their layers, rounded up."""
    return up(float(np.dot(row, values)))


def up(value: float) -> int:
    """Round up, except for excess within the error of float arithmetic."""
    return math.ceil(value * (1 - 1e-13))
