"""Alpa's, Galvatron's and UniAP's programmes against every choice by their own objectives, also where none fits."""

from collections.abc import Iterator
from itertools import combinations, pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.happening import happens
from helpers.instances import equal_devices, model_of
from pipeplan.baselines.partitioners import NotApplicable
from pipeplan.baselines.planners import PLANNERS
from pipeplan.baselines.planners.alpa import Stages, Submesh, least_latency
from pipeplan.baselines.planners.galvatron import MIB, least_extra
from pipeplan.baselines.planners.uniap import least_step
from pipeplan.core.cluster import Cluster, Link
from pipeplan.core.job import Job
from pipeplan.core.model import Model
from pipeplan.costs.pricing import Prices

Choices = list[list[Submesh]]


@st.composite
def submeshes(draw: st.DrawFn) -> tuple[Choices, int, int]:
    """Latencies of all spans of up to five layers on submeshes of up to five devices; some do not fit."""
    layers, total = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    rows: Choices = []
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    for used in range(total):
        widths = [devices for devices in (1, 2, 4) if used + devices <= total]
        rows.append([Submesh(devices, _times(draw, rng, layers)) for devices in widths])
    return rows, layers, draw(st.sampled_from([1, 2, 8, 100]))


def _times(draw: st.DrawFn, rng: np.random.Generator, layers: int) -> np.ndarray:
    """Times [a, b] of spans, many of them equal or impossible."""
    most, none = draw(st.sampled_from([3, 10, 1000])), draw(st.sampled_from([0.0, 0.2, 0.6]))
    times = rng.integers(1, most, (layers + 1, layers + 1)).astype(float)
    times[(rng.random(times.shape) < none) | np.tri(layers + 1, layers + 1, 0, dtype=bool)] = np.inf
    return times


def every(choices: Choices, layers: int, used: int = 0, a: int = 0) -> Iterator[tuple[Stages, tuple[float, ...]]]:
    """All stages on all devices, with their latencies."""
    if used == len(choices):
        if a == layers:
            yield [], ()
        return
    for submesh in choices[used]:
        for b in range(a + 1, layers + 1):
            time = float(submesh.latency[a, b])
            if time < np.inf:
                for stages, times in every(choices, layers, used + submesh.devices, b):
                    yield [(a, b, submesh.devices), *stages], (time, *times)


@given(submeshes())
@settings(max_examples=300, deadline=None)
def test_alpa_finds_the_least_value(programme: tuple[Choices, int, int]) -> None:
    """Sum of latencies plus (B − 1) times the largest is the least of all stages; nothing is found below it."""
    choices, layers, many = programme
    values = {tuple(stages): sum(times) + (many - 1) * max(times) for stages, times in every(choices, layers)}
    found = least_latency(choices, layers, many)
    if not values:
        assert found is None
        return
    best = min(values.values())
    assert found is not None
    assert found[0] == best == values[tuple(found[1])]
    assert least_latency(choices, layers, many, below=best) is None
    nearly = least_latency(choices, layers, many, below=best + 1)
    assert nearly is not None
    assert nearly[0] == best


@pytest.mark.happens(0.3)
@given(st.data())
@settings(max_examples=300, deadline=None)
def test_uniap_finds_the_least_value(data: st.DataObject) -> None:
    """Sum of stages and boundaries plus (c − 1) times the largest of both is the least of all boundaries."""
    layers, stages = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    times = _times(data.draw, rng, layers)
    sends = rng.integers(0, data.draw(st.sampled_from([1, 4, 2000])), (stages - 1, layers - 1)).astype(float)
    rounds = data.draw(st.sampled_from([1, 2, 8, 100]))
    values = {}
    for cuts in combinations(range(1, layers), stages - 1):
        bounds = (0, *cuts, layers)
        each = [times[a, b] for a, b in pairwise(bounds)] + [sends[s, cut - 1] for s, cut in enumerate(cuts)]
        values[bounds] = sum(each) + (rounds - 1) * max(each) if max(each) < np.inf else np.inf
    best = min(values.values(), default=np.inf)
    found = least_step(times, sends, rounds)
    if not happens(bool(np.isfinite(best))):
        assert found is None
    else:
        assert found is not None
        assert found[0] == best == values[found[1]]
        assert least_step(times, sends, rounds, below=best) is None


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 6), st.integers(0, 6)), max_size=8), st.integers(-3, 40))
@settings(max_examples=300, deadline=None)
def test_galvatron_repeats_what_takes_least(layers: list[tuple[int, int, int]], room: int) -> None:
    """Of all sets of repeated layers that fit, the one that takes least; None if none fits."""
    rows = np.array(layers, np.int64).reshape(-1, 3)
    times, keeps, repeats = rows[:, 0], rows[:, 1:].max(axis=1), rows[:, 1:].min(axis=1)
    every_set = product((False, True), repeat=len(layers))
    fitting = [
        int(times[np.array(chosen, bool)].sum())
        for chosen in every_set
        if np.where(np.array(chosen, bool), repeats, keeps).sum() <= room
    ]
    assert least_extra(times, keeps, repeats, room) == min(fitting, default=None)


