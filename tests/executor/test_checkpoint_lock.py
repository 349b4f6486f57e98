"""Lock of a folder of checkpoints."""

import subprocess
import sys
from pathlib import Path

import pytest

from pipeplan.core.errors import InputError
from pipeplan_executor.checkpoint.lock import check_free, hold, release_all
from pipeplan_executor.train.saving import Saving

HOLDER = """
import sys
from pathlib import Path
from pipeplan_executor.checkpoint.lock import hold
hold(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_run_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    """While another process saves into a folder it is refused, by that process's number; once that is killed, not."""
    folder = tmp_path / "runs"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        for refused in (lambda: hold(folder), lambda: check_free(folder), lambda: Saving(str(folder)).check()):
            with pytest.raises(InputError, match=rf"another run \(process {other.pid} on .*\) saves its checkpoints"):
                refused()
        hold(tmp_path / "elsewhere")
        other.kill()
    check_free(folder)
    hold(folder)
    hold(folder)
    check_free(folder)
    release_all()
