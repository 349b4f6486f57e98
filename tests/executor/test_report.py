"""Report of a run, merged from the measurements of its ranks."""

import re
from argparse import Namespace
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from torch import nn

from helpers.instances import model_of
from helpers.plans import plan_for
from pipeplan.analysis.judge import judge
from pipeplan.core.cluster import Cluster, DeviceKind
from pipeplan.core.schedule import Action, Kind
from pipeplan.core.timeline import Span
from pipeplan.schedules import FAMILIES
from pipeplan.simulate import memory_of_ranks, simulate
from pipeplan_executor.cli.run import as_json, as_text, untimed
from pipeplan_executor.sharding.processes import Processes
from pipeplan_executor.train.report import RunReport, Seen, report_of

F, B = Action(Kind.FORWARD, 0, 0), Action(Kind.BACKWARD, 1, 0)


def seen(host: str, clock: int) -> list[Seen]:
    """Two ranks of a host, one of which comes 3 ns late to a step of 90 ns that begins at ``clock``."""
    return [
        Seen(host, [1.0], [clock], [clock + 60], [[(F, clock + 10, clock + 50)]]),
        Seen(host, [1.0], [clock + 3], [clock + 90], [[(B, clock + 50, clock + 85)]]),
    ]


def test_hosts_have_clocks_of_their_own() -> None:
    """A step takes as long on hosts that were started days apart as on one, and its actions lie side by side."""
    one, two = report_of(seen("a", 100) + seen("a", 100)), report_of(seen("a", 100) + seen("b", 3 * 86_400 * 10**9))
    assert one == two
    assert one.step_times == (90,)
    assert one.timeline.spans[::2] == (Span(0, 0, F, 10, 50), Span(1, 0, B, 50, 85))


def test_a_rank_is_measured_by_all_of_its_processes() -> None:
    """Drawn runs of teams on two hosts: the last end, the largest peak, the actions of the first process."""
    for seed in range(20):
        random = Random(seed)
        sizes = tuple(random.randint(1, 3) for _ in range(random.randint(1, 4)))
        everyone, after = [], []
        for _ in range(sum(sizes)):
            host = random.choice("ab")
            clock, begin, took = {"a": 0, "b": 10**6}[host], random.randint(0, 9), random.randint(20, 90)
            spans = [[(F, clock + begin + 1, clock + begin + took - 1)]]
            everyone.append(Seen(host, [1.0], [clock + begin], [clock + begin + took], spans, random.randint(1, 10**6)))
        for one in everyone:
            after.append(one.ends[0] - min(other.starts[0] for other in everyone if other.host == one.host))
        report, groups = (
            report_of(everyone, Processes(sizes)),
            [range(sum(sizes[:r]), sum(sizes[: r + 1])) for r in range(len(sizes))],
        )
        assert report.step_times == (max(after),)
        assert report.peaks == tuple(max(everyone[n].peak for n in group) for group in groups)
        assert {span.device: span.end for span in report.timeline.spans} == {
            rank: after[group[0]] - 1 for rank, group in enumerate(groups)
        }


@pytest.mark.parametrize(
    ("first", "text"),
    [
        (7, "no step is left: the checkpoint is of step 7 of 7 of the whole training (2 of --warmup and 5 of --steps)"),
        (6, "went on after step 6 of 7"),
    ],
)
def test_a_resumed_run_that_times_nothing_says_why(first: int, text: str) -> None:
    """No step is left, or only warm-up; a run with timed steps needs no such line."""
    options = Namespace(warmup=2, steps=5)
    assert text in untimed(options, RunReport((), (), (), (), first=first))
    assert not untimed(options, RunReport((0.5,), (1,), (), (), first=first))


def test_the_report_of_a_run_states_what_was_measured() -> None:
    """Drawn runs, slower or faster than planned: time, samples per second and peaks are recounted from the steps."""
    plan = plan_for(nn.Sequential(*[nn.Linear(2, 2)] * 2), ("0", "1"), (0, 1, 2), FAMILIES["gpipe"].write((1, 1), 2))
    for seed in range(10):
        random = Random(seed)
        planned = replace(plan, step_time=random.randint(1, 9) * 10**6)
        times = tuple(random.randint(10**5, 10**8) for _ in range(random.choice([1, 3, 5])))
        report = RunReport((0.5,) * len(times), times, tuple(random.randint(1, 10**6) for _ in plan.ranks), ())
        rate = plan.batch / (sorted(times)[len(times) // 2] / 1e9)
        as_said, as_data = as_text(planned, report), as_json(planned, report)
        assert float(re.findall(r"throughput ([\d.]+) samples/s", as_said.replace(",", ""))[0]) == pytest.approx(
            rate, rel=0.01
        )
        assert as_data["throughput"]["samples_per_s"] == pytest.approx(rate)
        assert as_data["step_time_s"] == pytest.approx(plan.batch / rate)
        assert as_data["peak_bytes"] == list(report.peaks)


def test_ranks_with_several_stages_hold_their_memory_once() -> None:
    """The prediction is what the simulated step holds: a process has one runtime, and stages peak apart."""
    model = model_of([10] * 4, saved=[8] * 4, output=[2] * 4, parameters=[8] * 4)
    cluster = Cluster.uniform(2, DeviceKind("unit", memory=10_000, runtime=1000))
    how: dict[str, Any] = {"batch": 4, "micro_batches": 4, "time_limit": 0.1, "optimizer": "sgd"}
    plan = judge(model, cluster, stages=(1, 1, 1, 1), schedule="interleaved", chunks=2, **how).plan
    assert list(memory_of_ranks(plan)) == list(simulate(plan.schedule, plan.pipeline).peaks)
    assert 1000 < memory_of_ranks(plan)[0] < 2000
    alone = judge(model, cluster, stages=(2, 2), **how).plan
    assert (
        memory_of_ranks(alone)[1] == alone.stages[1].memory.total == simulate(alone.schedule, alone.pipeline).peaks[1]
    )
