"""Tables of records made by hand: ratios, formats, the largest advantages."""

import csv
import io
import json
from dataclasses import replace

import pytest

from pipeplan.analysis.sweep.experiment import Search
from pipeplan.analysis.sweep.formats import FORMATS, as_parquet, seeds_csv
from pipeplan.analysis.sweep.record import Figures, Record
from pipeplan.analysis.sweep.spread import over_seeds
from pipeplan.analysis.sweep.table import Deepest, deepest, largest, table
from pipeplan.core.errors import InputError
from pipeplan.core.job import Job
from pipeplan.core.machine import Machine
from pipeplan.search.turns import CUT_SHORT, LATE

GREEDY, DATA = "bapipe-greedy", "data-parallel"
ASKED = (Job(4), Search())


def solved(model: str, value: int, peak: int, rung: int | None = None, **beside: tuple[int, int] | None) -> Record:
    """A row whose methods have (value, peak), or no plan."""
    figures = {
        name.replace("_", "-"): Figures(why="too full") if pair is None else Figures(pair[0], (1, pair[1]), "4 x 1")
        for name, pair in beside.items()
    }
    return Record(
        model,
        "box",
        *ASKED,
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
    Record("gnmt-64", "box", *ASKED, "f", "infeasible", error="No plan fits\nmore", rung=("gnmt", 64)),
    Record("b", "box", *ASKED, "f", "failed", error="x | y"),
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
        Deepest("gnmt", "box", "batch 4", Search(), "pipeplan", 32, sure=True),
        Deepest("gnmt", "box", "batch 4", Search(), GREEDY, 32, sure=True),
        Deepest("gnmt", "box", "batch 4", Search(), DATA, 16, sure=True),
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
    assert "| does not fit | No plan fits | - |" in lines[5]
    assert "| failed | x \\| y | - |" in lines[6]
    assert [json.loads(line)["model"] for line in FORMATS["jsonl"](whole).splitlines()] == names
    text = FORMATS["text"](whole).splitlines()
    assert [line.split()[0] for line in text[2 : 2 + len(ROWS)]] == names
    assert "3.00 (4.00)" in text[2]


def test_the_job_is_shown_where_it_matters() -> None:
    """The job is shown only if rows of one model on one cluster differ by it."""
    other = replace(ROWS[0], job=Job(8))
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


def test_a_row_is_tidy() -> None:
    """Every field of the job and of the search is a column, as are the computer, its versions and both times."""
    job = Job(8, micro_batches=(2, 4), optimizer="adam", together=(("a", "b"), ("c", "d")), pin=(("a", "d0"),))
    where = Machine("host", "some processor", 4, "1.0", "3.11", "9.15", "3.3")
    record = replace(
        ROWS[1], job=job, search=Search(5, 0.1, "cbc", 2, 7), machine=where, wall=2.0, processor=3.5, plan_file="p"
    )
    (row,) = table((record,)).rows()
    expected = {"batch": 8, "micro_batches": "2 4", "optimizer": "adam", "memory": None, "recompute": "choose"}
    expected |= {"together": "a+b c+d", "pin": "a+d0", "extrapolate": False, "series": "gnmt", "number": 16}
    expected |= {"time_limit_s": 5, "gap_limit": 0.1, "backend": "cbc", "workers": 2, "seed": 7}
    expected |= {"machine": "host", "processor": "some processor", "cores": 4, "pipeplan": "1.0", "python": "3.11"}
    expected |= {"ortools": "9.15", "torch": "", "wall_s": 2.0, "processor_s": 3.5, "plan_file": "p"}
    assert {name: row[name] for name in expected} == expected
    assert set(Job.__dataclass_fields__) <= set(row)


def test_seeds_have_a_mean_and_a_spread() -> None:
    """Cells that differ in the seed only are one group; a failed one counts as not solved."""
    seeds = [replace(ROWS[0], search=Search(seed=n), answer=replace(ROWS[0].answer, value=100 + n)) for n in range(3)]
    seeds = [replace(record, wall=1.0) for record in seeds]
    failed = replace(ROWS[4], model="a", search=Search(seed=3))
    other = replace(ROWS[0], search=Search(backend="cbc"))
    groups = over_seeds([*seeds, failed, other])
    assert [(len(group.records), len(group.solved)) for group in groups] == [(4, 3), (1, 1)]
    row = groups[0].row()
    assert "seed" not in row
    assert (row["seeds"], row["solved"], row["backend"]) == (4, 3, "cpsat")
    spread = [row[f"step_time_s_{name}"] for name in ("mean", "deviation", "least", "most")]
    assert spread == pytest.approx([101e-9, 1e-9, 100e-9, 102e-9])
    assert groups[1].row()["step_time_s_deviation"] is None
    whole = table([*seeds, failed, other])
    rows = list(csv.DictReader(io.StringIO(seeds_csv(whole))))
    assert [row["wall_s_mean"] for row in rows] == ["1.0", ""]
    text = FORMATS["markdown"](whole)
    assert "**over seeds**" in text
    assert "| a | box | cpsat | 3 of 4 | 101 ns ± 1 ns (100 ns to 102 ns) |" in text
    assert len(json.loads(FORMATS["json"](whole))["seeds"]) == 2


def test_one_seed_has_no_sheet() -> None:
    """The Markdown of an experiment with one seed has no table of spreads."""
    assert "over seeds" not in FORMATS["markdown"](table(ROWS)).replace("deviation over seeds", "")


def test_searches_distinguish_rows() -> None:
    """Fields of the search in which rows differ are columns of the sheets."""
    both = table([replace(ROWS[0], search=Search(backend=name)) for name in ("cpsat", "cbc")])
    assert both.distinguishing == ["model", "cluster", "backend"]
    assert FORMATS["markdown"](both).splitlines()[3].startswith("| a | box | cbc |")


def test_parquet_holds_the_rows_or_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """With pyarrow the rows read back; without it one line names the extra."""
    monkeypatch.setattr("pipeplan.analysis.sweep.formats.installed_version", lambda _: "")
    with pytest.raises(InputError, match=r"pip install 'pipeplan\[parquet\]'"):
        as_parquet(table(ROWS))
    monkeypatch.undo()
    parquet = pytest.importorskip("pyarrow.parquet")
    assert parquet.read_table(io.BytesIO(as_parquet(table(ROWS)))).to_pylist() == table(ROWS).rows()


def test_an_empty_table_is_a_table() -> None:
    """An interrupt before the first cell prints headings and nothing else."""
    for name, write in FORMATS.items():
        assert write(table(())) or name == "jsonl"
