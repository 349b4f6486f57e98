"""Layers like those of a transformer, in miniature, on teams over two nodes: attention, and tensors with readers."""

from random import Random

from .documents import Document


def in_blocks(random: Random, document: Document) -> None:
    """Give all layers such operators, which no weights are shared by, and teams that extend over two nodes."""
    model, cluster, job = document["model"], document["cluster"], document["job"]
    own = random.choice((_attention, _maps, _attention_behind_a_norm))(random)
    model["operators"] = {"block": {"input": random.choice((40, 400)), "operators": own}}
    if random.random() < 0.6:  # else every tensor has an axis of samples
        image = _operator(random, "image", {"input": ["sample", "h"]}, ["sample", "f"], {})
        model["operators"]["images"] = {"input": 0, "operators": [image]}
    model.pop("ties", None)
    for layer in model["layers"]:
        layer |= {"operators": "block", "parameters": sum(w["size"] for each in own for w in each["weights"])}
    kind, count = cluster["nodes"][0]["devices"][0]["kind"], random.choice((1, 1, 2))
    node = {"devices": [{"kind": kind, "count": 1}] * count, "link": cluster["nodes"][0].get("link") or {}}
    cluster["nodes"] = [dict(node) for _ in range(2)]
    cluster["network"] = {"bandwidth": random.choice((10**8, 10**9)), "latency": random.choice((0, 1, 5))}
    job |= {"teams": [2 * count], "zero": [0]}
    for name in ("unlike_teams", "mesh_axes", "intra_layer", "order"):
        job.pop(name, None)
    job["pin"] = []
    longer = random.choice((1, 10, 100))
    for row in [row for profile in model["profiles"] for row in profile["costs"].values()]:
        row |= {name: longer * row[name] for name in ("forward", "backward", "input_gradient", "weight_gradient")}


def in_any_order(random: Random, document: Document) -> None:
    """Give two stages of such teams room, and few micro-batches, so that each order can be played."""
    cluster, job = document["cluster"], document["job"]
    cluster["nodes"] = [dict(cluster["nodes"][0]) for _ in range(4)]
    job["schedules"] = [*random.choice(([], ["gpipe"])), "any"]
    job |= {"batch": min(job["batch"], 2), "replicas": [1], "depths": [2], "extrapolate": True, "zero": [0]}
    for name in ("micro_batches", "memory", "objective"):
        job.pop(name, None)


def in_replicas(random: Random, document: Document) -> None:
    """Ask for levels 2 and 3 of ZeRO where teams extend over nodes, on twice the nodes if these are but one team."""
    cluster, job = document["cluster"], document["job"]
    wide, nodes = max(job["teams"]), cluster["nodes"]
    if any(len(node["devices"]) >= wide for node in nodes) or "any" in job.get("schedules", ()):
        return
    if sum(len(node["devices"]) for node in nodes) < 2 * wide:
        cluster["nodes"] = [node | {"devices": list(node["devices"])} for _ in range(2) for node in nodes]
    job |= {"teams": [wide], "zero": random.choice(([2], [3], [3], [2, 3], [0, 3]))}
    for name in ("unlike_teams", "replicas", "depths"):
        job.pop(name, None)


def with_loss(random: Random, model: Document) -> None:
    """Let the last layer make logits and a loss of them, of which devices may have parts along the classes."""
    parts, axes = random.choice((12, 12, 4, 3)), ["token", "class"]
    loops = random.choice(({"class": parts}, {"h": 12}, {"class": parts, "h": 12}, {}))
    head = _operator(random, "head", {"input": ["token", "h"]}, axes, loops, random.choice((60, 600)))
    softmax = _operator(random, "softmax", {"head": axes}, axes, {"class": parts})
    loss = _operator(random, "loss", {"softmax": axes}, [], {"class": parts}) | {"output": random.choice((0, 1))}
    of = {"operators": ["softmax", "loss"], "rows": random.choice((0, 1, 8))}
    model["operators"]["head"] = {"input": random.choice((40, 400)), "operators": [head, softmax, loss], "loss": of}
    model["layers"][-1] |= {"operators": "head", "parameters": head["weights"][0]["size"]}


