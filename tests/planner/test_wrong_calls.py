"""Wrong values of every argument of the Python API, whatever their type: each is answered, or refused in words."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import cache
from math import inf, nan
from typing import Any

import numpy as np
import pytest

import pipeplan
from helpers.instances import equal_devices, fat_head
from pipeplan import (
    Cluster,
    DeviceKind,
    Job,
    Layer,
    LayerCost,
    Link,
    Model,
    Node,
    Plan,
    Profile,
    Provenance,
    Robust,
    Schedule,
    Tie,
    Work,
    Workload,
    profile_workload,
)
from pipeplan.core.errors import InputError, PipeplanError
from pipeplan.core.figures import CONTROL
from pipeplan.core.options import BACKENDS, WORKERS, asked_limits
from pipeplan.core.schedule import Action
from pipeplan_formulations.common.report import Limits


class Unshowable:
    """A value that cannot be shown."""

    def __repr__(self) -> str:
        raise RuntimeError


def deep() -> list[Any]:
    """A list that is nested beyond what can be shown."""
    nested: list[Any] = []
    for _ in range(5000):
        nested = [nested]
    return nested


WRONG: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "negative": lambda: -1,
    "nan": lambda: nan,
    "inf": lambda: inf,
    "huge": lambda: 10**30,
    "empty text": lambda: "",
    "tuple": tuple,
    "set": set,
    "text": lambda: "x",
    "bytes": lambda: b"x",
    "escape": lambda: "\x1b[31m\x00",
    "true": lambda: True,
    "half": lambda: 1.5,
    "object": object,
    "function": lambda: print,
    "nested": lambda: [[1]],
    "mapping": lambda: {"a": {"b": 1}},
    "generator": lambda: (number for number in (1, 2)),
    "complex": lambda: 1j,
    "array": lambda: np.array([1, 2]),
    "one number": lambda: np.array(1),
    "numpy's nan": lambda: np.float32(nan),
    "nested deep": deep,
    "huge inside": lambda: [10**5000],
    "half a pair": lambda: "\ud800",
    "direction": lambda: "a\u202eb",
    "unshowable": Unshowable,
}
"""Makers of values of many types; a generator or set is new for every call."""
ASKING: dict[str, Any] = {"batch": 8, "depths": 1, "replicas": 1, "schedules": "gpipe", "time_limit": 0.1}
HAND: dict[str, Any] = {"batch": 8, "stages": (2, 4), "micro_batches": 8, "time_limit": 0.1}
OPTIONS = (
    *("depths", "micro_batches", "zero", "teams", "mesh_axes", "schedules", "memory", "pin", "together"),
    *("no_cut_after", "recompute", "order", "optimizer", "objective", "intra_layer", "unlike_teams"),
    *("equal_replicas", "regular", "robust", "time_limit", "gap", "workers", "seed", "backend", "on_progress"),
    *("model", "cluster", "batch", "job", "example_inputs", "devices", "proposals"),
)
BY_HAND = ("stages", "schedule", "micro_batches", "replicas", "team", "way", "chunks", "zero", "recompute", "job")


@cache
def model() -> Model:
    """A small model."""
    return fat_head()


@cache
def cluster() -> Cluster:
    """Two equal devices."""
    return equal_devices(2)


def calls(value: Callable[[], Any]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield calls with a wrong value in each place."""
    one, two = model(), cluster()
    asking, hand = {"model": one, "cluster": two, **ASKING}, {"model": one, "cluster": two, **HAND}
    yield from ((f"solve {name}", lambda name=name: pipeplan.solve(**{**asking, name: value()})) for name in OPTIONS)
    yield from ((f"judge {name}", lambda name=name: pipeplan.judge(**{**hand, name: value()})) for name in BY_HAND)
    equal = {**asking, "cluster": None, "devices": 2}
    for name in ("bandwidth", "latency"):
        yield f"solve {name}", lambda name=name: pipeplan.solve(**{**equal, name: value()})
    yield "frontier over", lambda: pipeplan.frontier(**asking, over=value())
    yield "frontier path", lambda: pipeplan.frontier(**{**asking, "over": "nothing"}, path=value())
    yield "explain each", lambda: pipeplan.explain(**{**asking, "objective": "period"}, each=value())
    yield "explain result", lambda: pipeplan.explain(one, two, result=3 if value() is None else value())
    yield "shard meshes", lambda: pipeplan.shard(one, two, 8, meshes=value())
    yield "sweep", lambda: pipeplan.sweep(value(), "out")
    yield "load_model", lambda: pipeplan.load_model(value())
    yield "load_cluster", lambda: pipeplan.load_cluster(value())
    yield "option of load_model", lambda: pipeplan.load_model("gnmt-8", corrected=value())
    yield "Plan.load", lambda: Plan.load(value())
    yield "simulate", lambda: pipeplan.simulate(value(), value())
    yield "validate_plan", lambda: pipeplan.validate_plan(value(), value(), value())
    yield "profile", lambda: pipeplan.profile(value())
    yield "profile inputs", lambda: pipeplan.profile(value(), value())
    yield "Job", lambda: Job(value())
    yield "Job's optimizer", lambda: Job(8, optimizer=value())
    yield "Plan.save", lambda: _plan().save(value())
    yield "lines of a schedule", lambda: Schedule.from_text("gpipe", value())
    yield "on_family", lambda: pipeplan.compare(one, two, 8, on_family=value() if not callable(value()) else 1)
    for name in ("micro_batches", "repeats", "warmup", "group", "seed", "on_refusal"):
        yield f"profile {name}", lambda name=name: profile_workload(_no_workload, **{"device": "meta", name: value()})
    yield "profile_workload", lambda: profile_workload(value(), device="meta")
    yield "parts of a workload", lambda: Workload(value(), value(), value())
    yield "kind of uniform devices", lambda: Cluster.uniform(2, value())
    yield "Robust", lambda: Robust(value())
    yield "quantile", lambda: Robust(0.1, quantile=value())
    yield "samples", lambda: Robust(0.1, samples=value())
    yield "Action.parse", lambda: Action.parse(value())
    yield from ((f"{name}, asked about", lambda make=make: make(value)) for name, make in PARTS.items())


