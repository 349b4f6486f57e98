"""Tables of records made by hand: ratios, formats, the largest advantages."""

import csv
import io
import json
from dataclasses import replace

from pipeplan.analysis.sweep.record import Figures, Record
from pipeplan.analysis.sweep.table import FORMATS, Deepest, deepest, largest, table
from pipeplan.search.heuristics import CUT_SHORT, LATE

GREEDY, DATA = "bapipe-greedy", "data-parallel"


def solved(model: str, value: int, peak: int, rung: int | None = None, **beside: tuple[int, int] | None) -> Record:
    """A row whose methods have (value, peak), or no plan."""
    figures = {
        name.replace("_", "-"): Figures(why="too full") if pair is None else Figures(pair[0], (1, pair[1]), "4 x 1")
        for name, pair in beside.items()
    }
    return Record(
        model,
        "box",
        "batch 4",
        "f",
        "solved",
        answer=Figures(value, (peak, 1), "2-2"),
        beside=figures,
        bound=value - value // 10,
        rung=None if rung is None else ("gnmt", rung),
    )


ROWS = (
    solved("a", 100, 50, bapipe_greedy=(120, 40), data_parallel=(300, 200)),
    solved("gnmt-16", 10, 5, 16, bapipe_greedy=(11, 5), data_parallel=(12, 30)),
    solved("gnmt-32", 10, 5, 32, bapipe_greedy=(10, 5), data_parallel=None),
    Record("gnmt-64", "box", "batch 4", "f", "infeasible", error="No plan fits\nmore", rung=("gnmt", 64)),
    Record("b", "box", "batch 4", "f", "failed", error="x | y"),
)


def test_ratios_are_relative_to_the_answer() -> None:
    """Ratios of times and of fullest devices are relative to the answer's, and missing without a plan."""
    first, *_, last = ROWS
    assert first.gap == 0.1
    assert (first.ratio(DATA), first.peak_ratio(DATA)) == (3.0, 4.0)
    assert (first.ratio(GREEDY), first.peak_ratio(GREEDY)) == (1.2, 0.8)
    assert ROWS[2].ratio(DATA) is None
    assert first.ratio("unheard-of") is None
    assert last.ratio(DATA) is None
    assert last.gap is None


def test_the_largest_ratio_and_where() -> None:
    """The largest ratio, for the answer and the greedy, names the row in which another method is furthest behind."""
    found = {
        (one.method, one.other, one.figure): (one.ratio, one.record.model)
        for one in largest(table(ROWS), ("pipeplan", GREEDY))
    }
    assert found == {
        ("pipeplan", GREEDY, "step time"): (1.2, "a"),
        ("pipeplan", GREEDY, "peak memory"): (1.0, "gnmt-16"),
        ("pipeplan", DATA, "step time"): (3.0, "a"),
        ("pipeplan", DATA, "peak memory"): (6.0, "gnmt-16"),
        (GREEDY, DATA, "step time"): (2.5, "a"),
        (GREEDY, DATA, "peak memory"): (6.0, "gnmt-16"),
    }


def test_the_deepest_member_for_each_method() -> None:
    """The largest member that a method has a plan for."""
    assert deepest(table(ROWS)) == [
        Deepest("gnmt", "box", "batch 4", "pipeplan", 32, sure=True),
        Deepest("gnmt", "box", "batch 4", GREEDY, 32, sure=True),
        Deepest("gnmt", "box", "batch 4", DATA, 16, sure=True),
    ]


def test_deeper_ones_may_fit_where_time_was_short() -> None:
    """A member that failed, or for which a method was not run in time, proves nothing about the method."""
    late = replace(ROWS[2], beside={GREEDY: Figures(why=LATE), DATA: Figures(why="too full")})
    failed = replace(ROWS[3], outcome="failed")
    found = {one.method: (one.number, one.sure) for one in deepest(table((ROWS[1], late, failed)))}
    assert found == {"pipeplan": (32, False), GREEDY: (16, False), DATA: (16, True)}
    assert [one.sure for one in deepest(table((ROWS[1], late, ROWS[3])))] == [True, False, True]
    assert "16 or more" in FORMATS["markdown"](table((ROWS[1], late, failed)))


