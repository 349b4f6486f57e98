"""Doors of a run on one machine: what it listens on, and what it leaves behind when its launcher ends."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from helpers.distributed.listening import descendants, listening
from helpers.quick import rarely
from pipeplan_executor import launch

WORLD = 3
LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
ALONE = """
import signal, sys
from pathlib import Path
from helpers.distributed.doors import stand
from pipeplan_executor import launch
if __name__ == "__main__":
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup has it ignored
    launch(stand, 2, sys.argv[1], timeout=120.0)
"""


def test_the_helper_sees_open_sockets() -> None:
    """A socket on all interfaces is found by its address."""
    with closing(socket.create_server(("0.0.0.0", 0))), closing(socket.create_server(("127.0.0.1", 0))):
        assert {"0.0.0.0", "127.0.0.1"} <= listening(os.getpid())[os.getpid()]


def test_a_local_run_listens_on_the_loopback_interface_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While ranks exchange tensors in several groups, no process of the tree listens for other machines."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")  # set for runs on several machines
    from helpers.distributed.doors import stand

    found: dict[int, set[str]] = {}

    def look() -> None:
        while len(list(tmp_path.glob("ready*"))) < WORLD:
            time.sleep(0.1)
        found.update(listening(os.getpid()))
        (tmp_path / "go").touch()

    before = listening(os.getpid())[os.getpid()]
    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    assert launch(stand, WORLD, str(tmp_path), timeout=120.0) == WORLD
    watcher.join()
    found[os.getpid()] -= before
    assert len(found) > WORLD
    assert set().union(*found.values()) <= LOOPBACK


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, *map(rarely, (signal.SIGINT, signal.SIGHUP))])
def test_a_run_whose_launcher_ends_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    """However the launcher is ended, its ranks end too, and the temporary folder is empty."""
    temporary, place = tmp_path / "tmp", tmp_path / "place"
    temporary.mkdir(), place.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", ALONE, str(place)],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as launcher:
        try:
            while len(list(place.glob("ready*"))) < 2:
                assert launcher.poll() is None
                time.sleep(0.1)
            assert list(temporary.iterdir())
            family = set(descendants(launcher.pid)) - {launcher.pid}
        finally:
            launcher.send_signal(number)
    assert launcher.returncode
    assert eventually(lambda: not any(Path(f"/proc/{one}/cmdline").exists() for one in family))
    assert eventually(lambda: not list(temporary.iterdir())), list(temporary.rglob("*"))


def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    """True if a condition holds within some seconds."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True
