"""The packet simulator beside closed forms, a second implementation, and what each of its options must bring about."""

import random
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.plain_packets import plain
from helpers.quick import QUICK
from helpers.scripts import benchmark
from pipeplan import load_model
from pipeplan.core.priority import Priority, Send

simulator, workloads = benchmark("packets.simulator"), benchmark("packets.workloads")
Fabric, Message, Repair = simulator.Fabric, simulator.Message, simulator.Repair
simulate = simulator.simulate
PAIR = Fabric(leaves=1, hosts=2, spines=1, rate=10**9, delay=500, packet=1000, thresholds=(10**6, 10**6))
CROWD = Fabric(leaves=3, hosts=4, spines=2, rate=10**9, delay=500, packet=1000, thresholds=(5000, 5000))
FAST, SLOW = Repair(True, 20_000), Repair(False, 10**6)


def waits(load: float, count: int, classes: int, seed: int) -> list[list[int]]:
    """Nanoseconds that single packets wait at a card which they reach at random, by class."""
    draw, now, messages = random.Random(seed), 0.0, []
    wire = PAIR.wire(PAIR.packet)
    for _ in range(count):
        now += draw.expovariate(load / wire)
        messages.append(Message(0, 1, PAIR.packet, draw.randrange(classes), round(now)))
    outcome = simulate(PAIR, messages, FAST)
    found: list[list[int]] = [[] for _ in range(classes)]
    for message, begun, done in zip(messages, outcome.begun, outcome.done, strict=True):
        found[message.priority].append(done - begun - 2 * (wire + PAIR.delay))
    return found


@pytest.mark.parametrize(
    ("load", "count", "within"),
    [(0.5, 3_000, 0.1), *(pytest.param(load, 100_000, 0.02, marks=pytest.mark.slow) for load in (0.3, 0.5, 0.8))],
)
def test_packets_wait_as_in_an_m_d_1_queue(load: float, count: int, within: float) -> None:
    """Packets of one size that reach a port at random wait ρ s / (2 (1 − ρ)) in the mean (Pollaczek and Khinchine)."""
    (waited,) = waits(load, count, 1, seed=1)
    expected = load * PAIR.wire(PAIR.packet) / (2 * (1 - load))
    assert sum(waited) / len(waited) == pytest.approx(expected, rel=within)


@pytest.mark.parametrize(("count", "within"), [(3_000, 0.1), pytest.param(100_000, 0.02, marks=pytest.mark.slow)])
def test_classes_wait_as_in_a_queue_with_priorities(count: int, within: float) -> None:
    """Of two classes with load ρ together the first waits R / (1 − ρ/2), the other 1 / (1 − ρ) times that (Cobham)."""
    load = 0.8
    first, second = waits(load, count, 2, seed=2)
    expected = load * PAIR.wire(PAIR.packet) / 2 / (1 - load / 2)
    assert sum(first) / len(first) == pytest.approx(expected, rel=within)
    assert sum(second) / len(second) == pytest.approx(expected / (1 - load), rel=2 * within)


def drawn(seed: int) -> tuple[Any, list[Any], Any]:
    """A small fabric, some messages that wait for others and tolerate losses, and a repair."""
    draw = random.Random(seed)
    classes = draw.randint(1, 3)
    fabric = Fabric(
        leaves=draw.randint(1, 3),
        hosts=draw.randint(2, 3),
        spines=draw.randint(1, 3),
        rate=draw.choice([10**9, 1_250_000_000, 777_777_777]),
        delay=draw.choice([0, 1, 500, 3000]),
        packet=draw.choice([100, 1500]),
        thresholds=tuple(draw.choice([150, 1500, 3000, 6000]) for _ in range(classes)),
        sprayed=draw.random() < 0.5,
    )
    messages = []
    for number in range(draw.randint(1, 8)):
        source, target = (
            draw.sample(range(fabric.size), 2) if draw.random() < 0.5 else (fabric.size - 1 - number % 2, 0)
        )
        if source == target:
            target = 1
        messages.append(
            Message(
                source,
                target,
                size=draw.randint(1, 12 * fabric.packet),
                priority=draw.randrange(classes),
                ready=draw.choice([0, 0, draw.randrange(20_000)]),
                after=tuple(draw.sample(range(number), min(number, draw.choice([0, 0, 1, 2])))),
                tolerated=draw.choice([0.0, 0.0, 0.1, 0.3]),
                deadline=draw.choice([None, None, draw.randrange(1, 100_000)]),
            )
        )
    fast = draw.random() < 0.5
    return fabric, messages, Repair(fast, draw.choice([1, 1000, 20_000] if fast else [1000, 10**5, 10**6]))


