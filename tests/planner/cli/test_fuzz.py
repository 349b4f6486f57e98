"""Random mistakes in files, command lines and calls: an answer or a helpful error, in time, and no lost file.

Forty of the inputs are tried by default, a thousand in the slow tests; each is generated from its number alone.
"""

import json
import os
import random
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.instances import equal_devices, model_of
from pipeplan import Cluster, DeviceKind, Job, Link, Robust, compare, frontier, solve
from pipeplan.analysis.sweep.experiment_file import experiment_from_data
from pipeplan.cli.main import main
from pipeplan.core.cluster import Node
from pipeplan.core.errors import PipeplanError
from pipeplan.core.model import Tie
from pipeplan.io.cluster_file import cluster_data, cluster_from_data
from pipeplan.io.job_file import job_from_data
from pipeplan.io.model_file import model_data, model_from_data
from pipeplan.io.plan_file import plan_data
from pipeplan.io.text import json_text, yaml_text

QUICK, MANY = 40, 1000
TIME = 0.5
"""Time limit of each search, in seconds."""
GRACE = 30.0
"""Seconds beyond the limit, for imports on a busy machine."""

NASTY: list[Any] = [
    -1, 0, 1, 2, 3, 1.5, 2**31, 2**53, 2**62, 2**63, 10**20, 10**30, -(10**30), 1e308, float("nan"), float("inf"), None,
    True, "", "x", "1:30", "010", "1e400GiB", "-5us", "16GiB", "10Gbit/s", "0B/s", "nan", "é\n", "d0", "l1", "unit",
    "any",
    "1f1b", [], [[]], ["l0"], {}, {"a": 1}, {"layers": []}, [1, 2], "y" * 300,
]  # fmt: skip
"""Wrong values of fields."""
NUMBERS = [-1, 0, 1, 2, 3, 7, 1000, 2**20, 2**31, 2**31 + 1, 2**53, 2**62, 2**62 + 1, 2**63, 10**20, 10**30]
"""Replacements of whole numbers."""
SIZES = [
    "0B",
    "1B",
    "40B",
    "1KiB",
    "1e9GiB",
    "16GiB",
    "1:30",
    "010",
    "-1B",
    "1e400GiB",
    "3.5us",
    "1e-9ns",
    "1B/s",
    "10Gbit/s",
]
"""Replacements of quantities."""
WORDS = [
    "",
    "x",
    "0",
    "-1",
    "1,,2",
    "nan",
    "inf",
    "1e400",
    str(10**20),
    "9" * 5000,
    "010",
    "1:30",
    "é",
    "\udcff",
    "a\nb",
    "=",
]
"""Wrong arguments of options."""
COUNTS = ["1", "2", "3", "4", "1,2", "4,8", "8", "16", "100", "2,2"]
OPTIONS = {
    "--devices": ["1", "2", "5", "65536", "65537"],
    "--bandwidth": ["1GB/s", "1B/s", "10Gbit/s", "1e9GB/s"],
    "--latency": ["5us", "0s", "1s", "1e9s"],
    "--batch": ["1", "3", "8", "64", "1000", "2147483648", "2147483649"],
    "--micro-batches": COUNTS,
    "--depths": COUNTS,
    "--zero": ["1", "0,1", "3", "2,3", "4", "-1", "x"],
    "--replicas": COUNTS,
    "--schedules": ["1f1b", "gpipe,1f1b", "any", "fbp-as", "1f1b-so,1f1b-so", "zb-h1", "interleaved"],
    "--optimizer": ["adam", "momentum", "lion"],
    "--memory": ["40B", "4000B", "1GiB", "0"],
    "--reserve": ["5%", "0.1", "40B", "1GiB", "100%", "-1", "x"],
    "--recompute": ["none", "full", "choose"],
    "--order": ["given", "search"],
    "--pin": ["l0=d0", "l0=d1", "l3=unit", "l1=d9", "l9=d0", "l1=", "=d0"],
    "--together": ["l0,l1", "l0,l3", "l0,l9", "l2"],
    "--no-cut-after": ["l0", "l0,l1,l2", "l3", "l9"],
    "--objective": ["bottleneck", "step"],
    "--gap": ["0.1", "1", "2", "-0.1"],
    "--backend": ["exact", "cbc", "cpsat"],
    "--workers": ["1", "3", "100000"],
    "--seed": ["1", "-1", str(2**31)],
    "--rule": ["published", "own"],
    "--processors": ["0", "1", "-1"],
    "--robust": ["5%", "0.05", "-5%", "500%"],
    "--quantile": ["0.95", "1.5", "0.9999999"],
    "--slow-devices": ["3%", "0"],
    "--samples": ["100", "300", "1", "1000000000"],
}
SOME = {
    "solve": ["--rule", "--processors", "--robust", "--quantile", "--slow-devices", "--samples"],
    "frontier": ["--points", "--over"],
    "explain": ["--each"],
}
"""Options of single commands."""
OPTIONS |= {"--points": ["1", "2", "0", "-3"], "--over": ["memory", "devices", "price"], "--each": ["0.3", "0"]}
FLAGS = ["--equal-replicas", "--intra-layer", "--merge-misbooked", "--corrected", "--extrapolate", "--json"]
NOISE = ["{", "[" * 2000, "]", "- " * 300, ":", "&a ", "*a", "!!int x", "\t", "\0", '"', "%", "é", "1:30", "? "]
"""Fragments to insert into a text."""


