"""Divided layers: bounds hold for simulated plans, and answers are never worse than with whole layers."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.fpga_lines import board, line_cluster, model_of
from pipeplan import solve
from pipeplan.core.errors import InfeasibleError
from pipeplan.core.job import Job
from pipeplan.fpga.evaluate import evaluate
from pipeplan.fpga.shares import balanced
from pipeplan.fpga.space import lines
from pipeplan.simulate import simulate


@st.composite
def cases(draw, boards=3, layers=5):
    """A chain and a line: unequal boards, links that may bind, chips that may be too small."""
    count = draw(st.integers(1, layers))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    big = draw(st.sampled_from([1000, 10**5]))
    model = model_of(
        rng.integers(1, 10**5, count).tolist(),
        rng.integers(0, big, count).tolist(),
        rng.integers(0, big, count).tolist(),
    )
    fast, chip = draw(st.sampled_from([10**9, 18 * 10**8])), int(rng.integers(1, 4 * big))
    kinds = [board("small", on_chip=chip), board("large", speed=fast, on_chip=2 * chip)]
    row = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=boards))
    cluster = line_cluster(row, draw(st.sampled_from([None, 10**9, 10**10])), draw(st.sampled_from([0, 700])))
    return model, cluster


@given(cases(), st.data())
@settings(max_examples=120, deadline=None)
def test_no_shares_are_simulated_below_their_bound(case, data) -> None:
    """For any line, family and shares the simulated step is at least the problem's value, less its rounding."""
    model, cluster = case
    line = data.draw(st.sampled_from(lines(model, cluster, Job(6))))
    inner = data.draw(
        st.lists(st.floats(0, len(model.layers)), min_size=line.chain.stages - 1, max_size=line.chain.stages - 1)
    )
    positions = (0.0, *sorted(inner), float(len(model.layers)))
    judged = evaluate(line, positions)
    assert judged.value >= judged.line.problem.evaluate(judged.positions) * (1 - 1e-9) - line.rounding
    assert simulate(judged.schedule, judged.pipeline).makespan == judged.value


@given(cases())
@settings(max_examples=60, deadline=None)
def test_balance_is_perfect(case) -> None:
    """Every device of a balanced line works equally long, whatever its speed."""
    model, cluster = case
    line = lines(model, cluster, Job(6))[-1]
    positions = balanced(line)
    assert positions is not None
    shares = line.problem.shares(positions)
    loads = (shares * (line.chain.forward + line.chain.backward)).sum(axis=1)
    assert np.allclose(loads, loads[0], rtol=1e-6)


@given(cases(layers=4), st.sampled_from(["step", "bottleneck"]))
@settings(max_examples=8, deadline=None)
def test_divided_answers_are_bracketed_and_never_worse(case, objective: str) -> None:
    """Not worse than whole layers, not below the bound, and the plan's shares make up every layer."""
    model, cluster = case
    job = Job(4, micro_batches=(4,), objective=objective)
    whole = solve(model, cluster, job=job, time_limit=20, backend="exact")
    divided = solve(model, cluster, job=replace(job, intra_layer=True), time_limit=40, backend="exact")
    assert divided.bound <= divided.value <= whole.value
    total = dict.fromkeys(model.names, 0.0)
    for stage in divided.plan.stages:
        for name in stage.layers:
            total[name] += dict(stage.shares).get(name, 1.0)
    assert all(abs(part - 1) < 1e-9 for part in total.values())


def test_dividing_can_make_a_plan_fit() -> None:
    """Where no partition into whole layers fits two boards, one divided layer does."""
    model = model_of([1000] * 3, output=10, parameters=3000)
    cluster = line_cluster([board(memory=10_000)] * 2)
    try:
        solve(model, cluster, job=Job(4, micro_batches=(4,)), backend="exact")
    except InfeasibleError:
        found = solve(model, cluster, job=Job(4, micro_batches=(4,), intra_layer=True), backend="exact")
        assert [len(stage.shares) for stage in found.plan.stages] == [1, 1]
    else:
        raise AssertionError("three layers of 6,000 bytes were put on two boards of 10,000")
