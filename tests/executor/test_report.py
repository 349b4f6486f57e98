"""Report of a run, merged from the measurements of its ranks."""

from argparse import Namespace

import pytest

from pipeplan.core.schedule import Action, Kind
from pipeplan.core.timeline import Span
from pipeplan_executor.cli.run import untimed
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