def small() -> Any:
    """Model of four layers, of which the first and the last share weights."""
    model = model_of([5, 7, 3, 6], saved=[4] * 4, output=[2] * 4, parameters=[8] * 4, sizes=(1, 2, 4), name="small")
    return type(model)(model.name, model.layers, model.profiles, ties=(Tie(("l0", "l3"), 4),))


def boxes() -> Cluster:
    """Cluster of two nodes of two devices with little memory."""
    kind = DeviceKind("unit", memory=4000, price=1.5)
    return Cluster("boxes", {"unit": kind}, (Node(("unit", "unit"), Link(10**9, 2)),) * 2, Link(10**8, 5))


EXPERIMENT = {
    "name": "fuzz",
    "search": {"time": TIME, "gap": 0.5, "workers": 1},
    "grids": [{"models": ["model.yaml"], "clusters": ["cluster.yaml"], "jobs": [{"batch": 4}]}],
}
JOB = {
    "batch": 8, "micro_batches": [2, 4], "optimizer": "adam", "memory": "4000B", "reserve": "5%", "depths": [1, 2],
    "replicas": [1, 2],
    "together": [["l0", "l1"]], "no_cut_after": ["l2"], "pin": {"l3": "unit"}, "schedules": ["1f1b"], "zero": [1],
}  # fmt: skip
FPGAS = {
    "maxFPGAs": 2, "maxSizePerFPGA": 1000, "maxCPUs": 1,
    "nodes": [
        {"id": i, "name": f"n{i}", "fpgaLatency": 0.5, "cpuLatency": 1, "isBackwardNode": 0, "size": 10}
        for i in range(3)
    ],
    "edges": [{"sourceId": i, "destId": i + 1, "cost": 0.1, "size": 20} for i in range(2)],
}  # fmt: skip
PIPER = {
    "maxDevices": 2, "maxMemoryPerDevice": 1000, "bandwidth": 10**6, "mbsInBatch": 4,
    "nodes": [
        {"id": i, "name": f"n{i}", "TMPCs": {"1": [{"id": "vanilla", "timePerSample": 0.001, "parameterSize": 4,
         "memoryUsageA": 8, "memoryUsageB": 8, "syncTimeFw": {}, "syncTimeBw": {}}]}} for i in range(3)
    ],
    "edges": [{"sourceId": i, "destId": i + 1, "communicationCost": 16} for i in range(2)],
}  # fmt: skip
PIPEDREAM = "".join(
    f"node{i} -- Linear({i}) -- forward_compute_time=1.5, backward_compute_time=2.5, activation_size=16.0, "
    "parameter_size=32.0\n"
    for i in range(3)
) + "".join(f"\tnode{i} -- node{i + 1}\n" for i in range(2))


