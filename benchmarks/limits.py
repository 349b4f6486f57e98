"""Adherence to short time limits on large, long and unusual problems.

Each row runs in a process of its own, which is ended if it takes far too long. Imports and reading are not measured;
the time starts with the call of `solve`, `compare`, `explain` or `frontier`.
"""

import multiprocessing
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any
from unittest import mock

from pipeplan.analysis.compare import compare
from pipeplan.analysis.explain import explain, feasible, remedies
from pipeplan.analysis.frontier import frontier
from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node, Overlap
from pipeplan.core.errors import PipeplanError
from pipeplan.core.job import Job, Objective, Order
from pipeplan.core.model import Layer, LayerCost, Model, Profile, Provenance
from pipeplan.core.units import format_time
from pipeplan.io.load import load_cluster, load_model
from pipeplan.solve import solve
from pipeplan_formulations.common.solvers import cp_model

GRACE, LEAST = 0.1, 1.0
"""Allowed excess of a run: a share of the limit, and at least these seconds."""
ENDED = 60.0
"""Seconds beyond the allowed time after which a run is ended."""
GIB = 2**30


@dataclass(frozen=True)
class Question:
    """A problem and its time limit in seconds; ``make`` reads its model and cluster."""

    name: str
    limit: float
    make: "Callable[[], Ask]"

    @property
    def allowed(self) -> float:
        """Seconds that the run may take."""
        return self.limit + max(GRACE * self.limit, LEAST)


@dataclass(frozen=True)
class Run:
    """Seconds (None: the run was ended), outcome, and processor seconds of all processes."""

    seconds: float | None
    answer: str
    processor: float = 0.0


Ask = Callable[[float], Run]
"""Function that solves within a number of seconds; of several problems the longest is measured."""


def main() -> None:
    """Print the table; with words after the benchmark's name only the problems that contain one of them."""
    words = [word for word in sys.argv[2:] if word != "--"]
    print(f"{'question':62} {'limit':>6} {'measured':>9} {'processor':>9}        answer")
    for question in questions():
        if not words or any(word in question.name for word in words):
            run = measured(question)
            took = "ended" if run.seconds is None else f"{run.seconds:.2f} s"
            late = "late" if run.seconds is None or run.seconds > question.allowed else ""
            print(
                f"{question.name:62} {question.limit:5g}s {took:>9} {run.processor:7.2f} s  {late:4}  {run.answer}",
                flush=True,
            )


def measured(question: Question) -> Run:
    """Run in a process of its own."""
    cp_model()  # imports are not counted
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(question, there))
    process.start()
    there.close()
    try:
        return here.recv() if here.poll(question.allowed + ENDED) else Run(None, "")
    except EOFError:
        return Run(None, "its process died")
    finally:
        process.kill()
        process.join()


def _run(question: Question, pipe: Connection) -> None:
    ask = question.make()
    began, processor = time.monotonic(), time.process_time()
    try:
        run = ask(question.limit)
    except PipeplanError as error:
        run = Run(time.monotonic() - began, f"{type(error).__name__}: {str(error).splitlines()[0]}"[:100])
    pipe.send(replace(run, processor=time.process_time() - processor))


