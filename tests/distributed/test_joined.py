"""Ranks that another launcher starts: torchrun, and Slurm by its environment variables."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers.distributed.joining import ENVIRONMENT, TORCHRUN, children, pipeplan_run
from helpers.distributed.lasting import STEPS
from pipeplan_executor.checkpoint import as_plain
from pipeplan_executor.checkpoint.folder import whole

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


@pytest.mark.slow
def test_torchrun_restarts_a_run_and_it_goes_on(tmp_path: Path) -> None:
    """A rank dies; torchrun starts all again, and with --resume they go on from the last checkpoint."""
    saved = tmp_path / "saved"
    options = ("--steps", str(STEPS), "--checkpoint", str(saved), "--every", "3", "--resume")
    launcher = subprocess.Popen(
        [*TORCHRUN, "--standalone", "--nproc-per-node", "2", "--max-restarts", "1", *pipeplan_run(tmp_path, *options)],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not whole(saved) and launcher.poll() is None:
        time.sleep(0.05)
    for rank in children(launcher.pid)[-1:]:
        os.kill(rank, signal.SIGKILL)
    said, errors = launcher.communicate(timeout=600)
    assert launcher.returncode == 0, errors
    assert json.loads(said)["first_step"] > 0
    assert as_plain(saved)["step"] == STEPS


@pytest.mark.slow
def test_ranks_join_slurm(tmp_path: Path) -> None:
    """Tasks of a Slurm step find each other and train exactly; the first alone reports."""
    tasks = [
        subprocess.Popen(
            [sys.executable, *pipeplan_run(tmp_path, "--steps", "1", "--verify")],
            env={**ENVIRONMENT, **slurm(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    (said, errors), (silence, _) = (task.communicate(timeout=600) for task in tasks)
    assert [task.returncode for task in tasks] == [0, 0], errors
    assert json.loads(said)["gradient_error"] < 1e-10
    assert not silence


def slurm(rank: int) -> dict[str, str]:
    """Environment variables that ``srun`` sets for its tasks."""
    return {
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank),
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_NODELIST": "localhost",
        "GLOO_SOCKET_IFNAME": "lo",
    }