def test_no_row_is_lost_in_any_format() -> None:
    """Every format has a row for every record, in order, and the reason where there is no plan."""
    whole = table(ROWS)
    names = [record.model for record in ROWS]
    rows = list(csv.DictReader(io.StringIO(FORMATS["csv"](whole))))
    assert [row["model"] for row in rows] == names
    assert float(rows[0]["step_time_s"]) == 100e-9
    assert rows[0][f"{DATA}: ratio"] == "3.0"
    assert rows[2][f"{DATA}: why"] == "too full"
    assert rows[3]["error"] == "No plan fits\nmore"
    assert [row["model"] for row in json.loads(FORMATS["json"](whole))["rows"]] == names
    lines = FORMATS["markdown"](whole).splitlines()
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines[2 : 2 + len(ROWS)]] == names
    assert "does not fit" in lines[5]
    assert "x \\| y" in lines[6]
    text = FORMATS["text"](whole).splitlines()
    assert [line.split()[0] for line in text[2 : 2 + len(ROWS)]] == names
    assert "3.00 (4.00)" in text[2]


def test_the_job_is_shown_where_it_matters() -> None:
    """The job is shown only if rows of one model on one cluster differ by it."""
    other = replace(ROWS[0], job="batch 8")
    assert "batch 4" in FORMATS["markdown"](table((ROWS[0], other))).splitlines()[2]
    assert "batch" not in FORMATS["markdown"](table(ROWS)).splitlines()[2]


def test_too_late_is_not_too_full() -> None:
    """A method that was not run in time is not shown as one that does not fit."""
    late = replace(ROWS[0], beside={GREEDY: Figures(why=LATE), DATA: Figures(why="too full")})
    assert FORMATS["markdown"](table((late,))).splitlines()[2].endswith("| ? | - |")


def test_a_bounded_method_has_a_plan() -> None:
    """A method whose plans fit and were not simulated is shown with a lower bound; it has no place in the ratios."""
    bounded = Figures(plan="8 x 1", why=CUT_SHORT, at_least=25)
    row = replace(ROWS[2], beside={GREEDY: bounded, DATA: Figures(why="too full")})
    assert FORMATS["markdown"](table((row,))).splitlines()[2].endswith("| ≥ 2.50 | - |")
    assert table((row,)).rows()[0][f"{GREEDY}: at_least_s"] == 25e-9
    assert all(one.other != GREEDY for one in largest(table((row,)), ("pipeplan",)))
    assert {one.method: (one.number, one.sure) for one in deepest(table((row, ROWS[3])))}[GREEDY] == (32, True)


def test_a_plan_outside_what_was_asked_counts_for_nothing() -> None:
    """Such a plan is shown with a mark and its reason in the data; largest ratios and deepest members ignore it."""
    beyond = Figures(50, (1, 40), "1 x 4", outside="it has 1 stage, the job asks for 4")
    row = replace(ROWS[1], beside=ROWS[1].beside | {GREEDY: beyond})
    assert "5.00 (8.00)*" in FORMATS["markdown"](table((row,)))
    assert table((row,)).rows()[0][f"{GREEDY}: outside"] == beyond.outside
    assert all(GREEDY not in (one.method, one.other) for one in largest(table((row,)), ("pipeplan", GREEDY)))
    assert {one.method: one.number for one in deepest(table((row,)))} == {"pipeplan": 16, GREEDY: 0, DATA: 16}


def test_the_methods_shown_are_those_asked_for() -> None:
    """With a list only its methods are shown, in its order; without one all that appear."""
    assert table(ROWS).methods == (GREEDY, DATA)
    assert table(ROWS, [DATA]).methods == (DATA,)
    assert GREEDY not in FORMATS["text"](table(ROWS, [DATA]))


def test_parts_make_tables_of_their_own() -> None:
    """Each part has its heading, its rows and its largest ratios; series are counted over all of them."""
    parted = [replace(record, part="first" if n < 1 else "second") for n, record in enumerate(ROWS)]
    whole = table(parted)
    assert [(name, len(part.records)) for name, part in whole.parts()] == [("first", 1), ("second", 4)]
    text = FORMATS["markdown"](whole)
    headings = [line.strip("*") for line in text.splitlines() if line.startswith("**")]
    assert headings == [
        "first",
        "first: largest ratios",
        "second",
        "second: largest ratios",
        "largest members that fit",
    ]
    assert [row["part"] for row in json.loads(FORMATS["json"](whole))["rows"]] == ["first"] + ["second"] * 4


def test_an_empty_table_is_a_table() -> None:
    """An interrupt before the first cell prints headings and nothing else."""
    for write in FORMATS.values():
        assert write(table(()))