def questions() -> Iterator[Question]:
    """Every kind of large problem."""
    llama, xl = known("llama3-70b", "64-h100"), known("gpt2-xl", "4-v100-4-p100")
    step = Job(batch=512)
    load = replace(step, objective=Objective.BOTTLENECK)

    def solved(name: str, limit: float, what: Callable[[], tuple[Model, Cluster]], job: Job, **how: object) -> Question:
        return Question(name, limit, lambda: _solving(*what(), job, how))

    def small(job: Job) -> Job:
        return replace(job, batch=64)

    yield solved("llama3-70b on 64-h100", 5, llama, step)
    yield solved("llama3-70b on 64-h100, gpipe, which does not fit", 2, llama, replace(step, schedules=("gpipe",)))
    yield solved("llama3-70b on 64-h100, any order", 5, llama, replace(step, schedules=("any",)))
    yield solved("llama3-70b on 64-h100, devices in the order given", 2, llama, replace(step, order=Order.GIVEN))
    yield solved("llama3-70b on 64-h100, 40 stages", 2, llama, replace(step, depths=(40,)))
    yield solved("llama3-70b on 64-h100, 65 stages", 1, llama, replace(step, depths=(65,)))
    yield solved("llama3-70b on 64-h100, bottleneck", 2, llama, load)
    yield solved("llama3-70b on 64-h100, batch of 1,000,000", 2, llama, Job(batch=10**6))
    yield solved(
        "llama3-70b on 64-h100, 1,000,000 micro-batches of 1", 2, llama, Job(batch=10**6, micro_batches=(10**6,))
    )
    yield solved("llama3-70b on 64-h100, batch of 10,000,000", 1, llama, Job(batch=10**7))
    yield solved("llama3-70b on 64-h100, 5 % noise", 5, llama, step, robust="5%")
    yield solved("gpt3-175b on 64-h100, batch 1,536", 5, known("gpt3-175b", "64-h100"), Job(batch=1536))
    yield solved("gpt3-175b on 512 devices", 2, lambda: (load_model("gpt3-175b"), h100s(512)), Job(batch=1536))
    yield solved("gpt3-175b on 4,096 devices", 5, lambda: (load_model("gpt3-175b"), h100s(4096)), Job(batch=1536))
    many = lambda: (load_model("gpt3-175b"), h100s(16_384))  # noqa: E731
    yield solved("gpt3-175b on 16,384 devices, in 16,384 micro-batches", 60, many, Job(batch=16_384))
    yield solved("1,000 layers on 256 devices", 2, lambda: (chain(1000), nodes(256)), step)
    yield solved("3,000 layers on 4 devices", 2, lambda: (chain(3000), nodes(4)), Job(batch=32))
    yield solved("30,000 layers on 4 devices", 5, lambda: (chain(30_000), nodes(4)), Job(batch=32))
    tight = Job(batch=64, memory=12 * GIB)
    yield solved(
        "400 unlike layers on 8 devices of two kinds, 12 GiB", 5, lambda: (chain(400), nodes(8, two=True)), tight
    )
    two = replace(tight, depths=(2, 3), micro_batches=(32,), schedules=("1f1b",))
    yield solved("99 unlike layers on 2 or 3 devices, 12 GiB, all cuts listed", 2, lambda: (chain(99), nodes(3)), two)
    teams = Job(batch=128, teams=(1, 2, 4, 8))
    yield solved("llama3-70b on 64-h100, teams of 1, 2, 4 and 8", 20, llama, teams)
    yield solved("gnmt-8 on 2x4-v100-10gbit", 0.01, known("gnmt-8", "2x4-v100-10gbit"), Job(batch=256))
    yield solved("resnet-50 on 8-v100-nvlink", 0.1, known("resnet-50", "8-v100-nvlink"), Job(batch=512))
    anyhow = Job(batch=64, schedules=("any",))
    yield solved("bert-large on 8-v100-nvlink, any order", 2, known("bert-large", "8-v100-nvlink"), anyhow)
    yield solved("gpt2-xl on 4-v100-4-p100", 2, xl, Job(batch=64))
    yield solved("gpt2-xl on 4-v100-4-p100, cbc", 2, xl, Job(batch=64), backend="cbc")
    yield solved("gpt2-xl on 4-v100-4-p100, exact", 2, xl, Job(batch=64), backend="exact")
    yield solved("gpt2-xl on 4-v100-4-p100, batch of 10,000, 5 % noise", 2, xl, Job(batch=10_000), robust="5%")
    graph = lambda: (branches(300), nodes(8))  # noqa: E731
    yield solved("graph of 300 nodes on 8 devices", 2, graph, small(step))
    yield solved("graph of 300 nodes on 8 devices, bottleneck", 5, graph, small(load))
    yield solved("graph of 300 nodes on 8 devices, bottleneck, 4 GiB", 5, graph, replace(small(load), memory=4 * GIB))
    yield solved("graph of 300 nodes on 8 devices, bottleneck, exact", 2, graph, small(load), backend="exact")
    yield solved("graph of 300 nodes on 8 devices, bottleneck, cbc", 2, graph, small(load), backend="cbc")
    yield solved("vgg-16 divided between 2-vcu118-2-vcu129", 2, fpgas, Job(batch=64, intra_layer=True))
    yield Question("compare: llama3-70b on 64-h100", 8, lambda: _comparing(*llama(), step))
    yield Question("compare: 3,000 layers on 4 devices", 4, lambda: _comparing(chain(3000), nodes(4), Job(batch=32)))
    yield Question("explain: gpt2-xl, each change", 1, lambda: _explaining(*xl(), Job(batch=64)))
    yield Question("frontier: gpt2-xl, each point", 1, lambda: _drawing(*xl(), Job(batch=64)))
    little = Job(batch=512, memory=GIB)
    yield Question("explain: llama3-70b in 1 GiB, each way out", 1, lambda: _remedying(*llama(), little))


def _solving(model: Model, cluster: Cluster, job: Job, how: dict[str, object]) -> Ask:
    def ask(limit: float) -> Run:
        began = time.monotonic()
        result = solve(model, cluster, job=job, time_limit=limit, **how)  # type: ignore[arg-type]
        late = sum("time was over" in row.why for row in result.baselines.values())
        told = f"{format_time(result.value)}, gap {result.gap:.1%}, {result.stop}, {late} heuristics late"
        return Run(time.monotonic() - began, told)

    return ask


