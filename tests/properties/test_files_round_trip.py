"""Files read back as the objects that were written, to the last nanosecond and byte."""

from itertools import pairwise
from math import lcm
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import example, given, settings
from hypothesis import strategies as st

from helpers.random_schedules import stage_by_stage
from pipeplan.core.cluster import Cluster, DeviceKind, Link, Node, Overlap
from pipeplan.core.job import Job, Objective, Order, Recompute
from pipeplan.core.model import Layer, LayerCost, Model, Profile, Provenance, Tie, Work
from pipeplan.core.pipeline import Pipeline, Stage, Transfer
from pipeplan.core.plan import MemoryParts, Plan, PlanStage
from pipeplan.core.schedule import Action, Kind, Schedule
from pipeplan.core.units import parse_bandwidth, parse_bytes, parse_rate, parse_time
from pipeplan.io import schema as edge
from pipeplan.io.cluster_file import read_cluster, write_cluster
from pipeplan.io.job_file import read_job, write_job
from pipeplan.io.model_file import read_model, write_model
from pipeplan.io.plan_file import read_plan, write_plan
from pipeplan.io.repeat import Group, fold

whole = st.one_of(st.integers(0, 2**62 - 1), st.integers(0, 2**20).map(lambda n: n * 2**20), st.integers(0, 10**6))
positive = whole.map(lambda n: n + 1)
fraction = st.floats(0.001, 1.0, allow_nan=False)
# names that YAML could take for something else are as good as any
word = st.one_of(
    st.sampled_from(
        ["no", "null", "1", "1e3", "0x10", "{i}", "block.0", "a: b", "- x", "#", "~", "2001-01-01", "é", "'"]
    ),
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8),
)
names = st.lists(word, min_size=1, max_size=5, unique=True)


@st.composite
def kinds(draw: st.DrawFn, name: str) -> DeviceKind:
    maybe = st.none() | whole
    return DeviceKind(
        name=name,
        memory=draw(maybe),
        peak=draw(st.dictionaries(word, positive, max_size=2)),
        bandwidth=draw(st.none() | positive),
        efficiency=draw(fraction),
        overhead=draw(whole),
        timed_as=draw(st.none() | word),
        speed=draw(fraction | st.just(1.0)),
        runtime=draw(whole),
        price=draw(st.none() | fraction),
        on_chip=draw(maybe),
        speed_beside_collectives=draw(st.floats(0, 1)),
        shard_overhead=draw(whole),
        source=draw(st.just("") | word),
    )


links = st.builds(Link, st.none() | positive, whole, st.just(1.0) | st.floats(0.01, 100.0))


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    known = draw(names)
    nodes = st.builds(Node, st.lists(st.sampled_from(known), min_size=1, max_size=4).map(tuple), links)
    return Cluster(
        name=draw(word),
        kinds={name: draw(kinds(name)) for name in known},
        nodes=tuple(draw(st.lists(nodes, min_size=1, max_size=3))),
        network=draw(links),
        overlap=draw(st.sampled_from(Overlap)),
        notes=tuple(draw(st.lists(word, max_size=2))),
    )


@st.composite
def models(draw: st.DrawFn) -> Model:
    blocks = [
        f"block.{i}{part}"
        for i in range(draw(st.integers(0, 5)))
        for part in draw(st.sampled_from([[""], [".a", ".b"]]))
    ]
    known = list(dict.fromkeys(draw(names) + blocks + draw(st.lists(word, max_size=2))))
    works = st.none() | st.builds(Work, whole, whole, whole, whole, whole)
    alike = draw(works)
    layers: list[Layer] = []
    for name in known:
        chained = tuple(layer.name for layer in layers[-1:])
        some = (
            st.lists(st.sampled_from([layer.name for layer in layers]), unique=True).map(tuple)
            if layers
            else st.just(())
        )
        layers.append(
            Layer(
                name=name,
                parameters=7 if name in blocks else draw(whole),
                inputs=draw(st.just(chained) | some),
                work=alike if name in blocks else draw(works),
                kind=draw(st.sampled_from(["", "Linear"])),
                frozen=draw(st.just(0) | whole),
            )
        )
    costs = st.builds(LayerCost, *[whole] * 8)
    sources = st.builds(
        Provenance,
        st.sampled_from(["measured", "imported", "analytic"]),
        word,
        st.just("") | word,
        st.dictionaries(word, word, max_size=2),
    )
    profiles = st.builds(
        Profile,
        word,
        st.integers(1, 512),
        st.lists(costs, min_size=len(layers), max_size=len(layers)).map(tuple),
        sources,
    )
    return Model(
        name=draw(word),
        layers=tuple(layers),
        profiles=tuple(draw(st.lists(profiles, max_size=2))),
        dtype=draw(st.sampled_from(["float32", "bfloat16"])),
        notes=tuple(draw(st.lists(word, max_size=2))),
        ties=draw(some_ties(layers)),
    )


@st.composite
def some_ties(draw: st.DrawFn, layers: list[Layer]) -> tuple[Tie, ...]:
    """None, or one of some layers that begins with one that has parameters."""
    first = draw(st.sampled_from(range(len(layers))))
    if first == len(layers) - 1 or not layers[first].parameters or draw(st.booleans()):
        return ()
    others = draw(st.sets(st.sampled_from(range(first + 1, len(layers))), min_size=1, max_size=3))
    names = tuple(layers[i].name for i in (first, *sorted(others)))
    return (Tie(names, draw(st.integers(1, layers[first].parameters))),)