def damaged(data: Any, draw: random.Random) -> Any:
    """Nested data with up to three of its values replaced, dropped, doubled or renamed."""
    data = json.loads(json.dumps(data))
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        here = data
        while True:
            keys = list(here) if isinstance(here, dict) else list(range(len(here)))
            if not keys:
                break
            key = draw.choice(keys)
            if isinstance(here[key], dict | list) and here[key] and draw.random() < 0.8:
                here = here[key]
                continue
            _damage(here, key, draw)
            break
    return data


def _damage(here: Any, key: Any, draw: random.Random) -> None:
    value, way = here[key], draw.random()
    if way < 0.15:
        here[key] = draw.choice(NASTY)
    elif isinstance(value, bool):
        here[key] = not value
    elif isinstance(value, int) and way < 0.9:
        here[key] = draw.choice([*NUMBERS, value + 1, value - 1, 2 * value])
    elif isinstance(value, float):
        here[key] = draw.choice([value / 2, -value, 1e18, 1e-300])
    elif isinstance(value, str) and way < 0.9:
        here[key] = draw.choice(SIZES) if value[:1].isdigit() else draw.choice(["l0", "l1", "unit", "d0", value + "x"])
    elif way < 0.5:
        del here[key]
    elif isinstance(here, list):
        here.append(draw.choice([value, draw.choice(NASTY)]))
    else:
        here[str(key) + draw.choice(["", "s", " "])] = value
        here[draw.choice(["colour", "1", "batch"])] = draw.choice(NASTY)


def garbled(text: str, draw: random.Random) -> str:
    """A text with a few characters dropped, doubled, exchanged or put in, or cut short."""
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(text) + 1)
        way = draw.randrange(5)
        if way == 0:
            text = (
                text[:at]
                + draw.choice(
                    [
                        "{",
                        "[" * 2000,
                        "]",
                        "- " * 300,
                        ":",
                        "&a ",
                        "*a",
                        "!!int x",
                        "\t",
                        "\0",
                        '"',
                        "%",
                        "é",
                        "1:30",
                        "? ",
                    ]
                )
                + text[at:]
            )
        elif way == 1:
            text = text[:at] + text[at + draw.randint(1, 9) :]
        elif way == 2:
            text = text[: max(at, 1)]
        elif way == 3:
            text = text[:at] + text[at : at + 20] + text[at:]
        else:
            text = text.replace(draw.choice("0123456789"), draw.choice(["9" * 40, "-", "1e99", "0"]), 1)
    return text


class Scene:
    """A folder of files, some of them damaged, with a check of their kinds afterwards."""

    def __init__(self, folder: Path, plan: Any, draw: random.Random) -> None:
        self.folder, self.draw = folder, draw
        texts = {
            "model.yaml": yaml_text(model_data(small())),
            "cluster.yaml": yaml_text(cluster_data(boxes())),
            "plan.json": json_text(plan),
            "experiment.yaml": yaml_text(EXPERIMENT),
            "fpgas.json": json.dumps(FPGAS),
            "piper.json": json.dumps(PIPER),
            "graph.txt": PIPEDREAM,
        }
        for name, text in texts.items():
            (folder / name).write_text(text)
        (folder / "there").mkdir(exist_ok=True)
        self.nodes = [folder / "fifo", folder / "null"]
        if not self.nodes[0].exists():
            os.mkfifo(self.nodes[0])
        try:
            if not self.nodes[1].exists():
                os.mknod(self.nodes[1], stat.S_IFCHR | 0o666, os.makedev(1, 3))
            self.nodes[1].write_bytes(b"")
        except PermissionError:
            self.nodes = self.nodes[:1]
        self.kinds = [node.stat().st_mode for node in self.nodes]

    def spoil(self, name: str) -> str:
        """Damage a file's data or garble its text, and return its path."""
        path = self.folder / name
        text = path.read_text()
        if name != "graph.txt" and self.draw.random() < 0.7:
            from pipeplan.io.text import parse_data

            text = json.dumps(damaged(parse_data(text, name), self.draw))
        else:
            text = garbled(text, self.draw)
        path.write_text(text, errors="surrogatepass")
        return str(path)

    def output(self) -> str:
        """A path to write to, good or bad."""
        names = ["new", "new.svg", "there", "no/where", "null", "-", "", "\0", "x" * 300, "model.yaml"]
        name = self.draw.choice(names)
        return name if name in ("-", "", "\0") else str(self.folder / name)

    def check(self) -> None:
        """Assert that special files are still special files."""
        assert [node.stat().st_mode for node in self.nodes] == self.kinds