def _comparing(model: Model, cluster: Cluster, job: Job) -> Ask:
    def ask(limit: float) -> Run:
        began = time.monotonic()
        found = compare(model, cluster, job, time_limit=limit)
        late = sum("time was over" in row.why for row in found.rows)
        told = f"{format_time(found.best.value)}, {late} of {len(found.rows)} rows late"
        return Run(time.monotonic() - began, told)

    return ask


def _explaining(model: Model, cluster: Cluster, job: Job) -> Ask:
    result = solve(model, cluster, job=job, time_limit=1)

    def ask(limit: float) -> Run:
        began = [time.monotonic()]
        explain(model, cluster, result=result, each=limit, on_progress=lambda _: began.append(time.monotonic()))
        return _longest([*began, time.monotonic()])

    return ask


def _remedying(model: Model, cluster: Cluster, job: Job) -> Ask:
    def ask(limit: float) -> Run:
        began, fit = [time.monotonic()], feasible.fit

        def timed(*question: Any, **how: Any) -> Any:
            found = fit(*question, **how)
            began.append(time.monotonic())
            return found

        with mock.patch.object(sys.modules["pipeplan.analysis.explain.remedies"], "fit", timed):
            remedies(model, cluster, job, time_limit=limit)
        return _longest([*began, time.monotonic()])

    return ask


def _drawing(model: Model, cluster: Cluster, job: Job) -> Ask:
    def ask(limit: float) -> Run:
        began = [time.monotonic()]
        frontier(model, cluster, job, points=3, time_limit=limit, on_progress=lambda *_: began.append(time.monotonic()))
        return _longest([*began, time.monotonic()])

    return ask


def _longest(times: list[float]) -> Run:
    each = [b - a for a, b in pairwise(times)]
    return Run(max(each), f"{len(each)} questions")


def known(model: str, cluster: str) -> Callable[[], tuple[Model, Cluster]]:
    """Model and cluster by their names in datasets/."""
    return lambda: (load_model(model), load_cluster(cluster))


def h100s(devices: int) -> Cluster:
    """Cluster of nodes like those of 64-h100."""
    cluster = load_cluster("64-h100")
    return replace(cluster, name=f"{devices} h100", nodes=cluster.nodes[:1] * (devices // 8))


def nodes(devices: int, two: bool = False) -> Cluster:
    """Cluster of nodes of up to eight devices, all alike, or half of them slow."""
    kinds = {
        "fast": DeviceKind("fast", memory=40 * GIB),
        "slow": DeviceKind("slow", memory=24 * GIB, timed_as="fast", speed=0.5),
    }
    size = min(8, devices // 2 if two else devices)
    names = ["slow" if two and 2 * i >= devices else "fast" for i in range(0, devices, size)]
    link = Link(100 * 10**9, 3_000)
    network = Link(12 * 10**9, 5_000) if len(names) > 1 else None
    return Cluster(f"{devices} devices", kinds, tuple(Node((n,) * size, link) for n in names), network, Overlap.COPY)


def chain(layers: int) -> Model:
    """Chain of unlike layers."""
    return _model(f"{layers} layers", [(f"l{i - 1}",) if i else () for i in range(layers)])


def branches(count: int) -> Model:
    """Model of blocks of two to four branches, with unlike nodes."""
    rng = random.Random(0)
    inputs: list[tuple[str, ...]] = [()]
    while len(inputs) < count:
        start, ends = f"l{len(inputs) - 1}", []
        for _ in range(rng.randint(2, 4)):
            for step in range(rng.randint(1, 4)):
                inputs.append((f"l{len(inputs) - 1}",) if step else (start,))
            ends.append(f"l{len(inputs) - 1}")
        inputs.append(tuple(ends))
    return _model(f"graph of {len(inputs)} nodes", inputs)


def _model(name: str, inputs: list[tuple[str, ...]]) -> Model:
    rng = random.Random(len(inputs))
    each = [(rng.randint(200_000, 2_000_000), rng.randint(8, 40) * 2**20) for _ in inputs]
    scale = min(1.0, 1000 / len(inputs))
    layers = tuple(
        Layer(f"l{i}", int(own * scale) // 4 * 4, before, kind="layer")
        for i, (before, (_, own)) in enumerate(zip(inputs, each, strict=True))
    )
    profiles = tuple(
        Profile("fast", size, tuple(_cost(*own, size) for own in each), Provenance("analytic", "made up"))
        for size in (1, 2, 4)
    )
    return Model(name, layers, profiles, "float32")


def _cost(forward: int, bytes_: int, size: int) -> LayerCost:
    return LayerCost(
        forward=forward * size,
        backward=2 * forward * size,
        input_gradient=forward * size,
        weight_gradient=forward * size,
        saved=bytes_ * size,
        output=bytes_ // 4 * size,
        workspace=2**20 * size,
        update=200_000,
    )


def fpgas() -> tuple[Model, Cluster]:
    """Model and boards of BaPipe."""
    return load_model("vgg-16"), load_cluster("2-vcu118-2-vcu129")


if __name__ == "__main__":
    main()
