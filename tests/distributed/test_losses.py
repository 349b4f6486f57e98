"""A rank that is lost: the run ends everywhere in time, names the cause, and starts again if restarts are left."""

import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from helpers.distributed import losses
from helpers.distributed.joining import ENVIRONMENT, children
from pipeplan.core.errors import InputError
from pipeplan_executor import RunError, launch
from pipeplan_executor.processes.launcher import first_node


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("busy", r"was busy at losses.py:\d+ in misbehave"),
        pytest.param("stop", "stood still", marks=pytest.mark.slow),
        pytest.param("kill", "was killed by SIGKILL", marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_is_waited_for_in_vain_ends_the_run(how: str, said: str) -> None:
    """A rank that stops or is busy otherwise ends the run within the timeout; the error names the rank and place."""
    timeout, start = 6.0, time.monotonic()
    with pytest.raises(RunError, match=f"rank 1.*{said}"):
        launch(losses.misbehaving, 2, how, 1, timeout=timeout)
    assert time.monotonic() - start < timeout + 600  # start-up of the ranks on a busy machine included


def environment() -> dict[str, str]:
    """Environment that later processes inherit, except torch's own variables."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC")}


def test_lost_ranks_are_started_again_but_for_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each loss is reported, then all ranks restart, except for invalid input; nothing else is left behind."""
    said: list[str] = []
    (temporary := tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    ways = ("raise", "input")
    before = environment()
    with pytest.raises(RunError, match="rank 1 failed: there is no such file"):
        launch(losses.failing_at_first, 2, str(tmp_path), ways, timeout=20, restarts=9, on_restart=said.append)
    assert said == ["rank 1 failed: TimeoutError: the data timed out; restart 1 of 9"]
    assert environment() == before
    assert not list(temporary.iterdir())


def test_what_cannot_travel_is_told() -> None:
    """The function of the ranks and the result of rank 0 must be possible to send to other processes."""
    with pytest.raises(InputError, match="top level of a module"):
        launch(lambda: None, 2)
    with pytest.raises(RunError, match=r"rank 0 failed: .*local") as caught:
        launch(losses.returning_what_stays, 1)
    assert "Traceback" in "".join(caught.value.__notes__)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("stop", "rank 1 gives no sign of life"),
        ("kill", "rank 1 gives no sign of life"),
        ("busy", r"rank 1 is busy at losses.py:\d+ in misbehave"),
    ],
)
def test_ranks_that_joined_name_the_one_that_is_missing(how: str, said: str) -> None:
    """Under another launcher, the rank that waited names the lost rank and its place in the code."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    where = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, losses.__file__, how, "6"]
    ranks = [
        subprocess.Popen(command, env={**ENVIRONMENT, **where, "RANK": str(rank)}, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        _, errors = ranks[0].communicate(timeout=600)
    finally:
        ranks[1].kill()
        ranks[1].communicate()
    assert ranks[0].returncode == 1
    assert re.search(f"RunError: rank 0 lost a peer .*; {said}", errors), errors


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_no_rank_outlives_its_launcher() -> None:
    """If the launcher itself is killed, at any time, the ranks end themselves."""
    for seconds in (3, 15):
        launcher = subprocess.Popen([sys.executable, losses.__file__, "busy", "300"], env=ENVIRONMENT)
        time.sleep(seconds)
        ranks = children(launcher.pid)
        launcher.kill()
        launcher.wait()
        end = time.monotonic() + 600
        while any(Path(f"/proc/{rank}").exists() for rank in ranks):
            assert time.monotonic() < end
            time.sleep(0.2)


def test_a_wrong_world_size_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a launcher that started another number of processes, the error says both numbers."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(RunError, match=r"takes 2 processes.*started 3"):
        launch(losses.misbehaving, 2, "raise", 0)


def test_restarts_are_left_to_the_launcher_that_started_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under torchrun or Slurm, restarts are refused with the name of the option that gives them there."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="--max-restarts"):
        launch(losses.misbehaving, 2, "raise", 0, restarts=1)


def test_a_missing_device_is_refused_before_anything_starts() -> None:
    """More GPUs than the machine has, or a device that is not known, are an error with advice."""
    with pytest.raises(InputError, match=r"9999 processes on this machine need a GPU each.*--device cpu"):
        launch(losses.misbehaving, 9999, "raise", 0, device="cuda")
    with pytest.raises(InputError, match=r"'tpu'.*auto, cpu, cuda"):
        launch(losses.misbehaving, 2, "raise", 0, device="tpu")


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("gpu1", "gpu1"), ("gpu1,gpu7", "gpu1"), ("gpu[07-09,12],cpu1", "gpu07"), ("a[3,5-6]-ib,b1", "a3-ib")],
)
def test_the_first_node_of_a_slurm_job_is_found(nodes: str, first: str) -> None:
    """Rank 0 runs on the first host of the list that Slurm writes, in any of its short forms."""
    assert first_node(nodes) == first
