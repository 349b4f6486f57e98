"""Published steps of large pipelines beside the time of the same plan, as `judge` prices it.

Computation is priced at half of the peaks of bfloat16, so seconds are right up to a factor of the machine and of the
program; what counts is how two runs on one machine differ.

- Llama 3.1 405B on 512 H100 (torchtitan, 2024-12): teams of 8, 8 replicas of 8 ranks, FP8, all recomputed. Numbers of
  micro-batches and of stages per rank are not published; they are that program's defaults here: as many micro-batches
  as ranks, and one stage per rank, or two with interleaved 1F1B.
- GPT-3 175B on 64 A100 (Korthikanti et al., 2022, table 5; figures from a secondary source): teams of 8, three stages
  on each of 8 ranks. All is recomputed, or only the scores of attention, which no layer keeps here.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from pipeplan.analysis.judge import judge
from pipeplan.core.cluster import Cluster, Link, Node, Overlap
from pipeplan.core.units import format_time
from pipeplan.io.device_file import catalogue
from pipeplan.io.load import load_model

PRICING = 0.01
"""Seconds of the search that `judge` makes beside the price."""


class Run(NamedTuple):
    """A published run: seconds of a step, and the plan as `judge` takes it."""

    label: str
    published: float
    plan: Mapping[str, Any]


class Pair(NamedTuple):
    """Two runs of one model on one cluster."""

    model: str
    cluster: Cluster
    batch: int
    runs: tuple[Run, Run]

    def predicted(self) -> list[float]:
        """Return the seconds of a step of both."""
        model = load_model(self.model)
        asked: dict[str, Any] = {"team": 8, "optimizer": "adam", "time_limit": PRICING}
        return [judge(model, self.cluster, self.batch, **asked, **run.plan).value / 1e9 for run in self.runs]


def pairs() -> tuple[Pair, Pair]:
    """Return the published runs."""
    h100s = _nodes(64, "h100-80gb", 450 * 10**9, 400 * 10**9, memory=95 * 2**30, bandwidth=2_400 * 10**9)
    a100s = _nodes(8, "a100-80gb", 300 * 10**9, 200 * 10**9)
    titan = {"micro_batches": 64, "replicas": 8, "zero": 1, "way": "sequence", "recompute": "full"}
    three = {"stages": (5, *[4] * 22, 5), "micro_batches": 64, "schedule": "interleaved", "chunks": 3}
    return (
        Pair("llama3-405b", h100s, 256, (
            Run("1F1B", 40.96, {**titan, "stages": (16,) * 8, "schedule": "1f1b"}),
            Run("interleaved, two stages per rank", 32.0,
                {**titan, "stages": (8,) * 16, "schedule": "interleaved", "chunks": 2}),
        )),
        Pair("gpt3-175b", a100s, 64, (
            Run("all recomputed", 18.13, {**three, "way": "plain", "recompute": "full"}),
            Run("sequences split, scores recomputed", 13.75, {**three, "way": "sequence"}),
        )),
    )  # fmt: skip


def _nodes(count: int, kind: str, link: int, network: int, **figures: Any) -> Cluster:
    """Nodes of eight devices; bytes per second of a link inside, and of a node's network."""
    node = Node((kind,) * 8, Link(link, 3_000))
    kinds = {kind: replace(catalogue()[kind], **figures)}
    return Cluster(f"{8 * count} {kind}", kinds, (node,) * count, Link(network, 5_000), Overlap.COPY)


def main() -> None:
    """Print seconds as published and predicted, and both ratios of a pair."""
    print("| model | run | published | predicted |\n|---|---|---|---|")
    for pair in pairs():
        predicted = pair.predicted()
        for run, seconds in zip(pair.runs, predicted, strict=True):
            print(f"| {pair.model} | {run.label} | {run.published:.2f} s | {format_time(round(seconds * 1e9))} |")
        first, second = (run.published for run in pair.runs)
        ratio, ours = first / second, predicted[0] / predicted[1]
        print(f"| | ratio | {ratio:.3f} | {ours:.3f} ({ours / ratio - 1:+.1%}) |", flush=True)