jobs = st.builds(
    Job,
    batch=st.just(48),
    micro_batches=st.lists(st.sampled_from([1, 2, 3, 4, 6, 8, 48]), max_size=3).map(tuple),
    optimizer=st.sampled_from(["sgd", "momentum", "adam"]),
    schedules=st.lists(word, max_size=2).map(tuple),
    depths=st.lists(st.integers(1, 8), max_size=2).map(tuple),
    memory=st.none() | whole,
    reserve=whole | st.floats(0.001, 0.99),
    objective=st.sampled_from(Objective),
    extrapolate=st.booleans(),
    replicas=st.lists(st.integers(1, 8), max_size=2).map(tuple),
    equal_replicas=st.booleans(),
    recompute=st.sampled_from(Recompute),
    zero=st.sampled_from([(0,), (1,), (0, 1)]),
    order=st.sampled_from(Order),
    together=st.lists(st.lists(word, min_size=2, max_size=3).map(tuple), max_size=2).map(tuple),
    no_cut_after=st.lists(word, max_size=2).map(tuple),
    pin=st.dictionaries(word, st.sampled_from(["d3", "v100"]), max_size=2).map(lambda pins: tuple(pins.items())),
    intra_layer=st.booleans(),
) | st.just(Job(48, regular=True))


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    replicas = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    placement, ranks = stage_by_stage(replicas), sum(replicas)
    boundaries = [lcm(a, b) for a, b in pairwise(replicas)]
    listed = st.sampled_from("FBIWRU").map(Kind)
    actions = st.builds(Action, listed, st.integers(0, 9), st.integers(0, 99), st.integers(0, 3)).map(
        lambda action: action if action.kind.per_micro_batch else Action(action.kind, action.stage)
    )
    transfers = st.builds(Transfer, whole, whole, whole, st.lists(word, max_size=2).map(tuple))
    parts = st.builds(MemoryParts, *[whole] * 7)

    def plan_stage(homes: tuple[int, ...]) -> PlanStage:
        recompute = st.lists(word, max_size=1).map(tuple)
        part = st.floats(0, 1, exclude_min=True, exclude_max=True)
        shares = st.lists(st.tuples(word, part), max_size=2).map(tuple)
        return draw(
            st.builds(PlanStage, names.map(tuple), st.just(homes), whole, whole, whole, parts, recompute, shares)
        )

    def row(item: st.SearchStrategy, length: int) -> tuple:
        return tuple(draw(st.lists(item, min_size=length, max_size=length)))

    return Plan(
        model=draw(word),
        fingerprint=draw(word),
        cluster=draw(word),
        device_kinds=row(word, ranks),
        micro_batch=draw(st.integers(1, 99)),
        micro_batches=draw(st.integers(1, 99)),
        optimizer="sgd",
        stages=tuple(map(plan_stage, placement)),
        schedule=Schedule(draw(word), row(st.lists(actions, max_size=5).map(tuple), ranks), draw(st.booleans())),
        ranks=tuple(range(ranks)),
        step_time=draw(whole),
        bound=draw(whole),
        pipeline=Pipeline(
            stages=row(st.builds(Stage, *[whole] * 8, st.none() | whole, whole), len(replicas)),
            placement=placement,
            transfers=tuple(row(transfers, period) for period in boundaries),
            returns=tuple(row(transfers, period) for period in boundaries),
            overlap=draw(st.sampled_from(Overlap)),
            runtime=row(whole, ranks),
            limits=row(whole, ranks),
            tied=draw(st.sampled_from([(), ((0, len(replicas) - 1),)])),
        ),
        period=draw(st.none() | whole),
    )


def _there_and_back(value, write, read, name):
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        write(value, path)
        once = path.read_bytes()
        back = read(path)
        assert back == value
        write(back, path)
        assert path.read_bytes() == once


@settings(max_examples=80)
@given(clusters())
def test_a_cluster_comes_back(cluster: Cluster) -> None:
    """A written cluster is read as the same cluster, and written again as the same bytes."""
    _there_and_back(cluster, write_cluster, read_cluster, "cluster.yaml")


@settings(max_examples=80)
@given(models())
def test_a_model_comes_back(model: Model) -> None:
    """A written model is read as the same model, and written again as the same bytes."""
    _there_and_back(model, write_model, read_model, "model.yaml")


@settings(max_examples=60)
@given(jobs)
def test_a_job_comes_back(job: Job) -> None:
    """A written job is read as the same job, and written again as the same bytes."""
    _there_and_back(job, write_job, read_job, "job.yaml")


@settings(max_examples=60)
@given(plans())
def test_a_plan_comes_back(plan: Plan) -> None:
    """A written plan is read as the same plan, and written again as the same bytes."""
    _there_and_back(plan, write_plan, read_plan, "plan.json")


@settings(max_examples=300)
@example(4_503_599_627_370_491)
@given(whole)
def test_quantities_come_back(value: int) -> None:
    """What is written with a unit is parsed as the same integer."""
    for write, parse in [
        (edge.written_bytes, parse_bytes),
        (edge.written_time, parse_time),
        (edge.written_rate, parse_rate),
        (edge.written_flops, parse_rate),
    ]:
        text = write(value)
        assert text == value or parse(text) == value
    if value:
        text = edge.written_bandwidth(value)
        assert text == value or parse_bandwidth(text) == value


@settings(max_examples=60)
@given(models())
def test_folding_spreads_to_the_same_layers(model: Model) -> None:
    """Groups spread out to exactly the layers that were folded."""
    spread = [
        layer for entry in fold(model.layers) for layer in (entry.expand() if isinstance(entry, Group) else [entry])
    ]
    assert spread == list(model.layers)
