"""Two hosts in miniature: network namespaces joined by a throttled link, a torchrun on each."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.distributed.joining import ENVIRONMENT, TORCHRUN, children, pipeplan_run
from helpers.distributed.lasting import STEPS, lasting_plan, unhurried
from pipeplan_executor import run
from pipeplan_executor.checkpoint import as_plain
from pipeplan_executor.checkpoint.folder import whole
from pipeplan_executor.train.saving import Saving

HOSTS = {"pipeplan-a": ("vpp-a", "10.213.77.1"), "pipeplan-b": ("vpp-b", "10.213.77.2")}
"""Hosts by name, each with its end of the link and its address."""
PORT = "29544"
RATE = "100mbit"
TIMEOUT = 10


def call(line: str) -> str:
    """Run a command and return its output; raise with its error output."""
    done = subprocess.run(line.split(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{line}: {done.stderr.strip()}")
    return done.stdout


@pytest.fixture(scope="module")
def hosts() -> Iterator[None]:
    """Set up the two hosts; tests are skipped if this process may not create network namespaces."""
    if shutil.which("ip") is None or shutil.which("tc") is None:
        pytest.skip("ip and tc (iproute2) are not installed")
    (first, (one, _)), (second, (other, _)) = HOSTS.items()
    try:
        for host in HOSTS:
            call(f"ip netns add {host}")
        call(f"ip link add {one} netns {first} type veth peer name {other} netns {second}")
        for host, (end, address) in HOSTS.items():
            call(f"ip -n {host} addr add {address}/24 dev {end}")
            call(f"ip -n {host} link set lo up")
            call(f"ip -n {host} link set {end} up")
            call(f"ip netns exec {host} tc qdisc add dev {end} root tbf rate {RATE} burst 64kb latency 50ms")
        yield
    except OSError as error:
        pytest.skip(f"network namespaces are not permitted here: {error}")
    finally:
        for host in HOSTS:
            subprocess.run(["ip", "netns", "del", host], capture_output=True, check=False)


def start(folder: Path, *options: str) -> list[subprocess.Popen[str]]:
    """Start torchrun on each host, with one rank."""
    address = HOSTS["pipeplan-a"][1]
    meet = ("--nnodes", "2", "--nproc-per-node", "1", "--master-addr", address, "--master-port", PORT)
    what = pipeplan_run(folder, "--timeout", str(TIMEOUT), *options)
    return [
        subprocess.Popen(
            ["ip", "netns", "exec", host, *TORCHRUN, "--node-rank", str(number), *meet, *what],
            env={**ENVIRONMENT, "GLOO_SOCKET_IFNAME": end},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number, (host, (end, _)) in enumerate(HOSTS.items())
    ]


def carried() -> int:
    """Bytes sent over the link, from the first host to the second."""
    return int(json.loads(call("ip -n pipeplan-a -s -j link show vpp-a"))[0]["stats64"]["tx"]["bytes"])


@pytest.mark.slow
def test_a_run_over_a_network_is_exact(hosts: None, tmp_path: Path) -> None:
    """Two hosts train one model exactly, and the tensors between its stages cross the link."""
    before = carried()
    runs = start(tmp_path, "--steps", "3", "--verify")
    (said, errors), _ = (each.communicate(timeout=600) for each in runs)
    assert [each.returncode for each in runs] == [0, 0], errors
    assert json.loads(said)["gradient_error"] < 1e-10
    plan, width = lasting_plan(2), 16
    assert carried() - before > 3 * plan.batch * width * 4


@pytest.mark.slow
def test_a_lost_host_ends_the_run_which_goes_on_later(hosts: None, tmp_path: Path) -> None:
    """One host dies at once; the other ends in time with an error; both resume to the weights of an unbroken run."""
    saved, whole_run = tmp_path / "saved", tmp_path / "undisturbed"
    options = ("--steps", str(STEPS), "--checkpoint", str(saved), "--every", "3", "--resume")
    runs = start(tmp_path, *options)
    while not whole(saved) and runs[0].poll() is None:
        time.sleep(0.05)
    for process in (runs[1].pid, *children(runs[1].pid)):
        os.kill(process, signal.SIGKILL)
    lost = time.monotonic()
    _, errors = runs[0].communicate(timeout=600)
    runs[1].communicate()
    assert time.monotonic() - lost < TIMEOUT + 150  # torchrun gives ranks 30 s to end
    assert runs[0].returncode != 0
    assert "pipeplan: rank 0 lost a peer" in errors
    runs = start(tmp_path, *options)
    (said, errors), _ = (each.communicate(timeout=600) for each in runs)
    assert [each.returncode for each in runs] == [0, 0], errors
    assert 0 < json.loads(said)["first_step"] < STEPS
    run(lasting_plan(2), unhurried, steps=STEPS, warmup=0, saving=Saving(str(whole_run)))
    ours, theirs = (as_plain(folder)["model"] for folder in (saved, whole_run))
    assert all(value.equal(theirs[name]) for name, value in ours.items())