def by_name(random: Random, document: Document) -> None:
    """Ask for a strategy with a name, of teams of four or eight in one node, or in two."""
    in_blocks(random, document)
    if random.random() < 0.7:
        wide = _operator(random, "wide", {"input": ["sample", "h"]}, ["sample", "f"], {"h": 8, "f": 8}, 64)
        narrow = _operator(random, "narrow", {"wide": ["sample", "f"]}, ["sample", "g"], {"f": 8, "g": 8}, 64)
        document["model"]["operators"]["block"]["operators"] = [wide, narrow]
        for layer in document["model"]["layers"]:
            layer["parameters"] = 128
    cluster, job, nodes = document["cluster"], document["job"], random.choice((1, 1, 2))
    kind, link = cluster["nodes"][0]["devices"][0]["kind"], cluster["nodes"][0].get("link") or {}
    job |= {"strategy": random.choice(("2d", "2.5d", "3d", "3d", "3d")), "batch": 4, "extrapolate": True}
    job["teams"] = [8 if job["strategy"] == "2.5d" else random.choice((4, 4, 4, 8))]
    node = {"devices": [{"kind": kind, "count": 1}] * (job["teams"][0] // nodes), "link": link}
    cluster |= {"nodes": [dict(node) for _ in range(nodes)], "network": {"bandwidth": 10**9, "latency": 1}}
    for name in ("unlike_teams", "intra_layer", "order", "objective", "micro_batches", "depths"):
        job.pop(name, None)
    job["pin"] = []


def _operator(
    random: Random, name: str, reads: Document, makes: list[str], loops: Document, weight: int = 0
) -> Document:
    """An operator; ``weight``: bytes of a matrix with the last axes of what it makes and reads."""
    source = next(iter(reads.values()))
    weights = [{"name": f"{name}.matrix", "loops": [makes[-1], source[-1]], "size": weight}] if weight else []
    figures = {f"{each}_flops": random.choice((2, 12, 40)) for each in ("forward", "input_gradient")}
    return (
        {"name": name, "kind": "drawn", "loops": loops, "reads": reads, "makes": makes, "weights": weights}
        | {"output": random.choice((8, 40, 200)), "kept": random.random() < 0.6}
        | figures
        | {"weight_gradient_flops": random.choice((2, 12)) if weight else 0}
    )


def _attend(random: Random, reads: Document, loops: Document) -> Document:
    own = _operator(random, "attention", reads, ["token", "f"], loops)
    figures = {"queries": random.choice((0, 40)), "keys": random.choice((0, 7, 80, 400))}
    own["attention"] = figures | {"heads": random.choice((1, 2, 4, 12)), "causal": random.random() < 0.5}
    return own | {"forward_flops": 80, "input_gradient_flops": 160}


def _total(random: Random, reads: Document, loops: Document) -> Document:
    """A sum that has no tokens, or passes them on."""
    return _operator(random, "total", reads, random.choice((["f"], ["token", "f"])), loops)


def _attention(random: Random) -> list[Document]:
    own = _attend(random, {"input": ["token", "f"]}, {"token": random.choice((4, 12))})
    return [own, _total(random, {"attention": ["token", "f"]}, {"token": 12})]


def _attention_behind_a_norm(random: Random) -> list[Document]:
    axes = ["token", "f"]
    norm = _operator(random, "norm", {"input": axes}, list(axes), {"token": 12})
    own = _attend(random, {"norm": list(axes)}, random.choice(({"f": 12}, {"token": 12}, {"token": 4, "f": 4})))
    rest = {"attention": list(axes)} | random.choice(({}, {"norm": list(axes)}))
    return [norm, own, _total(random, rest, random.choice(({}, {"token": 12})))]


def _maps(random: Random) -> list[Document]:
    axes = ["token", "h"]
    norm = _operator(random, "norm", {"input": axes}, list(axes), {"token": 12})
    maps = [
        _operator(random, name, {"norm": list(axes)}, ["token", name], {name: 12}, random.choice((0, 60, 600)))
        for name in ("left", "right")
    ]
    rest = {each["name"]: ["token", each["name"]] for each in maps} | random.choice(({}, {"norm": list(axes)}))
    return [norm, *maps, _operator(random, "last", rest, ["z"], {})]