def by_file(scene: Scene) -> list[str]:
    """A command with a damaged file."""
    d, f = scene.draw, scene.folder
    good = {"model": str(f / "model.yaml"), "cluster": str(f / "cluster.yaml")}
    question = ["--batch", "4", "--time", str(TIME)]
    way = d.randrange(7)
    if way == 0:
        return [d.choice(["solve", "compare"]), scene.spoil("model.yaml"), good["cluster"], *question]
    if way == 1:
        return ["solve", good["model"], scene.spoil("cluster.yaml"), *question]
    if way == 2:
        return [d.choice(["simulate", "explain"]), scene.spoil("plan.json")]
    if way == 3:
        spoiled = scene.spoil(d.choice(["experiment.yaml", "model.yaml"]))
        experiment = str(f / "experiment.yaml") if d.random() < 0.5 else spoiled
        return ["sweep", experiment, "-o", str(f / "out"), "--time", str(TIME)]
    if way == 4:
        name = d.choice(["fpgas.json", "piper.json", "graph.txt"])
        beside = d.choice([[], ["--devices", "2"], ["--rule", "published"], ["--rule", "published", "--devices", "2"]])
        return ["solve", scene.spoil(name), *beside, "--objective", "bottleneck", "--time", str(TIME)]
    if way == 5:
        return ["solve", good["model"], scene.spoil("model.yaml"), *question]
    return ["frontier", good["model"], scene.spoil("cluster.yaml"), *question, "--points", "1"]


def by_options(scene: Scene) -> list[str]:
    """A command with good files and random options."""
    d, f = scene.draw, scene.folder
    command = d.choice(["solve", "solve", "compare", "frontier", "explain"])
    where = d.choice([[str(f / "cluster.yaml")], ["--devices", "2"], []])
    model = d.choice(["model.yaml"] * 6 + ["fpgas.json", "piper.json", "graph.txt", "plan.json"])
    found = [command, str(f / model), *where]
    found += d.choice([["--batch", "8"], ["--batch", "8"], []])
    own = [name for others in SOME.values() for name in others if name not in SOME.get(command, ())]
    known = [name for name in OPTIONS if name not in own]
    for _ in range(d.randint(1, 3)):
        if d.random() < 0.8:
            option = d.choice(known)
            found.append(f"{option}={d.choice(WORDS if d.random() < 0.15 else OPTIONS[option])}")
        else:
            found.append(d.choice(FLAGS))
    outputs = {"solve": ["-o", "--plot"], "frontier": ["-o", "--csv", "--plot"]}.get(command, [])
    for option in outputs:
        if d.random() < 0.3:
            found += [option, scene.output()]
    found += ["--time", d.choice([str(TIME)] * 8 + ["0", "nan", "-1"])]
    found += ["--each", str(TIME)] if command == "explain" else []
    return found + (["--points", "1"] if command == "frontier" and "--fewest" not in found else [])


