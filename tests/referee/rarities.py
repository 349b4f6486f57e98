"""What random questions seldom have by themselves: two ties, three kinds, large shares, odd outputs, heavy weights.

And operators that read tensors without tokens, attention and others; and layers of which nothing but operators without
weights can be split, which pays on some devices or for large micro-batches only.
"""

from random import Random

from .costs import ITEM
from .documents import Document

LARGE = 2**20
"""Numbers of a layer of which two replicas have shares that take several messages, or nearly."""
HEAVY = 60
"""Times as many bytes of weights."""


def second_tie(random: Random, model: Document) -> None:
    """Let other layers share weights too, or the same ones others."""
    names = [layer["name"] for layer in model["layers"]]
    if not model.get("ties") or len(names) < 3 or random.random() < 0.6:
        return
    tied = sorted(random.sample(range(len(names)), random.choice((2, 2, 3))))
    first, item = model["layers"][tied[0]], ITEM[model["dtype"]]
    size = item * random.choice((1, 2, 3))
    first["parameters"] += size
    model["ties"].append({"layers": [names[i] for i in tied], "parameters": size})


def third_kind(random: Random, cluster: Document) -> None:
    """Make one of three or more devices a kind of its own, which is timed as another."""
    places = [group for node in cluster["nodes"] for group in node["devices"]]
    if len(places) < 3 or random.random() < 0.85:
        return
    own = random.choice(places)
    entry = cluster["devices"][own["kind"]]
    alike = {name: entry[name] for name in ("memory", "runtime") if name in entry}
    beside = {"speed_beside_collectives": random.choice((0.25, 0.5))} if random.random() < 0.4 else {}
    timed = entry.get("timed_as", own["kind"])
    cluster["devices"]["c"] = alike | beside | {"timed_as": timed, "speed": random.choice((0.5, 0.8, 1.5))}
    own["kind"] = "c"
    used = {group["kind"] for group in places}
    cluster["devices"] = {kind: each for kind, each in cluster["devices"].items() if kind in used}


def large_share(random: Random, document: Document) -> None:
    """A layer of a few million numbers where gradients are shared out, on devices that have room."""
    model, job = document["model"], document["job"]
    if not {2, 3} & {*job.get("zero", (0,))} or random.random() < 0.8:
        return
    layer = random.choice(model["layers"])
    layer["parameters"] += ITEM[model["dtype"]] * random.choice((LARGE, 3 * LARGE // 2, 2 * LARGE + 1, 5 * LARGE))
    job.pop("memory", None)
    for entry in document["cluster"]["devices"].values():
        entry.pop("memory", None)


def odd_outputs(random: Random, model: Document) -> None:
    """Make all outputs odd numbers of bytes, so that parts of them are rounded."""
    if random.random() < 0.5:
        return
    for profile in model["profiles"]:
        for cost in profile["costs"].values():
            grown = 1 - cost["output"] % 2
            cost["output"] += grown
            cost["saved"] += grown


def heavy_weights(random: Random, document: Document) -> None:
    """Let weights take nearly all the memory, so that it decides how they are split, and whether they are gathered."""
    model, job = document["model"], document["job"]
    if random.random() < 0.75:
        return
    for graph in model.get("operators", {}).values():
        for operator in graph["operators"]:
            for weight in operator["weights"]:
                weight["size"] *= HEAVY
    for each in (*model["layers"], *model.get("ties", ())):
        each["parameters"] *= HEAVY
    for profile in model["profiles"]:
        for cost in profile["costs"].values():
            cost["workspace"] = 0
    whole = sum(layer["parameters"] for layer in model["layers"])
    job["memory"] = int(whole * random.uniform(0.5, 3.0)) + 1
    for entry in document["cluster"]["devices"].values():
        entry.pop("memory", None)


def operands_without_tokens(random: Random, model: Document) -> None:
    """Let attention read tensors without an axis of tokens, mostly such as are split along another one's weights."""
    for graph in model.get("operators", {}).values():
        makers = {each["name"]: each for each in graph["operators"]}
        for each in graph["operators"]:
            if not each.get("attention") or "token" not in each["loops"] or random.random() < 0.4:
                continue
            for source, axes in each["reads"].items():
                each["reads"][source] = ["s" if loop == "token" else loop for loop in axes]
                if source in makers and random.random() < 0.8:
                    _make_by_weights(random, makers[source])
            used = {loop for axes in each["reads"].values() for loop in axes}
            each["loops"] |= {loop: random.choice((2, 12)) for loop in sorted(used) if random.random() < 0.7}


def readers_without_tokens(random: Random, model: Document) -> None:
    """Let one of the operators that make or read what passes between layers read it along another axis than tokens."""
    for graph in model.get("operators", {}).values():
        ends = {*graph.get("inputs", ("input",)), *graph.get("outputs", ()), graph["operators"][-1]["name"]}
        for source in sorted(ends):
            readers = [each for each in graph["operators"] if "token" in each["reads"].get(source, ())]
            rows = len(readers) + sum(
                each["name"] == source and "token" in each["makes"] for each in graph["operators"]
            )
            if not readers or rows < 2 or random.random() < 0.3:
                continue
            own = random.choice(readers)
            own["reads"][source] = ["s" if loop == "token" else loop for loop in own["reads"][source]]
            used = {loop for axes in (own["makes"], *own["reads"].values()) for loop in axes}
            own["loops"] = {loop: parts for loop, parts in own["loops"].items() if loop != "token" or loop in used}


def whole_weights(random: Random, document: Document) -> None:
    """Let no loop of a weight be split, and one kind of device take longer for each operator of a layer that is."""
    if random.random() < 0.9:
        return
    for graph in document["model"].get("operators", {}).values():
        for each in graph["operators"]:
            of_weights = {loop for weight in each["weights"] for loop in weight["loops"]}
            for loops in (each["loops"], each.get("groups", {})):
                for loop in of_weights & {*loops}:
                    del loops[loop]
    devices = document["cluster"]["devices"]
    for entry in devices.values():
        entry.pop("shard_overhead", None)
    devices[random.choice(sorted(devices))]["shard_overhead"] = random.choice((1, 3, 20, 100))


def _make_by_weights(random: Random, maker: Document) -> None:
    """Let what an operator makes be split by its weights instead of along tokens."""
    loops = sorted({loop for weight in maker["weights"] for loop in weight["loops"]} - {*maker["makes"], "token"})
    if not loops or "token" not in maker["makes"] or maker.get("product"):
        return
    split = random.choice(loops)
    maker["makes"] = [split if loop == "token" else loop for loop in maker["makes"]]
    maker["loops"][split] = 12
    used = {loop for axes in (maker["makes"], *maker["reads"].values()) for loop in axes}
    maker["loops"] = {loop: parts for loop, parts in maker["loops"].items() if loop != "token" or loop in used}
