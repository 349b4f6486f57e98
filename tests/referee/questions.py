"""Random questions as plain documents: every field of a job, every kind of cluster and model, every back end."""

from random import Random

from .blocks import by_name, in_any_order, in_blocks, in_replicas, with_loss
from .costs import ITEM, STATES
from .documents import DEFAULTS, Document
from .operators import in_teams
from .rarities import (
    heavy_weights,
    large_share,
    odd_outputs,
    operands_without_tokens,
    second_tie,
    third_kind,
    whole_weights,
)
from .rounds import cut_unlike, in_rounds
from .slices import in_slices
from .usual import without_sizes

SPEEDS = (0.5, 0.8, 1.5, 2.0)
SLOWER = (0.0, 0.25, 0.5, 0.9)
EXACT = ("gpipe", "1f1b-sno", "1f1b-so", "1f1b-as", "1f1b")
SHORT = 0.05
"""Seconds of a search that is meant to be cut off."""


TEAMS = 0.1
"""The share of questions about teams."""
BLOCKS = 0.15
"""Of these, the share of those with attention, or with tensors that several operators read, over two nodes."""
ORDERS = 0.25
"""Of these, the share of those on two such teams, under any order, with backwards in two parts."""
REPLICAS = 0.2
"""Of those about teams, the share of those at levels 2 and 3 of ZeRO if teams extend over nodes."""
NAMED = 0.2
"""Of those about teams, the share of those that name a strategy."""
USUAL = 0.2
"""Of those about teams, the share of those that name no sizes, which have the usual ones then."""
BESIDE = 0.3
"""Of those about teams, the share of those that two workers search."""
RARE = ("second tie", "third kind", "large share", "odd outputs", "heavy weights", "no tokens", "whole weights")
"""What is drawn by itself."""

PINNED = 0.15
"""The share of questions with layers on single devices, beside those about kinds of devices."""


COLLECTIVES = 0.15
"""The share of questions about links that sum by other algorithms than a ring, plugged in by the bridge."""

SLICES = 0.08
"""The share of questions about token slices; of those about teams it is larger."""

ROUNDS = 0.06
"""The share of questions about several stages of a device; of those about teams it is larger."""
UNLIKE_ROUNDS = 0.3
"""Of these, the share of those whose rounds may be cut unlike; of those about teams it is larger too."""

FROZEN = 0.25
"""The share of questions about models with frozen weights."""


