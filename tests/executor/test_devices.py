"""Choice of the device of a rank."""

import pytest
import torch

from pipeplan.core.errors import InputError
from pipeplan_executor.processes.devices import take
from pipeplan_executor.processes.launcher import joined_world


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without a launcher's environment, on a machine with four GPUs."""
    for name in (
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "SLURM_NTASKS_PER_NODE",
        "SLURM_STEP_NUM_TASKS",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)


def test_ranks_of_other_machines_need_no_gpu_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fourth of a machine's ranks gets its fourth GPU, however many ranks there are elsewhere."""
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert take("auto") == torch.device("cuda", 3)
    monkeypatch.setenv("LOCAL_RANK", "4")
    with pytest.raises(InputError, match="5 processes on this machine need a GPU each, and it has 4"):
        take("auto")


def test_a_batch_script_is_no_task_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm sets a process number and a task count for batch scripts too, which are no ranks."""
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_NTASKS", "8")
    assert joined_world() is None


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE"])
def test_a_rank_that_is_no_number_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A launcher's variable that holds no number is shown with its value, and what to do."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv(name, "two")
    with pytest.raises(InputError, match=f"{name}='two', expected a number; unset it"):
        joined_world()