@st.composite
def questions(draw: st.DrawFn) -> tuple[Model, Cluster, Job, int]:
    """Up to five layers on up to four devices, whose memory may suffice for all, some or no plans."""
    layers = draw(st.integers(2, 5))
    less = draw(st.sampled_from([0, 1, MIB // 2]))  # than whole MiB

    def mib(most: int) -> int:
        return max(draw(st.integers(0, most)) * MIB - less, 0)

    saved = [mib(6) for _ in range(layers)]
    model = model_of(
        [draw(st.integers(1, 5)) * 10_000 for _ in range(layers)],
        saved=saved,
        output=[min(each, mib(2)) for each in saved],
        parameters=[mib(2) for _ in range(layers)],
    )
    memory = draw(st.sampled_from([None, *range(8, 100, 9)]))
    cluster = equal_devices(
        draw(st.sampled_from([1, 2, 4])),
        memory=None if memory is None else memory * MIB,
        link=Link(draw(st.sampled_from([10**12, 10**11, 10**10])), 1000),
    )
    job = Job(draw(st.sampled_from([4, 6, 8])), recompute=draw(st.sampled_from(["choose", "none"])), extrapolate=True)
    return model, cluster, job, draw(st.sampled_from([1, 2]))


def stage_values(question: tuple[Model, Cluster, Job, int], name: str) -> Iterator[float]:
    """The objective of every plan that a peer may choose, by every boundary and every set of recomputed layers."""
    model, cluster, job, size = question
    layers, count, devices = len(model.layers), job.batch // size, cluster.devices
    for stages in range(1, layers + 1):
        width = len(devices) // stages
        if width * stages != len(devices) or width > count:
            continue
        rounds = -(-count // width)
        held = 1 if stages == 1 else rounds
        groups = tuple(devices[place : place + width] for place in range(0, len(devices), width))
        chain = Prices(model, cluster, job).chain(groups, size)
        for cuts in combinations(range(1, layers), stages - 1):
            bounds = (0, *cuts, layers)
            sizes = [b - a for a, b in pairwise(bounds)]
            if name == "galvatron" and not (
                sizes[:-1] == [layers // stages] * (stages - 1)
                or bounds == _by_bytes(chain.resident[0] + held * chain.saved[0], stages)
            ):
                continue
            each = []
            for s, (a, b) in enumerate(pairwise(bounds)):
                received = int(chain.boundary[s - 1, a - 1]) if s else 0
                own = slice(a, b)
                once = int((chain.reduce + chain.gather + chain.lost)[0, own].sum())
                once += int(chain.reduce_base[0] + chain.gather_base[0]) * (once > 0)
                work = int((chain.forward + chain.backward)[0, own].sum()) + once / rounds
                extras = []
                for chosen in product((False, True), repeat=b - a):
                    again = np.array(chosen)
                    if again.any() and job.recompute == "none":
                        continue
                    saved, output, space = (x[0, own] for x in (chain.saved, chain.output, chain.workspace))
                    kept = np.where(again, np.minimum(saved, output), saved)
                    room = int(chain.limit[0] - chain.runtime[0]) - int(chain.resident[0, own].sum()) - held * received
                    if name == "galvatron":
                        everything = np.where(chain.recomputable[own], saved + space, space)
                        room = (room - int((everything if again.any() else space).max())) // MIB
                        fits = sum(-(-held * int(x) // MIB) for x in kept) <= room
                    else:
                        fits = held * int(kept.sum()) + int(np.where(again, saved + space, space).max()) <= room
                    if fits:
                        extras.append(int(chain.forward[0, own][again].sum()))
                each.append(work + min(extras, default=np.inf))
            if name == "uniap":
                each += [2.0 * (chain.send[s, cut - 1] + chain.latency[s]) for s, cut in enumerate(cuts)]
            if max(each) < np.inf:
                yield sum(each) + (rounds - 1) * max(each)


def _by_bytes(kept: np.ndarray, stages: int) -> tuple[int, ...]:
    """The division with the least largest bytes; of several the one of the earliest cuts, from the last one on."""
    layers = len(kept)
    rows = [(0, *cuts, layers) for cuts in combinations(range(1, layers), stages - 1)]
    most = {bounds: max(kept[a:b].sum() for a, b in pairwise(bounds)) for bounds in rows}
    return min((bounds for bounds in rows if most[bounds] == min(most.values())), key=lambda bounds: bounds[::-1])


@given(questions(), st.sampled_from(["galvatron", "uniap"]))
@settings(max_examples=300, deadline=None)
def test_peers_find_the_least_value(question: tuple[Model, Cluster, Job, int], name: str) -> None:
    """The value of a peer's arrangement is the least over all that it may choose; without any it does not apply."""
    best = min(stage_values(question, name), default=np.inf)
    try:
        (found,) = PLANNERS[name].arrange(*question)
    except NotApplicable:
        assert np.isinf(best)
        return
    assert found.value is not None
    np.testing.assert_allclose(found.value, best, rtol=1e-12)
