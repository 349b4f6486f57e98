"""Properties of every partitioner on random chains."""

from itertools import combinations_with_replacement

from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.chains import make_chain
from pipeplan.baselines.partitioners import PARTITIONERS, NotApplicable, preferred_family
from pipeplan.baselines.partitioners.bapipe import one_forward_one_backward, stage_bytes
from pipeplan.baselines.partitioners.partitioner import stage_loads
from pipeplan.core.cluster import Overlap
from pipeplan.costs.chain import UNLIMITED, Boundaries, Chain
from pipeplan.schedules import FAMILIES

TIMES = st.integers(0, 40_000)


@st.composite
def chains(draw: st.DrawFn, most_layers: int = 10, most_stages: int = 5) -> Chain:
    """Any chain: unequal devices, unequal links, zero times, memory limits or none."""
    n, count = draw(st.integers(1, most_layers)), draw(st.integers(1, most_stages))

    def table(rows: int, columns: int, values: st.SearchStrategy[int]) -> list[list[int]]:
        row = st.lists(values, min_size=columns, max_size=columns)
        if draw(st.booleans()):
            return [draw(row)] * rows
        return draw(st.lists(row, min_size=rows, max_size=rows))

    (saved,) = table(1, n, st.integers(0, 50))
    return make_chain(
        table(count, n, TIMES),
        table(count, n, TIMES),
        count,
        send=table(count - 1, n - 1, TIMES) if count > 1 and n > 1 else 0,
        boundary=draw(st.integers(0, 20)),
        parameters=draw(st.lists(st.integers(0, 50), min_size=n, max_size=n)),
        saved=saved,
        limit=draw(st.sampled_from([UNLIMITED, 150, 400, 900])),
        overlap=draw(st.sampled_from(Overlap)),
    )


def partitions(chain: Chain) -> list[Boundaries]:
    """All boundaries, those with empty stages included."""
    inner = combinations_with_replacement(range(chain.layers + 1), chain.stages - 1)
    return [(0, *edges, chain.layers) for edges in inner]


@settings(max_examples=150, deadline=None)
@given(chains(), st.integers(1, 8))
def test_boundaries_are_well_formed(chain: Chain, micro_batches: int) -> None:
    """A balancer returns S + 1 plain integers that rise from 0 to n, or says why it does not."""
    for name, balancer in PARTITIONERS.items():
        try:
            boundaries = balancer.balance(chain, micro_batches)
        except NotApplicable as reason:
            assert str(reason), name
            continue
        assert isinstance(boundaries, tuple), name
        assert len(boundaries) == chain.stages + 1, name
        assert (boundaries[0], boundaries[-1]) == (0, chain.layers), name
        assert list(boundaries) == sorted(boundaries), name
        assert all(type(edge) is int for edge in boundaries), name


@settings(max_examples=300, deadline=None)
@given(chains(most_layers=8, most_stages=4))
def test_chain_minmax_is_the_best_of_all_partitions(chain: Chain) -> None:
    """Its largest stage load is the least over every partition, enumerated."""
    best = min(max(stage_loads(chain, boundaries)) for boundaries in partitions(chain))
    assert max(stage_loads(chain, PARTITIONERS["chain-minmax"].balance(chain, 4))) == best


@settings(max_examples=300, deadline=None)
@given(chains(most_layers=8, most_stages=4))
def test_pipedream_is_the_best_of_all_filled_partitions(chain: Chain) -> None:
    """Its largest stage or doubled send time is the least over every partition without empty stages."""

    def value(boundaries: Boundaries) -> int:
        sends = [2 * int(chain.send[link, edge - 1]) for link, edge in enumerate(boundaries[1:-1])]
        return max(stage_loads(chain, boundaries) + sends)

    filled = [edges for edges in partitions(chain) if len(set(edges)) == chain.stages + 1]
    try:
        chosen = PARTITIONERS["pipedream"].balance(chain, 4)
    except NotApplicable:
        assert not filled
        return
    assert value(chosen) == min(map(value, filled))


@settings(max_examples=150, deadline=None)
@given(chains(most_layers=16, most_stages=6), st.integers(1, 8))
def test_nothing_beats_chain_minmax(chain: Chain, micro_batches: int) -> None:
    """No balancer has a smaller largest stage load: the plain problem is solved."""
    best = max(stage_loads(chain, PARTITIONERS["chain-minmax"].balance(chain, micro_batches)))
    for name, balancer in PARTITIONERS.items():
        try:
            boundaries = balancer.balance(chain, micro_batches)
        except NotApplicable:
            continue
        assert max(stage_loads(chain, boundaries)) >= best, name


@settings(max_examples=200, deadline=None)
@given(chains(), st.integers(1, 8))
def test_bapipe_keeps_its_promises(chain: Chain, micro_batches: int) -> None:
    """Its stages fit under 1F1B, and none of its cuts takes longer to send than the target of the devices it uses."""
    from pipeplan.baselines.partitioners.bapipe import target

    try:
        boundaries = PARTITIONERS["bapipe"].balance(chain, micro_batches)
    except NotApplicable:
        return
    depth = len(set(boundaries)) - 1
    row, edges = chain.head(depth), boundaries[: depth + 1]
    assert edges[-1] == chain.layers
    need = stage_bytes(row, edges, one_forward_one_backward(depth, micro_batches))
    assert all(used <= int(limit) for used, limit in zip(need, row.limit, strict=True))
    assert all(int(row.send[link, edge - 1]) <= target(row) for link, edge in enumerate(edges[1:-1]))


@settings(max_examples=200, deadline=None)
@given(chains(), st.integers(1, 8))
def test_the_preferred_family_suits_the_devices(chain: Chain, micro_batches: int) -> None:
    """The schedule that the BaPipe-style balancer prefers is one made for devices that overlap as these do."""
    boundaries = PARTITIONERS["chain-minmax"].balance(chain, micro_batches)
    assert chain.overlap in FAMILIES[preferred_family(chain, micro_batches, boundaries)].suits
