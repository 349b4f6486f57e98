"""Random pipeline scheduling problems, small enough for an oracle, and a plain evaluation of them."""

from dataclasses import replace
from itertools import permutations, product
from random import Random

from pipeplan_formulations.schedule import PipelineSchedule, evaluate


def random_schedule(seed: int, most_devices: int = 3, most_micro_batches: int = 4) -> PipelineSchedule:
    """Unequal times, lags, endings and sizes; backwards split or joined; some devices host two stages, some none.

    About one in six has too little memory for any schedule; about a third have no limit that binds.
    """
    draw = Random(seed)
    devices = draw.randint(1, most_devices)
    stages = max(1, draw.choice((devices, devices, devices, devices - 1, devices + 1)))
    stages = min(stages, most_devices + (most_micro_batches <= 3))
    device = list(range(devices))[:stages] + [draw.randrange(devices) for _ in range(stages - devices)]
    if draw.random() < 0.3:
        draw.shuffle(device)
    m = draw.randint(1, most_micro_batches if stages <= 3 else 2)
    most = draw.choice((1, 3, 20))
    split = [draw.random() < draw.choice((0.0, 0.5, 1.0)) for _ in device]

    def numbers(count: int, least: int, highest: int) -> tuple[int, ...]:
        return tuple(draw.randint(least, highest) for _ in range(count))

    least = 0 if draw.random() < 0.1 else 1
    freed = numbers(stages, 0, 3)
    by_weight = tuple(draw.randint(0, 2) if is_split else 0 for is_split in split)
    base = numbers(devices, 0, 5)
    need = [sum(freed[s] + by_weight[s] for s in range(stages) if device[s] == d) for d in range(devices)]
    slack = draw.choice((0, 2, 4, 100))
    limit = [b + n + draw.randint(0, slack) for b, n in zip(base, need, strict=True)]
    if draw.random() < 0.15:
        limit[device[0]] = base[device[0]] + need[device[0]] - 1
    return PipelineSchedule(
        device=tuple(device),
        micro_batches=m,
        forward=numbers(stages, least, most),
        backward=numbers(stages, least, most),
        weight=tuple(draw.randint(least, most) if is_split else 0 for is_split in split),
        split=tuple(split),
        lag=numbers(stages - 1, 0, draw.choice((0, 3))),
        lag_back=numbers(stages - 1, 0, draw.choice((0, 3))),
        ending=numbers(stages, 0, draw.choice((0, 4))),
        taken=tuple(a + b for a, b in zip(freed, by_weight, strict=True)),
        freed=freed,
        freed_by_weight=by_weight,
        base=base,
        limit=tuple(limit),
    )


def random_ways(seed: int, most_devices: int = 3, most_micro_batches: int = 4) -> PipelineSchedule:
    """Problems of `random_schedule`; three quarters have two lanes on some devices, tensors on link resources, or both.

    Resources are few, so that most are shared: between boundaries and between both directions. Some tensors occupy two
    at once. Devices copy, stream, or wait while they send.
    """
    problem, draw = random_schedule(seed, most_devices, most_micro_batches), Random(f"ways {seed}")
    if draw.random() < 0.25:
        return problem
    overlap = draw.choice(("copy", "stream", "none"))
    if overlap != "none" and draw.random() < 0.6:
        some = draw.choice((0.5, 1.0))
        problem = replace(problem, two_lanes=tuple(draw.random() < some for _ in problem.base))
    names = range(draw.choice((1, 1, 2, 3)))
    most, none = draw.choice((1, 3, 8)), draw.choice((0.0, 0.3))
    if draw.random() < 0.8:
        for way, senders in (("", problem.forward[:-1]), ("_back", problem.backward[1:])):
            times, resources = [], []
            for sender in senders:
                highest = min(most, sender) if overlap == "none" else most
                times.append(draw.randint(1, highest) if highest and draw.random() >= none else 0)
                both = len(names) > 1 and draw.random() < 0.3
                resources.append(tuple(draw.sample(names, 1 + both)) if times[-1] else ())
            problem = replace(problem, **{f"occupancy{way}": tuple(times), f"resources{way}": tuple(resources)})
    return replace(problem, overlap=overlap)


def every_order(problem: PipelineSchedule) -> int | None:
    """The least value over all permutations of all lists, transfers included; None if none is feasible.

    Tiny problems only.
    """
    lists = [list(permutations(problem.operations(d))) for d in range(problem.devices)]
    if problem.sent:
        lists.append(list(permutations(problem.transfers())))
    values = (evaluate(problem, orders) for orders in product(*lists))
    return min((value for value in values if value is not None), default=None)


def in_no_less(problem: PipelineSchedule) -> int:
    """A time that no orders beat, on single lanes: the way to a stage, its work and its ending, or the way back."""
    stages, m = range(problem.stages), problem.micro_batches
    found = 0
    for s in stages:
        way = sum(problem.forward[:s]) + sum(problem.lag[:s])
        both = way + m * (problem.forward[s] + problem.backward[s])
        back = sum(problem.backward[:s]) + sum(problem.lag_back[:s]) + problem.weight[0] + problem.ending[0]
        found = max(found, both + m * problem.weight[s] + problem.ending[s], both + back if s else 0)
    return found