@pytest.mark.parametrize("seed", range(10, 22) if QUICK else range(400))
def test_a_plain_implementation_gives_the_same(seed: int) -> None:
    """Every time and every byte is that of an implementation which keeps no queue, window or count."""
    fabric, messages, repair = drawn(seed)
    outcome = asdict(simulate(fabric, messages, repair, seed))
    assert {key: value if isinstance(value, list) else [value] for key, value in outcome.items()} == plain(
        fabric, messages, repair, seed
    )


def test_bytes_are_conserved() -> None:
    """All that was sent has arrived or was dropped, and what did not arrive at last was left out."""
    for seed in range(1000, 1050 if QUICK else 3000):
        fabric, messages, repair = drawn(seed)
        outcome = simulate(fabric, messages, repair, seed)
        assert outcome.sent == outcome.arrived + sum(outcome.dropped)
        assert sum(message.size for message in messages) == outcome.arrived + outcome.left_out
        for message, used in zip(messages, outcome.used, strict=True):
            if message.deadline is None:
                spared = int(-(-message.size // fabric.packet) * message.tolerated)
                assert message.size - spared * fabric.packet <= used <= message.size
                assert used == message.size or spared


def crowd(priorities: tuple[int, ...] = (0,), **how: Any) -> list[Any]:
    """Eight hosts on two leaves send 40 packets each to one on the third, in these classes in turn."""
    return [Message(host, 8, 40_000, priorities[host % len(priorities)], **how) for host in range(8)]


def test_the_first_class_is_served_first() -> None:
    """With two classes all messages of the first end before any of the second; with one class they do not."""
    roomy = replace(CROWD, thresholds=(10**6, 10**6))
    done = simulate(roomy, crowd((0, 1)), FAST).done
    assert max(done[0::2]) < min(done[1::2])
    done = simulate(roomy, crowd((1,)), FAST).done
    assert max(done[0::2]) > min(done[1::2])


def test_a_lower_threshold_drops_its_class_only() -> None:
    """The class whose threshold is low is dropped, the other one is not; with equal thresholds both are, or neither."""

    def dropped(*thresholds: int) -> list[int]:
        return list(simulate(replace(CROWD, thresholds=thresholds), crowd((0, 1)), FAST).dropped)

    first, second = dropped(10**6, 5000)
    assert first == 0
    assert second > 0
    assert dropped(10**6, 10**6) == [0, 0]
    assert min(dropped(5000, 5000)) > 0


def test_a_buffer_holds_what_its_threshold_says() -> None:
    """Of two packets at once, one goes on the wire; the other waits only if a threshold of its bytes is there."""
    pair = [Message(0, 2, 1000), Message(1, 2, 1000)]
    for threshold, dropped in ((1000, 0), (999, 1000)):
        tight = replace(CROWD, thresholds=(threshold,))
        outcome = simulate(tight, pair, SLOW)
        assert outcome.dropped == [dropped]
        assert max(outcome.done) == (3 * 1000 + 2 * 500 if not dropped else SLOW.wait + 2 * 1000 + 2 * 500)


def test_slow_repair_waits_for_its_timer() -> None:
    """An incast that drops ends after a timeout, by fast repair well before one; without drops both are equal."""
    slow, fast = (simulate(CROWD, crowd(), repair) for repair in (SLOW, FAST))
    assert max(slow.done) > SLOW.wait > max(fast.done)
    roomy = replace(CROWD, thresholds=(10**6,))
    assert simulate(roomy, crowd(), SLOW) == simulate(roomy, crowd(), FAST)


def test_a_target_goes_on_with_its_share_or_at_its_deadline() -> None:
    """It goes on with nine packets of ten, or when the deadline is over, and its source stops."""
    outcome = simulate(CROWD, crowd(tolerated=0.1), FAST)
    assert outcome.used == [36_000] * 8
    assert outcome.left_out > 0
    assert max(outcome.done) < max(simulate(CROWD, crowd(), FAST).done)
    outcome = simulate(CROWD, crowd(deadline=100_000), FAST)
    assert outcome.done == [100_000] * 8
    assert 0 < sum(outcome.used) < 8 * 40_000


def test_sprayed_packets_share_all_paths() -> None:
    """Where hosts of one leaf send over all spines, hashed pairs meet on one, and sprayed packets do not."""
    wide = Fabric(4, 4, 4, rate=10**9, delay=500, packet=1000, thresholds=(20_000,))
    circle = [Message(host, (host + 4) % 16, 200_000) for host in range(16)]
    hashed, sprayed = (simulate(replace(wide, sprayed=how), circle, FAST, seed=1) for how in (False, True))
    assert max(hashed.done) > 1.5 * max(sprayed.done)


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_a_ring_takes_its_closed_form(ranks: int) -> None:
    """2 (r − 1) rounds of 1/r of the bytes, each as long as its packets, one more of them, and two links; no drops."""
    leaf = Fabric(1, ranks, 1, rate=10**9, delay=500, packet=1000, thresholds=(1000,))
    messages = workloads.ring(range(ranks), Message(0, 0, 60_000 * ranks), 0)
    half = ranks * (ranks - 1)
    assert [message.gradients for message in messages] == [True] * half + [False] * half
    outcome = simulate(leaf, messages, FAST)
    assert outcome.dropped == [0]
    assert max(outcome.done) == 2 * (ranks - 1) * (61_000 + 2 * 500)


@pytest.mark.parametrize("owners", [[0, 1, 2, 3], [4], [4, 5]])
def test_exchanged_sums_reach_every_worker(owners: list[int]) -> None:
    """A share leaves its owner for all other workers when those of all are there."""
    workers, first = [0, 1, 2, 3], 7
    messages = workloads.exchange(workers, owners, Message(0, 0, 80_000), first)
    idle = [Message(6, 7, 1)] * first
    outcome = simulate(CROWD, [*idle, *messages], FAST)
    for owner in owners:
        adding = [first + n for n, m in enumerate(messages) if m.gradients and m.target == owner]
        back = [first + n for n, m in enumerate(messages) if not m.gradients and m.source == owner]
        assert {messages[n - first].target for n in back} == set(workers) - {owner}
        assert {messages[n - first].source for n in adding} == set(workers) - {owner}
        assert min(outcome.begun[n] for n in back) == max(outcome.begun[n] for n in back)
        assert max(outcome.done[n] for n in adding) == outcome.begun[back[0]]
    assert all(message.size == 80_000 // len(owners) for message in messages)


def test_only_the_small_half_may_be_lost() -> None:
    """Half of each message must arrive and is in the first class, the other one is in the second."""
    halves = workloads.halves([Message(0, 1, 1000, gradients=True), Message(2, 1, 500, gradients=True)])
    assert [(half.source, half.size, half.priority, half.gradients) for half in halves] == [
        (0, 500, 0, False),
        (2, 250, 0, False),
        (0, 500, 1, True),
        (2, 250, 1, True),
    ]


def test_messages_without_bytes_or_begin_are_refused() -> None:
    """A message has bytes, and none waits for itself by way of others."""
    with pytest.raises(ValueError, match="message 1 has 0 bytes"):
        simulate(CROWD, [Message(0, 1, 5), Message(0, 1, 0)], FAST)
    with pytest.raises(ValueError, match="wait for each other"):
        simulate(CROWD, [Message(0, 1, 5, after=(1,)), Message(1, 0, 5, after=(0,))], FAST)


def test_sums_of_a_plan_have_its_bytes_and_times() -> None:
    """A unit has the bytes of its layers, begins when the plan says, and is in a class before those needed later."""
    model = load_model("resnet-50")
    names = tuple(layer.name for layer in model.layers)
    sends = (Send("head", 2, 900, 10, 500), Send("layer3.0", 1, 600, 10, 200), Send("stem", 1, 0, 10, 0))
    stage = SimpleNamespace(layers=names, backward=1000)
    plan = SimpleNamespace(stages=(stage,), priority=(Priority(1, (*sends, sends[1])),))
    head, middle, front = workloads.sums_of(plan, model, 8)
    assert [like.priority for like, _ in (front, middle, head)] == [0, 2, 5]
    assert [(like.ready, needed) for like, needed in (front, middle, head)] == [(1000, 1000), (400, 1200), (100, 1500)]
    sizes = {layer.name: layer.parameters for layer in model.layers}
    assert head[0].size == sizes["head"]
    assert middle[0].size == sum(size for name, size in sizes.items() if name.startswith(("layer3", "layer4")))
    assert sum(like.size for like, _ in (front, middle, head)) == sum(sizes.values())


@pytest.mark.slow
def test_a_plan_prices_its_ring_as_packets_take() -> None:
    """Each unit of a real plan, summed alone as a ring of packets, takes what the plan's sends say within 4 %."""
    tables = benchmark("packets.tables")
    plan, fabric = tables.data_parallel()
    (priority,) = plan.priority
    units = sorted({send.layer: send.needed for send in priority.sends}.items(), key=lambda unit: -unit[1])
    for (name, _), (like, _) in zip(units, workloads.sums_of(plan, load_model(tables.MODEL), 8), strict=True):
        alone = simulate(fabric, workloads.ring(range(tables.NODES), replace(like, ready=0), 0), FAST)
        priced = sum(send.time for send in priority.sends if send.layer == name)
        latencies = (priority.chunks[name] - 1) * 2 * (tables.NODES - 1) * 4 * fabric.delay
        assert alone.dropped == [0] * 8
        assert max(alone.done) == pytest.approx(priced - latencies, rel=0.04)
