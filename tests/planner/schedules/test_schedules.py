"""Lists written by the schedule families."""

import pytest

from helpers.instances import equal_devices, model_of
from helpers.pipelines import line
from pipeplan.core.cluster import Overlap
from pipeplan.core.errors import InputError
from pipeplan.core.job import Job
from pipeplan.core.schedule import Action, Kind
from pipeplan.core.validate import validate_schedule
from pipeplan.schedules import FAMILIES, family
from pipeplan.search.space.space import Space
from pipeplan.simulate import simulate

SIZES = [(1, 1), (1, 5), (2, 1), (3, 4), (4, 2), (5, 16)]
names = pytest.mark.parametrize("name", sorted(FAMILIES))


@names
@pytest.mark.parametrize(("n", "m"), SIZES)
def test_every_family_writes_valid_lists(name: str, n: int, m: int) -> None:
    """Complete lists that end, stage s on device s, the update last, under the family's own name."""
    schedule = family(name).write((1,) * n, m)
    validate_schedule(schedule, n, m)
    assert schedule.family == name
    assert schedule.two_lanes == family(name).two_lanes
    for stage, order in enumerate(schedule.orders):
        assert {action.stage for action in order} == {stage}
        assert order[-1] == Action(Kind.UPDATE, stage)


def test_lists_as_drawn() -> None:
    """Three stages and four micro-batches give the lists of the pictures."""
    texts = {name: each.write((1, 1, 1), 4).as_text()[0] for name, each in FAMILIES.items()}
    first = {name: text.replace("0F", "F").replace("0B", "B") for name, text in texts.items()}
    assert first == {
        "gpipe": "F0 F1 F2 F3 B0 B1 B2 B3 0U",
        "1f1b-sno": "F0 F1 F2 B0 F3 B1 B2 B3 0U",
        "1f1b-so": "F0 F1 F2 F3 B0 B1 B2 B3 0U",
        "1f1b-as": "F0 F1 F2 B0 F3 B1 B2 B3 0U",
        "fbp-as": "F0 F1 F2 F3 B0 B1 B2 B3 0U",
    }
    assert FAMILIES["1f1b-so"].write((1,) * 3, 4).as_text()[1] == "1F0 1F1 1F2 1B0 1F3 1B1 1B2 1B3 1U"
    assert FAMILIES["fbp-as"].write((1,) * 3, 4).as_text()[2] == "2F0 2F1 2B0 2F2 2B1 2F3 2B2 2B3 2U"


def test_in_flight_counts() -> None:
    """GPipe holds M; 1F1B N − i + 1; doubled warm-up 2(N − i) + 1; two lanes 2(N − i + 1); none more than M."""
    counts = {name: each.in_flight((1,) * 4, 100) for name, each in FAMILIES.items()}
    assert counts == {
        "gpipe": (100, 100, 100, 100),
        "1f1b-sno": (4, 3, 2, 1),
        "1f1b-so": (7, 5, 3, 1),
        "1f1b-as": (4, 3, 2, 1),
        "fbp-as": (8, 6, 4, 2),
    }
    assert all(max(each.in_flight((1,) * 4, 3)) <= 3 for each in FAMILIES.values())


@pytest.mark.parametrize("latency", [0, 7, 50])
@names
def test_no_stage_ever_holds_more_than_its_count(name: str, latency: int) -> None:
    """Unequal stages and slow links change when things happen, not how much is held."""
    times = [(3, 9), (14, 2), (1, 30), (6, 6)]
    for overlap in Overlap:
        pipeline = line(4, 0, 0, times=times, held=1, latency=latency, occupancy=4, overlap=overlap)
        peaks = simulate(family(name).write((1,) * 4, 24), pipeline).peaks
        assert all(peak <= count for peak, count in zip(peaks, family(name).in_flight((1,) * 4, 24), strict=True))


def test_who_suits_whom() -> None:
    """Every kind of cluster has families to choose from, and a two-lane one needs tensors that stream."""
    suited = {overlap: {name for name, each in FAMILIES.items() if overlap in each.suits} for overlap in Overlap}
    assert suited == {
        Overlap.NONE: {"gpipe", "1f1b-sno"},
        Overlap.COPY: {"gpipe", "1f1b-sno", "1f1b-so"},
        Overlap.STREAM: {"gpipe", "1f1b-as", "fbp-as"},
    }


def test_an_unknown_family_lists_the_known_ones() -> None:
    """The error says which names there are and what each is."""
    with pytest.raises(InputError, match=r"'1f1b' is not known.*1f1b-sno \(one forward, one backward"):
        family("1f1b")


@names
@pytest.mark.parametrize(("replicas", "m"), [((), 1), ((1,), 0), ((1, 1, 1), -4), ((2, 0), 4)])
def test_nothing_to_schedule_is_refused(name: str, replicas: tuple[int, ...], m: int) -> None:
    """A pipeline without stages, a stage without replicas or a step without micro-batches is an input error."""
    with pytest.raises(InputError, match="at least one stage, one replica of each and one micro-batch"):
        family(name).write(replicas, m)


def test_two_lanes_need_devices_that_send_while_they_compute() -> None:
    """A two-lane family asked for on devices that wait while they send is an input error, not a wrong bound."""
    model, job = model_of([2, 3]), Job(batch=2, schedules=("fbp-as",))
    with pytest.raises(InputError, match="two lanes at once"):
        Space(model, equal_devices(2, overlap="none"), job)
    assert Space(model, equal_devices(2, overlap="stream"), job).families