def question(seed: int, large: bool = False) -> Document:
    """The question of a number: the same for ever. ``large``: up to ten devices."""
    random = Random(f"{'large' if large else 'small'} {seed}")
    names = [f"l{i}" for i in range(random.choice((4, 5, 6)) if large else random.choice((2, 2, 3, 3, 4, 4, 5)))]
    cluster = _cluster(random, large)
    model = _model(random, names, cluster)
    _limits(random, cluster, model)
    job = _job(random, names, cluster, model, large)
    if _often(Random(f"overlapped {'large' if large else 'small'} {seed}"), 0.5):
        job["overlap_reduction"] = False
    levels = Random(f"levels {'large' if large else 'small'} {seed}")
    if _often(levels, 0.3):
        job["zero"] = levels.choice(([2], [3], [3], [0, 1], [0, 3], [1, 2], [0, 1, 2, 3]))
    elif "zero" not in job and _often(levels, 0.5):
        job["zero"] = [0]
    steps = "objective" not in job and "any" not in job.get("schedules", ()) and "intra_layer" not in job
    if steps and _often(Random(f"period {'large' if large else 'small'} {seed}"), 0.25):
        job["objective"] = "period"
    _delay(Random(f"staleness {'large' if large else 'small'} {seed}"), job)
    for kind, entry in cluster["devices"].items():
        beside = Random(f"{kind} hides {'large' if large else 'small'} {seed}")
        if _often(beside, 0.2):
            entry["speed_beside_collectives"] = beside.choice(SLOWER)
    units = Random(f"units {'large' if large else 'small'} {seed}")
    network = [cluster["network"]] if cluster.get("network") is not None else []
    for link in [*(node["link"] for node in cluster["nodes"]), *network]:
        if _often(units, 0.3):
            link |= {"unit_overhead": units.choice((1, 4, 15)), "unit_efficiency": units.choice((0.25, 0.5, 1.5))}
            link |= {"unit_overlap": units.choice((True, False))}
    if _often(frozen := Random(f"frozen {'large' if large else 'small'} {seed}"), FROZEN):
        _freeze(frozen, model, job)
    document = {"model": model, "cluster": cluster, "job": job, "solve": _solve(random, large)}
    free = Random(f"free {'large' if large else 'small'} {seed}")
    if _often(free, 0.15):
        job["reserve"] = free.choice((0.05, 0.3, free.randint(1, max(1, _whole(model) // 6))))
    pins = Random(f"pins {'large' if large else 'small'} {seed}")
    if "intra_layer" not in job and _often(pins, PINNED):
        _pin(pins, document)
    streams = (Random(f"{topic} {'large' if large else 'small'} {seed}") for topic in RARE)
    ties, kinds, shares, outputs, weights, operands, wholes = streams
    second_tie(ties, model)
    third_kind(kinds, cluster)
    large_share(shares, document)
    stated = Random(f"stated bytes {'large' if large else 'small'} {seed}")
    if _often(stated, 0.12):
        job["state_bytes"] = stated.choice((0, 1, 2, 6, 12))
    if _often(stated, 0.12):
        job["gradient_bytes"] = stated.choice((1, 2, 4, 8))
    teams = Random(f"teams {'large' if large else 'small'} {seed}")
    if _often(teams, TEAMS):
        in_teams(teams, document)
        odd_outputs(outputs, model)
        heavy_weights(weights, document)
        operands_without_tokens(operands, model)
        whole_weights(wholes, document)
        blocks = Random(f"blocks {'large' if large else 'small'} {seed}")
        if not large and (alike := _often(blocks, BLOCKS)):
            in_blocks(blocks, document)
        if not large and _often(own := Random(f"replicas of meshes small {seed}"), REPLICAS):
            in_replicas(own, document)
        losses = Random(f"losses on meshes {'large' if large else 'small'} {seed}")
        if not large and _often(losses, BLOCKS):
            in_blocks(losses, document)
            with_loss(losses, document["model"])
            alike = True
        if not large and alike and _often(orders := Random(f"orders of blocks small {seed}"), ORDERS):
            in_any_order(orders, document)
        if not large and _often(named := Random(f"strategies small {seed}"), NAMED):
            by_name(named, document)
    slices = Random(f"slices {'large' if large else 'small'} {seed}")
    if _often(slices, SLICES) or ("teams" in job and _often(slices, SLICES)):
        in_slices(slices, document)
    several = Random(f"rounds {'large' if large else 'small'} {seed}")
    unlike = Random(f"rounds cut unlike {'large' if large else 'small'} {seed}")
    more = Random(f"rounds of teams {'large' if large else 'small'} {seed}") if "teams" in job else None
    if _often(several, ROUNDS) or (more is not None and _often(more, 2 * ROUNDS)):
        in_rounds(several, document)
        if _often(unlike, UNLIKE_ROUNDS) or (more is not None and _often(more, UNLIKE_ROUNDS)):
            cut_unlike(unlike, document)
    if "any" in job.get("schedules", ()) and _often(
        parts := Random(f"parts {'large' if large else 'small'} {seed}"), 0.3
    ):
        _without_parts(parts, model)
    if _often(sums := Random(f"sums {'large' if large else 'small'} {seed}"), COLLECTIVES):
        network = [cluster["network"]] if cluster.get("network") is not None else []
        for link in [*(node["link"] for node in cluster["nodes"]), *network]:
            if _often(sums, 0.6):
                link["collective"] = sums.choice(("halving", "tree"))
    if "teams" in job and _often(Random(f"workers {'large' if large else 'small'} {seed}"), BESIDE):
        document["solve"]["workers"] = 2
    if "teams" in job and _often(Random(f"usual teams {'large' if large else 'small'} {seed}"), USUAL):
        without_sizes(document)
    return document


def _delay(random: Random, job: Document) -> None:
    """Let gradients be one step late, mostly in questions that allow it."""
    if job.get("objective") == "period" and _often(random, 0.5):
        job["staleness"] = 1
        if _often(random, 0.9):
            job.pop("schedules", None) if random.random() < 0.5 else job.update(schedules=[random.choice(EXACT[1:])])
            levels = [level for level in job.get("zero", ()) if level < 2]
            job.update(zero=levels) if levels else job.pop("zero", None)
    elif "objective" not in job and _often(random, 0.02):
        job["staleness"] = 1


def drawn(document: Document) -> set[str]:
    """The fields of a job that a question gives another value than the default."""
    return {name for name, value in document["job"].items() if name == "batch" or value != DEFAULTS[name]}


def _often(random: Random, share: float) -> bool:
    return random.random() < share


def _link(random: Random, fast: bool) -> Document:
    bandwidths = (None, 4 * 10**9, 2 * 10**9, 10**9) if fast else (10**9, 5 * 10**8, 3 * 10**8, 10**8)
    link: Document = {"bandwidth": random.choice(bandwidths), "latency": random.choice((0, 0, 1, 3, 8))}
    if _often(random, 0.15):
        link["collective_efficiency"] = random.choice((0.5, 0.75, 1.5))
    return link


def _cluster(random: Random, large: bool) -> Document:
    """One to four nodes; the network is slower or faster than the links inside."""
    most = random.randint(5, 10) if large else random.choice((1, 2, 2, 3, 3, 3, 4, 4, 5))
    nodes = min(random.choice((1, 1, 2, 2, 3, 4)), most)
    kinds = ["a"] if most == 1 or _often(random, 0.6) else ["a", "b"]
    network_is_fast = _often(random, 0.4)
    alike = _often(random, 0.7)
    inside = _link(random, not network_is_fast)
    split = _split(random, most, nodes)
    entries: list[Document] = []
    for count in split:
        row = [kinds[0]] * count if len(kinds) == 1 or _often(random, 0.5) else random.choices(kinds, k=count)
        link = inside if alike else _link(random, not network_is_fast)
        entries.append({"devices": [{"kind": kind, "count": 1} for kind in row], "link": dict(link)})
    used = {group["kind"] for entry in entries for group in entry["devices"]}
    cluster: Document = {
        "name": "questioned",
        "devices": {kind: {} for kind in kinds if kind in used},
        "nodes": entries,
        "network": _link(random, network_is_fast) if nodes > 1 else None,
        "overlap": random.choice((False, True, True, "stream")),
    }
    if "b" in used and "a" in used and _often(random, 0.5):
        cluster["devices"]["b"] = {"timed_as": "a", "speed": random.choice(SPEEDS)}
    elif _often(random, 0.1):
        cluster["devices"][min(used)]["speed"] = random.choice(SPEEDS)
    return cluster


def _split(random: Random, devices: int, nodes: int) -> list[int]:
    """Devices of each node: equal where that is possible, mostly."""
    if devices % nodes == 0 and _often(random, 0.7):
        return [devices // nodes] * nodes
    ends = sorted(random.sample(range(1, devices), nodes - 1))
    return [b - a for a, b in zip([0, *ends], [*ends, devices], strict=True)]


def _model(random: Random, names: list[str], cluster: Document) -> Document:
    dtype = random.choice(("float32", "float32", "bfloat16", "float64"))
    item, chain = ITEM[dtype], _often(random, 0.65)
    layers: list[Document] = []
    for i, name in enumerate(names):
        sources = names[i - 1 : i] if chain or _often(random, 0.5) else random.sample(names[:i], min(i, 2))
        sources = sorted(sources) if _often(random, 0.95) else []
        layers.append({"name": name, "parameters": item * random.choice((0, 1, 2, 3, 5, 9)), "inputs": sources})
    model: Document = {"name": "questioned", "dtype": dtype, "layers": layers, "profiles": []}
    if len(names) > 1 and _often(random, 0.2):
        tied = [names[0], names[-1]] if _often(random, 0.5) else sorted(random.sample(names, min(len(names), 2)))
        if len(names) > 2 and _often(random, 0.3):
            tied = sorted(random.sample(names, 3))
        first = next(layer for layer in layers if layer["name"] == tied[0])
        first["parameters"] += item * (not first["parameters"])
        model["ties"] = [{"layers": tied, "parameters": item * random.randint(1, first["parameters"] // item)}]
    timed = sorted({entry.get("timed_as", kind) for kind, entry in cluster["devices"].items()})
    model["profiles"] = [
        {"device": kind, "micro_batch": size, "provenance": {"how": "imported", "source": "drawn"}, "costs": costs}
        for kind in timed
        for size, costs in _profiles(random, names).items()
    ]
    return model


def _freeze(random: Random, model: Document, job: Document) -> None:
    """Frozen weights of some layers, at times shared, and at times of all layers up to some: these have no backward."""
    layers, item = model["layers"], ITEM[model["dtype"]]
    for layer in layers:
        if _often(random, 0.6):
            layer["frozen"] = item * random.choice((1, 2, 5, 9, 20)) + random.choice((0, 0, 1))
    if _often(random, 0.4):
        above = layers[: random.randint(1, len(layers) - 1)]
        names = {layer["name"] for layer in above}
        for layer in above:
            layer["frozen"], layer["parameters"] = layer.get("frozen", item) + layer["parameters"], 0
        for costs in (entry["costs"] for entry in model["profiles"]):
            for name in names:
                costs[name] |= {"backward": 0, "input_gradient": 0, "weight_gradient": 0, "update": 0}
        model["ties"] = [tie for tie in model.get("ties", ()) if tie["layers"][0] not in names]
    holders = [layer["name"] for layer in layers if layer.get("frozen")]
    share = 0.0 if job.get("intra_layer") else 0.3
    if holders and holders[0] != layers[-1]["name"] and _often(random, share):
        first = next(layer for layer in layers if layer["name"] == holders[0])
        later = [layer["name"] for layer in layers[layers.index(first) + 1 :]]
        tied = [holders[0], *sorted(random.sample(later, random.randint(1, min(2, len(later)))))]
        model["ties"] = [*model.get("ties", ()), {"layers": tied, "frozen": random.randint(1, first["frozen"])}]
    if not model.get("ties"):
        model.pop("ties", None)


def _profiles(random: Random, names: list[str]) -> dict[int, Document]:
    """Costs at one to three sizes, nearly in proportion."""
    scale = random.choice((1, 1, 10))
    rows = {}
    for name in names:
        output, forward = random.randint(0, 6), random.choice((0, 1, 2, 3, 5, 8, 12))
        gradients = random.randint(0, 12), random.choice((0, random.randint(0, 12)))
        joined = sum(gradients) if _often(random, 0.5) else random.randint(0, 24)
        times = (scale * forward, scale * joined, scale * gradients[0], scale * gradients[1])
        rows[name] = (*times, output + random.randint(0, 8), output, random.choice((0, 0, 2, 7)), random.randint(0, 4))
    found: dict[int, Document] = {}
    for size in random.choice(((1,), (1,), (2,), (1, 2), (1, 2), (1, 4), (2, 4), (1, 2, 4), (1, 3))):
        slower = random.choice((0, 0, 1, 5))
        found[size] = {
            name: {
                "forward": size * row[0] + slower,
                "backward": size * row[1] + slower,
                "input_gradient": size * row[2],
                "weight_gradient": size * row[3],
                "saved": size * row[4],
                "output": size * row[5],
                "workspace": size * row[6],
                "update": row[7],
            }
            for name, row in rows.items()
        }
    return found


def _without_parts(random: Random, model: Document) -> None:
    """Forget how long the two parts of the backwards of some layers take."""
    for name in (layer["name"] for layer in model["layers"] if _often(random, 0.5)):
        for profile in model["profiles"]:
            profile["costs"][name] |= {"input_gradient": 0, "weight_gradient": 0}


def _whole(model: Document) -> int:
    """About what a device needs that holds everything, with one micro-batch in flight."""
    costs = max((entry["costs"] for entry in model["profiles"]), key=lambda own: sum(c["saved"] for c in own.values()))
    resident = sum(4 * layer["parameters"] for layer in model["layers"])
    return int(resident + sum(2 * cost["saved"] + cost["workspace"] for cost in costs.values()))


def _limits(random: Random, cluster: Document, model: Document) -> None:
    """Memory that never binds, binds a little, or leaves hardly any plan; and what the runtime takes of it."""
    if _often(random, 0.4):
        return
    whole = _whole(model)
    for entry in cluster["devices"].values():
        if _often(random, 0.85):
            entry["memory"] = int(whole * random.uniform(0.15, 1.2)) + 1
        if _often(random, 0.25):
            entry["runtime"] = random.randint(1, max(1, whole // 6))


def _job(random: Random, names: list[str], cluster: Document, model: Document, large: bool) -> Document:
    batch = random.choice((4, 6, 8)) if large else random.choice((1, 2, 3, 4, 4, 4, 6, 8))
    devices = sum(len(node["devices"]) for node in cluster["nodes"])
    job: Document = {"batch": batch}

    def draw(name: str, share: float, value: object) -> None:
        if _often(random, share):
            job[name] = value

    measured = [entry["micro_batch"] for entry in model["profiles"]]
    divisors = [count for count in range(1, batch + 1) if batch % count == 0]
    allowed = [count for count in divisors if min(measured) <= batch // count <= max(measured)] or divisors
    draw("extrapolate", 0.15, True)
    if not allowed or batch // divisors[-1] > max(measured) or batch < min(measured):
        draw("extrapolate", 0.8, True)
    draw("micro_batches", 0.25, random.sample(allowed, min(len(allowed), random.randint(1, 2))))
    draw("optimizer", 0.5, random.choice([name for name in STATES if name != "sgd"]))
    suited = [name for name in EXACT if cluster["overlap"] is True or name != "1f1b"]
    suited += ["fbp-as"] if cluster["overlap"] is not False or _often(random, 0.05) else []
    draw("schedules", 0.5, random.sample(suited, random.randint(1, min(3, len(suited)))))
    draw("depths", 0.25, sorted(random.sample(range(1, devices + 1), random.randint(1, min(2, devices)))))
    draw("memory", 0.2, int(_whole(model) * random.uniform(0.2, 1.3)) + 1)
    draw("objective", 0.25, "bottleneck")
    draw("replicas", 0.25, sorted(random.sample(range(1, devices + 1), random.randint(1, min(2, devices)))))
    draw("equal_replicas", 0.15, True)
    draw("regular", 0.15, True)
    draw("recompute", 0.4, random.choice(("none", "full")))
    draw("zero", 0.2, [1])
    draw("order", 0.2, "given")
    if len(names) > 2:
        at = random.randrange(len(names) - 1)
        draw("together", 0.1, [names[at : at + 2]])
        draw("no_cut_after", 0.12, [random.choice(names[:-1])])
    where = random.choice([*cluster["devices"], f"d{random.randrange(devices)}"])
    pins = [(random.choice(names), where)]
    if _often(random, 0.3):
        pins.append((random.choice(names), random.choice([*cluster["devices"], f"d{random.randrange(devices)}"])))
    draw("pin", 0.12, pins)
    if "objective" not in job and batch <= 4 and devices <= 3 and not large and _often(random, 0.08):
        job["schedules"] = [*random.sample(suited, random.choice((0, 0, 1))), "any"]
        if _often(random, 0.6):  # few enough orders to play each of them
            job.update(batch=min(batch, 2), replicas=[1], depths=[random.choice((1, 2, 2))], extrapolate=True)
            job.pop("micro_batches", None)
    if cluster["overlap"] == "stream" and "ties" not in model and _often(random, 0.12):
        job["intra_layer"] = True
        for name in ("together", "no_cut_after", "pin", *(["recompute"] if job.get("recompute") == "full" else [])):
            job.pop(name, None)
    return job


def _pin(random: Random, document: Document) -> None:
    """One to three layers, mostly on devices of one kind, that some partition may have there."""
    names = [layer["name"] for layer in document["model"]["layers"]]
    kinds = [group["kind"] for node in document["cluster"]["nodes"] for group in node["devices"]]
    count = random.choice((1, 1, 1, 2, 2, 3))
    layers = sorted(random.sample(range(len(names)), min(len(names), count)))
    devices = [random.randrange(len(kinds)) for _ in layers]
    if _often(random, 0.6):
        alike = [number for number, kind in enumerate(kinds) if kind == kinds[devices[0]]]
        devices = random.sample(alike, len(layers)) if len(alike) >= len(layers) else devices
    document["job"]["pin"] = [(names[i], f"d{device}") for i, device in zip(layers, devices, strict=True)]


def _solve(random: Random, large: bool) -> Document:
    backend = random.choices(("cpsat", "exact", "cbc"), (0.75, 0.2, 0.05))[0]
    limit = SHORT if _often(random, 0.06) else 60.0
    return {"backend": backend, "time_limit": limit, "gap": 0.1 if _often(random, 0.12) else 0.0, "workers": 1}
