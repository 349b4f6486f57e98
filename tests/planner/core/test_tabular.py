"""Tables of models, clusters, plans and answers: short texts, HTML, data frames."""

import sys
from types import SimpleNamespace

import pytest

from helpers.instances import fat_head
from pipeplan.analysis.compare import compare
from pipeplan.analysis.explain import explain
from pipeplan.analysis.frontier import frontier
from pipeplan.core.cluster import Cluster, DeviceKind
from pipeplan.core.errors import InputError
from pipeplan.core.job import Job
from pipeplan.core.tabular import Table, Tabular
from pipeplan.core.wording import fitted
from pipeplan.io.load import load_cluster, load_model
from pipeplan.solve import solve

TABLE = Table({"layer": "", "time": "ns", "size": "bytes"}, (("a", 1_500_000, 2**20), ("b <c>", None, 3)))


def test_text_is_aligned() -> None:
    """Text lies at the left, numbers with their units at the right, empty cells are blank."""
    assert TABLE.as_text().splitlines() == [
        "layer    time      size",
        "a      1.5 ms  1.00 MiB",
        "b <c>               3 B",
    ]


def test_long_tables_leave_out_their_middle() -> None:
    """At most 40 rows are shown, and the number of the others."""
    lines = Table({"n": ""}, tuple((n,) for n in range(100))).as_text().splitlines()
    assert len(lines) == 42
    assert tuple(line.strip() for line in lines[20:23]) == ("19", "… 60 more", "80")


def test_html_escapes_names() -> None:
    """Names cannot break the page."""
    assert "<td>b &lt;c&gt;</td>" in TABLE.as_html("a & b")
    assert "<caption>a &amp; b</caption>" in TABLE.as_html("a & b")


def test_data_frames_have_seconds_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns say their unit; the rows are numbers, all of them."""
    stub = SimpleNamespace(DataFrame=lambda rows, columns: (columns, rows), __spec__=object())
    monkeypatch.setitem(sys.modules, "pandas", stub)
    columns, rows = TABLE.to_pandas()
    assert columns == ["layer", "time_s", "size_bytes"]
    assert rows == [["a", 0.0015, 2**20], ["b <c>", None, 3]]


def test_without_pandas_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line says what to install."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="need pandas; install it with: pip install pandas"):
        load_model("vgg-16").to_pandas()


def test_everything_a_notebook_shows_is_short() -> None:
    """Models, clusters, plans, answers and comparisons have one line as their ``repr``, and a table."""
    model, cluster = fat_head(), Cluster.uniform(2, DeviceKind("unit"))
    result = solve(model, cluster, batch=8, time_limit=10)
    comparison = compare(model, cluster, Job(8, schedules=("gpipe",)), time_limit=10)
    curve = frontier(model, cluster, 8, over="memory", points=2, time_limit=10)
    explained = explain(model, cluster, result=result)
    shown: list[Tabular] = [model, cluster, result, result.plan, comparison, curve, explained, load_cluster("64-h100")]
    for each in shown:
        assert repr(each).startswith(f"<{type(each).__name__} ") and len(repr(each)) < 250
        assert each._repr_html_().count("<tr>") == len(each.table().as_text().splitlines())
    assert repr(cluster) == "<Cluster 2 x unit: 2 unit in 1 node>"
    assert repr(result.plan) == f"<Plan {str(result).splitlines()[0]}>"


WIDE = Table.of_text(
    ("method", "time", "rate", "plan"),
    [("data-parallel", "1.2 ms", "12 /s", "one stage of four replicas, four micro-batches of sixteen samples")],
    optional=("rate",),
)


@pytest.mark.parametrize("width", [24, 40, 56, 64, 80, 160])
def test_text_is_as_wide_as_asked_for(width: int) -> None:
    """Columns are left out, the last one is wrapped or stands below its row; names stay whole, no line is longer."""
    lines = WIDE.as_text(width=width).splitlines()
    assert max(map(len, lines)) <= width
    assert ("rate" in lines[0]) == (width not in (24, 56))  # at 40 the plan stands below anyway
    assert any(line.startswith("data-parallel") and "1.2 ms" in line for line in lines)
    assert " ".join(" ".join(lines).split()).count("micro-batches of sixteen") == 1 or width < 40


def test_long_lines_are_wrapped_for_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """COLUMNS, or a terminal, says how wide lines may be; elsewhere they stay as they are."""
    text = "  stage 0: " + "a word " * 20
    monkeypatch.delenv("COLUMNS", raising=False)
    assert fitted(text) == text
    monkeypatch.setenv("COLUMNS", "60")
    lines = fitted(text).splitlines()
    assert len(lines) > 2 and max(map(len, lines)) <= 60
    assert all(line.startswith("      a") or line.startswith("      w") for line in lines[1:])
