"""Workloads whose modules are built without values."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import pipeplan
from pipeplan.frontend.blank import blank_workload, built_for_real
from pipeplan.frontend.profile import profile_workload
from pipeplan.frontend.workload import Workload

PEAK = """
import sys
from pathlib import Path
from pipeplan.cli.main import main
assert main(["profile", *sys.argv[1:], "--device", "meta", "--batch", "1", "-o", "-"]) == 0
lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(int(lines["VmHWM"].split()[0]) // 1024, file=sys.stderr)  # ru_maxrss is inherited from a large parent
"""


def wide() -> Workload:
    """Two layers of 64 GiB each."""
    return _workload(nn.Sequential(nn.Linear(2**17, 2**17), nn.Linear(2**17, 2**17)))


def reading() -> Workload:
    """A constructor that reads a value."""
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    module.scale = float(module[0].weight.detach().sum())
    return _workload(module)


def stored() -> Workload:
    """Batches that are rows of a table, which the function makes."""
    table = torch.randn(8, 4)
    return Workload(
        nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)),
        lambda samples, generator: (table[:samples], table[:samples]),
        nn.functional.mse_loss,
    )


def _workload(module: nn.Module) -> Workload:
    width = module[0].in_features
    return Workload(
        module,
        lambda samples, generator: (torch.zeros(samples, width), torch.zeros(samples, width)),
        nn.functional.mse_loss,
    )


def test_a_profile_without_values_allocates_no_weights() -> None:
    """The peak of the process does not grow with weights of 128 GiB."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", PEAK, f"{__name__.rpartition('.')[2]}:wide"],
        cwd=Path(__file__).parent,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stderr.split()[-1]) < 600


@pytest.mark.parametrize(("build", "reason"), [(reading, "meta tensor"), (stored, "function draw has a tensor")])
def test_what_needs_values_is_built_for_real_and_said(build, reason: str) -> None:
    """A constructor that reads values, or a batch that the function makes, leads to a build for real, with a note."""
    told: list[str] = []
    workload = blank_workload(build, partial(built_for_real, build), told.append)
    assert len(told) == 1
    assert told[0].startswith("the model is built for real")
    assert reason in told[0]
    assert all(parameter.is_meta for parameter in workload.module.parameters())
    model = profile_workload(build, micro_batches=(2,), device="meta", on_refusal=told.append)
    assert [layer.parameters for layer in model.layers] == [80, 80]


def test_an_error_of_the_function_itself_is_told_once() -> None:
    """What fails on the meta device and for real too fails with its own error."""
    with pytest.raises(ZeroDivisionError):
        profile_workload(lambda: 1 // 0, micro_batches=(1,), device="meta", on_refusal=lambda _: None)
    with pytest.raises(pipeplan.InputError, match="cannot import"):
        profile_workload("nowhere:model", micro_batches=(1,), device="meta")
