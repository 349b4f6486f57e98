"""Reading and writing of torch's schedule files."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeplan.core.errors import InputError
from pipeplan.core.schedule import Action, Kind, Schedule
from pipeplan.io.export.torch_csv import read_torch_csv, schedule_from_torch_csv, torch_csv_text, write_torch_csv
from pipeplan.schedules import FAMILIES, PLACED


def test_text_of_a_small_schedule() -> None:
    """One row a rank, one action a cell; reductions and updates stay out."""
    schedule = Schedule.from_text("x", ["0F0 0F1 0I0 0W0 0B1 0R 0U", "1F0 1B0 1F1 1B1 1U"])
    assert torch_csv_text(schedule).splitlines() == ["0F0,0F1,0I0,0W0,0B1", "1F0,1B0,1F1,1B1"]


@pytest.mark.parametrize("family", [*FAMILIES, *(name for name in PLACED if name != "chimera")])
def test_families_survive_the_way_there_and_back(family: str, tmp_path: Path) -> None:
    """Every family's compute actions come back in order, with one update for each stage at the end."""
    schedule = FAMILIES[family].write((1,) * 4, 8) if family in FAMILIES else PLACED[family].write(4, 8)
    write_torch_csv(schedule, tmp_path / "s.csv")
    back = read_torch_csv(tmp_path / "s.csv", family)
    for mine, read in zip(schedule.orders, back.orders, strict=True):
        compute = [action for action in mine if action.kind.per_micro_batch]
        stages = sorted({action.stage for action in mine})
        assert list(read) == compute + [Action(Kind.UPDATE, stage) for stage in stages]


@pytest.mark.parametrize("family", ["1f1b-sno", *PLACED])
def test_one_of_equal_copies_is_written(family: str) -> None:
    """Copies of a pipeline with as many micro-batches each are one file; unequal ones, or both ways, are none."""
    placed = PLACED.get(family)

    def written(copies: int, micro_batches: int) -> Schedule:
        if placed is None:
            return FAMILIES[family].write((copies,) * 4, micro_batches)
        return placed.write(4, micro_batches, copies=copies)

    if family == "chimera":
        with pytest.raises(InputError, match="in no equal copies"):
            torch_csv_text(written(1, 4))
        return
    assert torch_csv_text(written(3, 15)) == torch_csv_text(written(1, 5))
    with pytest.raises(InputError, match="stage 0 runs on 3"):
        torch_csv_text(written(3, 14))


actions = st.builds(
    Action,
    st.sampled_from([kind for kind in Kind if kind.per_micro_batch]),
    st.integers(0, 30),
    st.integers(0, 600),
    st.just(0),
)


@settings(max_examples=100)
@given(st.lists(st.lists(actions, min_size=1, max_size=9), min_size=1, max_size=4))
def test_torch_reads_the_same_actions(rows: list[list[Action]]) -> None:
    """Each cell means the same action to torch's own parser, and torch's own text the same to ours."""
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    rows = [[action._replace(stage=action.stage * len(rows) + r) for action in row] for r, row in enumerate(rows)]
    text = torch_csv_text(Schedule("x", tuple(map(tuple, rows))))
    for row, line in zip(rows, text.splitlines(), strict=True):
        theirs = [schedules._Action.from_str(cell) for cell in line.split(",")]
        assert [(a.stage_index, a.computation_type.value, a.microbatch_index) for a in theirs] == [
            (action.stage, action.kind.value, action.micro_batch) for action in row
        ]
        back = schedule_from_torch_csv(",".join(map(repr, theirs)), "x").orders[0]
        assert [action for action in back if action.kind.per_micro_batch] == row


def test_idle_steps_and_overlapped_pairs() -> None:
    """Empty cells are skipped, and a pair that torch overlaps becomes two actions in a row."""
    schedule = schedule_from_torch_csv(",0F0, ,(0F1;0B0)OVERLAP_F_B,0B1\n", "x")
    assert schedule.as_text() == ("0F0 0F1 0B0 0B1 0U",)


def test_transfers_and_sharding_steps_are_left_out() -> None:
    """Entries of torch's lists that are not computation do not become actions."""
    schedule = schedule_from_torch_csv("0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0RESHARD,0REDUCE_GRAD\n", "x")
    assert schedule.as_text() == ("0F0 0B0 0U",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is no row"),
        ("0F0,0X1\n1F0,nonsense", r"(?s)row 1, column 2: '0X1'.*row 2, column 2: 'nonsense'"),
        ("0UNSHARD,0F0,0SEND_X0", "row 1, column 3: '0SEND_X0'"),
        ("0F0,0U", "'0U' is not a compute action"),
    ],
)
def test_wrong_cells_are_named(text: str, message: str) -> None:
    """Every cell that is no compute action is named by row and column."""
    with pytest.raises(InputError, match=message):
        schedule_from_torch_csv(text, "s.csv")


def test_token_slices_cannot_be_said() -> None:
    """A sliced schedule is refused rather than written wrongly."""
    with pytest.raises(InputError, match=r"has 0F0\.1"):
        torch_csv_text(Schedule.from_text("x", ["0F0 0F0.1"]))
