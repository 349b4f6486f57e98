"""Jobs as YAML."""

from pathlib import Path

import pytest

from pipeplan.core.errors import InputError
from pipeplan.core.job import Job, Objective
from pipeplan.io.job_file import job_data, job_from_data, read_job, write_job


def test_fields_are_read() -> None:
    """Every field has its place, sizes their units."""
    data = {"batch": 64, "optimizer": "adam", "memory": "2GiB", "depths": [2, 4], "objective": "bottleneck"}
    assert job_from_data(data, "x") == Job(
        batch=64, optimizer="adam", memory=2**31, depths=(2, 4), objective=Objective.BOTTLENECK
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"bach": 4}, r"(?s)batch: missing.*bach: unknown field; did you mean 'batch'"),
        (
            {"batch": 4, "objective": "stepp"},
            r"objective: 'stepp' is not known; choose from step, period, bottleneck; did you",
        ),
        ({"batch": 4, "optimizer": "lion"}, "optimizer 'lion' is not known"),
        ({"batch": 4, "micro_batches": [3]}, "3 micro-batches do not divide"),
        ({"batch": True}, "batch: should be a whole number, found True"),
    ],
)
def test_wrong_jobs_are_refused(data: dict[str, object], message: str) -> None:
    """Errors of form and of sense come as the same kind of error."""
    with pytest.raises(InputError, match=message):
        job_from_data(data, "job.yaml")


@pytest.mark.parametrize("levels", [(0,), (1,), (0, 1), (2,), (0, 2, 3)])
def test_levels_of_zero_come_back(levels: tuple[int, ...], tmp_path: Path) -> None:
    write_job(Job(8, zero=levels), tmp_path / "job.yaml")
    assert read_job(tmp_path / "job.yaml").zero == levels


def test_an_older_file_says_zero1() -> None:
    """Files from before other levels were known."""
    assert job_from_data({"batch": 8, "zero1": True}, "job").zero == (1,)
    assert job_from_data({"batch": 8, "zero1": False}, "job").zero == (0,)


@pytest.mark.parametrize(("text", "reserve"), [("5%", 0.05), (0.05, 0.05), ("2GiB", 2**31), (100, 100), ("0%", 0)])
def test_what_is_left_free_is_a_share_or_a_size(text: object, reserve: float) -> None:
    """A job file has a share of each device's memory, or bytes, and is written so that it says the same."""
    job = job_from_data({"batch": 4, "reserve": text}, "job")
    assert job == Job(4, reserve=reserve)
    assert job_from_data(job_data(job), "job") == job


@pytest.mark.parametrize("text", ["100%", "-1", "much", 1.5, True])
def test_what_cannot_be_left_free_is_refused(text: object) -> None:
    """A device cannot leave all of its memory free, nor less than nothing."""
    with pytest.raises(InputError, match="reserve"):
        job_from_data({"batch": 4, "reserve": text}, "job")