def _no_workload() -> Workload:
    raise InputError("the settings were found right")


def _solved(*, layers: Any = None, profiles: Any = None, nodes: Any = None, **more: Any) -> Any:
    """Solve with a model and a cluster of which some part is wrong."""
    one, two = model(), cluster()
    own = Model(
        more.get("name", "m"),
        one.layers if layers is None else layers,
        one.profiles if profiles is None else profiles,
        ties=more.get("ties", ()),
    )
    place = Cluster(
        more.get("place", "c"),
        more.get("kinds", two.kinds),
        two.nodes if nodes is None else nodes,
        more.get("network"),
        more.get("overlap", two.overlap),
    )
    return pipeplan.solve(own, place, **{**ASKING, "optimizer": "sgd"})


@cache
def _plan() -> Plan:
    return pipeplan.solve(model(), cluster(), **ASKING).plan


def _layers(layer: Layer) -> tuple[Layer, ...]:
    return (layer, *model().layers[1:])


def _profiles(**more: Any) -> tuple[Profile, ...]:
    first = model().profiles[0]
    kept = {"device": first.device, "micro_batch": first.micro_batch, "costs": first.costs}
    return (Profile(**{**kept, "provenance": first.provenance, **more}),)


PARTS: dict[str, Callable[[Callable[[], Any]], Any]] = {
    "name": lambda v: _solved(name=v()),
    "layers": lambda v: _solved(layers=v()),
    "profiles": lambda v: _solved(profiles=v()),
    "ties": lambda v: _solved(ties=v()),
    "tie": lambda v: _solved(ties=(Tie(v(), v()),)),
    "frozen tie": lambda v: _solved(ties=(Tie(("l0", "l1"), 0, v()),)),
    "overlap": lambda v: _solved(overlap=v()),
    "frozen parts": lambda v: Model("m", model().layers, frozen_parts=v()),
    "operators": lambda v: Model("m", model().layers, operators={"a": v()}),
    "versions": lambda v: _solved(profiles=_profiles(provenance=Provenance("measured", "x", versions=v()))),
    "uncounted": lambda v: _solved(layers=_layers(Layer("a", 0, (), Work(1, 1, 1, 1, 1, uncounted=v())))),
    "layer's name": lambda v: _solved(layers=_layers(Layer(v(), 0))),
    "layer's bytes": lambda v: _solved(layers=_layers(Layer("a", v()))),
    "layer's inputs": lambda v: _solved(layers=_layers(Layer("a", 0, v()))),
    "layer's work": lambda v: _solved(layers=_layers(Layer("a", 0, (), v()))),
    "work": lambda v: _solved(layers=_layers(Layer("a", 0, (), Work(v(), v(), v(), v(), v())))),
    "layer's operators": lambda v: _solved(layers=_layers(Layer("a", 0, operators=v()))),
    "profile's device": lambda v: _solved(profiles=_profiles(device=v())),
    "profile's size": lambda v: _solved(profiles=_profiles(micro_batch=v())),
    "costs": lambda v: _solved(profiles=_profiles(costs=v())),
    "cost": lambda v: _solved(profiles=_profiles(costs=(LayerCost(v(), v(), v(), v(), v(), v()),) * 6)),
    "origin": lambda v: _solved(profiles=_profiles(provenance=v())),
    "source": lambda v: _solved(profiles=_profiles(provenance=Provenance(v(), v()))),
    "place": lambda v: _solved(place=v()),
    "kinds": lambda v: _solved(kinds=v()),
    "kind": lambda v: _solved(kinds={"gpu": DeviceKind(v())}),
    "memory": lambda v: _solved(kinds={name: DeviceKind(name, v()) for name in cluster().kinds}),
    "peak": lambda v: _solved(kinds={name: DeviceKind(name, peak=v()) for name in cluster().kinds}),
    "timed as": lambda v: _solved(kinds={name: DeviceKind(name, timed_as=v()) for name in cluster().kinds}),
    "nodes": lambda v: _solved(nodes=v()),
    "node": lambda v: _solved(nodes=(Node(v()),)),
    "node's link": lambda v: _solved(nodes=(Node(cluster().nodes[0].kinds, v()),)),
    "beside": lambda v: _solved(nodes=(Node(cluster().nodes[0].kinds, Link(unit_overlap=v())),)),
    "link": lambda v: _solved(nodes=(Node(cluster().nodes[0].kinds, Link(v(), v())),)),
    "network": lambda v: _solved(network=v(), nodes=cluster().nodes * 2),
    "schedule": lambda v: pipeplan.simulate(Schedule(v(), v()), _plan().pipeline),
    "family": lambda v: pipeplan.simulate(Schedule(v(), _plan().schedule.orders), _plan().pipeline),
    "action": lambda v: pipeplan.simulate(Schedule("gpipe", ((Action(v(), v(), v(), v()),),)), _plan().pipeline),
    "orders": lambda v: pipeplan.simulate(Schedule("gpipe", (v(),)), _plan().pipeline),
}
"""Calls with a wrong part of a model, a cluster or a schedule."""


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_values_are_refused_in_words(kind: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No call with a wrong value ends in an error of Python's: it is answered, or refused with a text."""
    monkeypatch.chdir(tmp_path)
    raw: dict[str, str] = {}
    asked = 0
    for name, call in calls(WRONG[kind]):
        asked += 1
        try:
            call()
        except PipeplanError as error:
            if not str(error) or CONTROL.search(str(error).replace("\n", " ")):
                raw[name] = f"no text, or one with control characters: {str(error)!a}"
        except Exception as error:
            raw[name] = f"{type(error).__name__}: {error}"
    assert asked > 80
    assert not raw


def test_numbers_of_numpy_count_as_pythons(tmp_path: Any) -> None:
    """A question in numpy's numbers, whose sums would wrap around or end in an error, has the answer of Python's."""

    def asked(number: Callable[[int], Any]) -> Any:
        kinds = {"gpu": DeviceKind("gpu", memory=number(10**15), runtime=number(0))}
        link = Link(number(2), number(2))
        costs = tuple(LayerCost(*map(number, (10**12, 10**12, 10**12, 10**12, 10**9, 10**9))) for _ in range(4))
        layers = tuple(Layer(f"l{n}", number(8)) for n in range(4))
        profile = Profile("gpu", number(1), costs, Provenance("measured", "x"))
        own = Cluster("c", kinds, (Node(("gpu", "gpu"), link),))
        return pipeplan.solve(Model("m", layers, (profile,)), own, batch=number(8), depths=2, seed=number(3))

    result = asked(np.int64)
    result.plan.save(tmp_path / "plan.json")
    assert result.value == asked(int).value


@pytest.mark.parametrize("place", range(4))
def test_unknown_kinds_are_named_wherever_they_stand(place: int) -> None:
    """One of four devices on two nodes is of a kind that the cluster does not have."""
    kinds = ["gpu"] * 4
    kinds[place] = "gpus"
    nodes = Node(tuple(kinds[:2])), Node(tuple(kinds[2:]))
    with pytest.raises(InputError, match=f"node {place // 2} names kind 'gpus'; known are gpu"):
        Cluster("c", {"gpu": DeviceKind("gpu")}, nodes, Link())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("workers", [1, WORKERS, 7])
@pytest.mark.parametrize("draws", [False, True])
def test_seeds_and_workers_are_refused_where_nothing_takes_them(backend: str, workers: int, draws: bool) -> None:
    """The exact method has one thread and draws nothing; sampled steps take the seed all the same."""
    for seed in (0, 3):
        ignored = backend == "exact" and (workers > WORKERS or (seed and not draws))
        asked = {"backend": backend, "workers": workers, "seed": seed, "draws": draws}
        with pytest.raises(InputError, match="would be ignored") if ignored else nullcontext():
            assert asked_limits(5, 0.1, **asked) == Limits(5, 0.1, workers, seed)