def by_call(draw: random.Random) -> Callable[[], object]:
    """A call of the API with random values."""

    def value() -> Any:
        return draw.choice(
            [*NASTY, lambda: 1, b"x", 3 + 4j, (1,), ("l0", "d0"), [("l0", "d0")], (("l0", "l1"),), float("-inf")]
        )

    fields = draw.sample([field for field in Job.__dataclass_fields__ if field != "batch"], 2)
    constraints = {field: value() for field in fields}
    limits = {name: value() for name in draw.sample(["gap", "backend", "workers", "seed", "robust"], 1)}
    model, cluster = small(), draw.choice([boxes(), equal_devices(2)])
    calls: list[Callable[[], object]] = [
        lambda: solve(model, cluster, 8, time_limit=TIME, **constraints),
        lambda: solve(model, cluster, value(), time_limit=TIME),
        lambda: solve(model, cluster, 8, time_limit=TIME, **limits),
        lambda: solve(model, cluster, 8, time_limit=draw.choice([float("nan"), -1.0, float("inf"), "1", None])),
        lambda: compare(model, cluster, Job(8, **constraints), time_limit=TIME),
        lambda: frontier(model, cluster, Job(8), "memory", points=value() or 1, time_limit=TIME),
        lambda: frontier(model, cluster, Job(8), value(), points=1, time_limit=TIME),
        lambda: Cluster.uniform(value(), DeviceKind("unit")),
        lambda: DeviceKind("unit", **{draw.choice(["memory", "speed", "runtime", "price"]): value()}),
        lambda: Link(value(), value()),
        lambda: Robust(value(), quantile=value(), samples=value()),
        lambda: job_from_data(damaged(JOB, draw), "job"),
        lambda: model_from_data(damaged(model_data(model), draw), "model"),
        lambda: cluster_from_data(damaged(cluster_data(cluster), draw), "cluster"),
        lambda: experiment_from_data(damaged(EXPERIMENT, draw), "experiment"),
        lambda: solve(model_from_data(damaged(model_data(model), draw), "m"), cluster, 4, time_limit=TIME),
        lambda: solve(model, cluster_from_data(damaged(cluster_data(cluster), draw), "c"), 4, time_limit=TIME),
        lambda: solve(model, cluster, job=job_from_data(damaged(JOB, draw), "job"), time_limit=TIME),
    ]  # fmt: skip
    return draw.choice(calls)


@pytest.fixture(scope="module")
def whole_plan() -> Any:
    """A plan of the small model, as data."""
    return plan_data(solve(small(), boxes(), 8, time_limit=5).plan)


def attempt(number: int, folder: Path, plan: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """Make the input of that number, and assert that it is answered or refused."""
    draw = random.Random(number)
    began = time.process_time()
    if number % 3 == 2:
        call = by_call(draw)
        try:
            call()
        except PipeplanError as error:
            assert str(error)
    else:
        scene = Scene(folder, plan, draw)
        arguments = by_file(scene) if number % 3 == 0 else by_options(scene)
        try:
            code = main(arguments)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        said = capfd.readouterr()
        assert code in (0, 1, 2), (arguments, code, said.err)
        assert "Traceback" not in said.err, (arguments, said.err)
        assert code == 0 or said.err, arguments
        scene.check()
    assert time.process_time() - began < 8 * TIME + GRACE


@pytest.mark.parametrize("number", range(QUICK))
def test_some_mistakes(number: int, tmp_path: Path, whole_plan: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """A damaged file, option or argument ends in exit code 0, 1 or 2, or in a `PipeplanError`."""
    attempt(number, tmp_path, whole_plan, capfd)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_mistakes(tmp_path: Path, whole_plan: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """A thousand mistakes are answered or refused; all failures are reported together."""
    failed = []
    for number in range(MANY):
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            attempt(number, folder, whole_plan, capfd)
        except Exception as error:
            failed.append(f"{number}: {type(error).__name__}: {error}"[:2000])
    assert not failed, "\n".join(failed)
