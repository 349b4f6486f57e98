"""Shares of layers as stages: times, bytes, tensors, and the simulator's value."""

import pytest

from helpers.fpga_lines import board, line_cluster, model_of, one_line
from pipeplan.core.cluster import Overlap
from pipeplan.core.job import Job
from pipeplan.fpga.evaluate import evaluate

JOB = Job(4, micro_batches=(4,), schedules=("1f1b-as",))


def test_a_divided_layer_costs_in_proportion() -> None:
    """A quarter of a layer takes a quarter of its time and bytes; its input passes whole, its output in part."""
    model = model_of([4000, 8000, 4000], output=[10, 40, 20], parameters=[8, 16, 8])
    line = one_line(model, line_cluster([board(), board()], bandwidth=10**9), JOB)
    judged = evaluate(line, (0.0, 1.25, 3.0))
    left, right = judged.pipeline.stages
    assert (left.forward, right.forward) == (6000, 10_000)
    assert (left.backward, right.backward) == (12_000, 20_000)
    assert (left.resident, right.resident) == (2 * 12, 2 * 20)
    crossing = 10 + 40 // 4
    assert judged.pipeline.transfers[0][0].size == judged.pipeline.returns[0][0].size == crossing
    assert (left.held, right.held) == (10 + 10, 30 + 20 + crossing)
    assert judged.pipeline.overlap is Overlap.STREAM


def test_whole_positions_are_ordinary_cuts() -> None:
    """At a whole position only the ordinary crossing bytes are sent."""
    model = model_of([4000, 8000, 4000], output=[10, 40, 20])
    line = one_line(model, line_cluster([board(), board()]), JOB)
    assert [evaluate(line, (0.0, p, 3.0)).pipeline.transfers[0][0].size for p in (1.0, 2.0)] == [10, 40]


def test_weights_that_do_not_fit_on_chip_are_streamed() -> None:
    """The same stage is slower by the traffic of its weights where the chip is a byte too small."""
    model = model_of([10, 10], output=0, parameters=1000)
    fits, short = (
        evaluate(one_line(model, line_cluster([board(on_chip=size)]), Job(4, micro_batches=(4,))), (0.0, 2.0))
        for size in (4000, 3999)
    )
    assert fits.pipeline.stages[0].forward == 20
    assert short.pipeline.stages[0].forward == 20_000
    assert short.value > fits.value


def test_an_empty_stage_is_left_out() -> None:
    """A device without a share takes no part, and the line is as fast as the shorter one."""
    model = model_of([4000, 8000])
    three = evaluate(one_line(model, line_cluster([board()] * 3, latency=50), JOB), (0.0, 1.0, 1.0, 2.0))
    two = evaluate(one_line(model, line_cluster([board()] * 2, latency=50), JOB), (0.0, 1.0, 2.0))
    assert three.value == two.value
    assert [device.index for device in three.line.chain.devices] == [0, 2]


@pytest.mark.parametrize("family", ["1f1b-as", "fbp-as"])
def test_equal_shares_take_the_step_of_equal_stages(family: str) -> None:
    """(M + N − 1) units of F + B for 1F1B-AS, (M + 2 N − 1) for FBP-AS, one layer divided among all devices."""
    model = model_of([9000], output=0, parameters=0)
    job = Job(6, micro_batches=(6,), schedules=(family,))
    judged = evaluate(one_line(model, line_cluster([board()] * 3), job), (0.0, 1 / 3, 2 / 3, 1.0))
    units = {"1f1b-as": 6 + 3 - 1, "fbp-as": 6 + 2 * 3 - 1}[family]
    assert judged.value == units * 9000
    assert [stage.forward for stage in judged.pipeline.stages] == [3000] * 3
