"""Random operators of layers, and teams of devices to split them over."""

from copy import deepcopy
from random import Random

from .costs import ITEM
from .documents import Document

LOOPS = "pqr"


def in_teams(random: Random, document: Document) -> None:
    """Make a question one about teams: enough devices of a kind in a node, operators, mostly nothing that forbids."""
    model, cluster, job = document["model"], document["cluster"], document["job"]
    _more_devices(random, cluster)
    for entry in cluster["devices"].values():
        if random.random() < 0.6:
            entry["peak"] = {model["dtype"]: random.choice((5 * 10**8, 10**9, 2 * 10**9))}
            entry |= {"bandwidth": random.choice((10**9, 2 * 10**9)), "efficiency": random.choice((0.5, 1.0))}
        if random.random() < 0.3:
            entry["overhead"] = random.choice((1, 2, 5, 40))
    _with_operators(random, model)
    slower = random.choice((1, 1, 5, 20))
    for row in [row for profile in model["profiles"] for row in profile["costs"].values()]:
        row |= {name: slower * row[name] for name in ("forward", "backward", "input_gradient", "weight_gradient")}
        row["update"] *= random.choice((1, slower))
    whole = sum(
        4 * layer["parameters"] + 2 * model["profiles"][0]["costs"][layer["name"]]["saved"] for layer in model["layers"]
    )
    for limited in (*cluster["devices"].values(), job):
        if "memory" in limited:
            limited["memory"] = int(whole * random.uniform(0.1, 1.2)) + 1
    most = max(_alike(node) for node in cluster["nodes"])
    sizes = [size for size in (2, 2, 2, 3, 4) if size <= most] or [2]
    job["teams"] = random.choice(([random.choice(sizes)], [1, random.choice(sizes)], [1, *sorted(set(sizes))]))
    _over_nodes(Random(f"over nodes {document}"), job, cluster)
    if random.random() < 0.92:
        _allow(job, cluster)
        _pin_to_kinds(Random(f"pins of teams {document}"), document)
    if random.random() < 0.2:
        job["sequence_parallel"] = False
    if random.random() < (0.6 if len(job["teams"]) > 1 else 0.03):
        job["unlike_teams"] = True
    for entry in cluster["devices"].values():
        if random.random() < 0.4:
            entry["shard_overhead"] = random.choice((1, 3, 20))
    if model["layers"][-1].get("operators") and random.random() < 0.5:
        _with_loss(random, model)
    if random.random() < 0.15:
        job["vocabulary_parallel"] = False
    own = Random(f"context {job} {model['operators']}")
    for graph in model["operators"].values():
        _with_products(own, graph)
    if own.random() < 0.15:
        job["context_parallel"] = False


def in_equal_teams(document: Document) -> None:
    """Make a question one about teams, whose sizes are not mixed."""
    if "teams" not in document["job"]:
        in_teams(Random(f"equal teams {document}"), document)
    document["job"].pop("unlike_teams", None)


def _with_products(random: Random, graph: Document) -> None:
    """Products and attention, which run on parts of the tokens only if the plan says so."""
    loss = (graph.get("loss") or {"operators": ()})["operators"]
    makers = [each for each in graph["operators"] if "token" in each["makes"] and each["name"] not in loss]
    if makers and "outputs" not in graph and len(graph["operators"]) < 4 and random.random() < 0.4:
        _attend_to(random, graph, random.choice(makers))
    for each in graph["operators"]:
        has_loop = "token" in each["loops"]
        if (has_loop and "token" not in each["makes"]) or each["name"] in loss or random.random() < 0.3:
            continue
        if any(len(weight["loops"]) > 1 for weight in each["weights"]):
            each["product"] = True
        elif not each["weights"] and "attention" not in each and random.random() < 0.5:
            each["attention"] = _attention(random)
        if has_loop and random.random() < 0.6:  # most of the work, and mostly nothing else to split it along
            each |= dict.fromkeys(("forward_flops", "input_gradient_flops"), random.choice((40, 150)))
            if random.random() < 0.7:
                each["loops"] = {"token": each["loops"]["token"]}
                each.pop("groups", None)


def _attend_to(random: Random, graph: Document, maker: Document) -> None:
    """Let attention read what an operator makes, and others what that makes."""
    axes, place = list(maker["makes"]), graph["operators"].index(maker)
    for each in graph["operators"][place + 1 :]:
        if maker["name"] in each["reads"]:
            each["reads"] = {"a" if name == maker["name"] else name: row for name, row in each["reads"].items()}
    own = {"name": "a", "kind": "drawn", "loops": {"token": 12}, "reads": {maker["name"]: axes}, "makes": list(axes)}
    figures = {"output": random.choice((1, 5)), "kept": True, "weights": [], "attention": _attention(random)}
    graph["operators"].insert(place + 1, own | figures | {"forward_flops": 150, "input_gradient_flops": 300})
    if random.random() < 0.5:
        own["loops"]["token"] = graph["operators"][place]["loops"].get("token", 12)


def _attention(random: Random) -> Document:
    keys, heads = random.choice((0, 1, 2, 8, 30)), random.choice((1, 2, 12, 12))
    return {
        "queries": random.choice((0, 1, 4)),
        "keys": keys,
        "heads": heads,
        "causal": random.random() < 0.5,
    }


def _over_nodes(random: Random, job: Document, cluster: Document) -> None:
    """Sometimes ask for teams larger than a node; mostly nodes are equal then, of one kind."""
    nodes = cluster["nodes"]
    if len(nodes) < 2 or random.random() < 0.6:
        return
    if random.random() < 0.9:
        row = [dict(nodes[0]["devices"][0]) for _ in range(random.choice((1, 1, 2)))]
        for node in nodes:
            node["devices"] = [dict(group) for group in row]
    if random.random() < 0.3:
        job["mesh_axes"] = random.choice((0, 1, 3))
    wide = len(nodes[0]["devices"]) * random.choice((2, 2, len(nodes)))
    job["teams"] = sorted({*random.choice(((), (1,), job["teams"])), wide})


def _with_loss(random: Random, model: Document) -> None:
    """Behind the operators of the last layer a loss that may be split along an axis of what the last one makes."""
    layer = model["layers"][-1]
    graph = deepcopy(model["operators"][layer["operators"]])
    graph.pop("outputs", None)
    before = graph["operators"][-1]
    free = [n for n, loop in enumerate(before["makes"]) if loop != "token"] or [0]
    axes = list(before["makes"])
    place = random.choice(free)
    if axes[place] != "token" and random.random() < 0.7:
        before["loops"][axes[place]] = 12
    axes[place] = "class"
    parts, names = random.choice((12, 12, 12, 4, 3)), []
    for k in range(random.choice((1, 2, 2, 3))):
        names.append(f"l{k}")
        graph["operators"].append(
            {"name": names[-1], "kind": "drawn", "loops": {"class": parts}, "reads": {before["name"]: list(axes)}}
            | {"makes": list(axes), "weights": [], "output": random.choice((1, 5, 8)), "kept": random.random() < 0.6}
            | {f"{name}_flops": random.choice((0, 2, 12)) for name in ("forward", "input_gradient")}
        )
        before = graph["operators"][-1]
    before |= {"makes": [], "output": random.choice((0, 1, 1))}
    graph["loss"] = {"operators": names, "rows": random.choice((0, 1, 1, 3))}
    model["operators"]["head"], layer["operators"] = graph, "head"


def _allow(job: Document, cluster: Document) -> None:
    """Drop what teams exclude."""
    job.pop("intra_layer", None)
    if job.get("objective") == "bottleneck":
        job.pop("objective")
    kind = cluster["nodes"][0]["devices"][0]["kind"]
    job["pin"] = list({name: kind for name, _ in job.get("pin", ())}.items())


def _pin_to_kinds(random: Random, document: Document) -> None:
    """Sometimes pin layers to any of several kinds, also of which there is no team of a size."""
    kinds = [group["kind"] for node in document["cluster"]["nodes"] for group in node["devices"]]
    if len(set(kinds)) > 1 and random.random() < 0.15:
        names = [layer["name"] for layer in document["model"]["layers"]]
        document["job"]["pin"] = [(random.choice(names), random.choice(kinds)) for _ in range(random.choice((1, 1, 2)))]


def _alike(node: Document) -> int:
    kinds = [group["kind"] for group in node["devices"]]
    return max(map(kinds.count, kinds))


def _more_devices(random: Random, cluster: Document) -> None:
    """Every device twice where they are few; two alike in the first node at least, mostly."""
    nodes = cluster["nodes"]
    if sum(len(node["devices"]) for node in nodes) <= 3:
        for node in nodes:
            node["devices"] = [dict(group) for group in node["devices"] for _ in range(2)]
        if random.random() < 0.3:
            random.shuffle(nodes[0]["devices"])
    elif max(map(_alike, nodes)) == 1 and random.random() < 0.9:
        nodes[0]["devices"] += [dict(nodes[0]["devices"][0])]


def _with_operators(random: Random, model: Document) -> None:
    """Operators of most layers, and of those that share weights; the parameters of layers are theirs then."""
    item, layers = ITEM[model["dtype"]], model["layers"]
    model.pop("ties", None)
    tokens = random.random() < 0.5
    plain = {f"g{g}": _graph(random, item, 0) for g in range(random.choice((1, 1, 2)))}
    for layer in layers:
        if random.random() < 0.85:
            layer["operators"] = random.choice(list(plain))
            layer["parameters"] = _weights(plain[layer["operators"]])
    model["operators"] = {name: graph for name, graph in plain.items() if random.random() < 0.95}
    for layer in layers:
        if layer.get("operators", "") not in model["operators"]:
            layer.pop("operators", None)
    if len(layers) > 1 and random.random() < 0.35:
        tied = sorted(random.sample(range(len(layers)), min(len(layers), random.choice((2, 2, 3)))))
        sizes = [item * random.choice((2, 2, 4, 6, 3, 1)) for _ in range(random.choice((1, 1, 2)))]
        own = {"t0": _graph(random, item, 1, sizes), "t1": _graph(random, item, 1, sizes)}
        for i in tied:
            name, layer = random.choice(("t0", "t0", "t1", "")), layers[i]
            layer.pop("operators", None)
            copied = 0 if i == tied[0] else sum(sizes)
            if name:
                model["operators"][name] = own[name]
                layer |= {"operators": name, "parameters": _weights(own[name]) - copied}
            elif not copied:
                layer["parameters"] += sum(sizes)
        model["ties"] = [{"layers": [layers[i]["name"] for i in tied], "parameters": sum(sizes)}]
    sampled = Random(f"samples {model['operators']}")
    if sampled.random() < 0.4:
        for graph in model["operators"].values():
            _name_samples(sampled, graph)
    for graph in model["operators"].values():
        if not tokens or random.random() < 0.2:
            _more_ends(Random(f"ends {graph}"), graph)
        if tokens:
            _name_tokens(random, graph)
        _group(Random(f"groups {graph}"), graph)
    if tokens:
        _pass_masks(Random(f"masks {list(model['operators'])} {layers}"), model)


def _pass_masks(random: Random, model: Document) -> None:
    """Let a mask without gradient pass through some models, mostly at the same place beside what has tokens."""
    if random.random() < 0.5:
        return
    size, place = random.choice((1, 4, 7)), random.choice((0, 1))
    for graph in model["operators"].values():
        if "inputs" in graph or "outputs" in graph or random.random() < 0.05:
            continue
        ends = [["input", graph.pop("input")], ["mask", size]]
        made = [graph["operators"][-1]["name"], "mask"]
        if (place, random.random() < 0.9) in ((1, True), (0, False)):
            ends.reverse()
            made.reverse()
        reader = random.choice(graph["operators"])
        if random.random() < 0.5:
            reader["reads"]["mask"] = [random.choice(reader["makes"])]
        graph |= {"inputs": dict(ends), "outputs": made, "without_gradient": ["mask"]}


def _name_samples(random: Random, graph: Document) -> None:
    """Call the first axis of most tensors that of the samples."""
    for each in graph["operators"]:
        for row in (each["makes"], *each["reads"].values()):
            if random.random() < 0.8:
                row[0] = "sample"
        used = {loop for row in (each["makes"], *each["reads"].values()) for loop in row}
        used |= {loop for weight in each["weights"] for loop in weight["loops"]}
        each["loops"] = {loop: number for loop, number in each["loops"].items() if loop in used}


def _name_tokens(random: Random, graph: Document) -> None:
    """Call a loop that no weight has the one over tokens; inputs and outputs have it, mostly."""
    parts, last = random.choice((12, 12, 12, 4)), graph["operators"][-1]
    for each in graph["operators"]:
        free = sorted({loop for row in (each["makes"], *each["reads"].values()) for loop in row})
        free = [loop for loop in free if not any(loop in weight["loops"] for weight in each["weights"])]
        own = "p" if "p" in free else random.choice(free) if free and random.random() < 0.8 else ""
        for row in (each["makes"], *each["reads"].values()):
            row[:] = ["token" if loop == own else loop for loop in row]
        ends = [row for source, row in each["reads"].items() if source == "input"]
        ends += [each["makes"]] if each is last else []
        for row in ends:
            if "token" not in row and random.random() < 0.9:
                row[0] = "token"
        used = {loop for row in (each["makes"], *each["reads"].values()) for loop in row}
        if "token" in used and random.random() < 0.75:
            each["loops"]["token"] = parts
        used |= {loop for weight in each["weights"] for loop in weight["loops"]}
        each["loops"] = {loop: number for loop, number in each["loops"].items() if loop in used}


def _group(random: Random, graph: Document) -> None:
    """Let axes along some loops be several groups, one behind the other, where all weights can be divided like them."""
    for each in graph["operators"]:
        for loop in each["loops"]:
            groups = random.choice(([1, 1, 1], [1, 1], [2, 1, 1], [4, 2, 2], []))
            own = [weight["size"] for weight in each["weights"] if loop in weight["loops"]]
            if loop != "token" and groups and own and not any(size % sum(groups) for size in own):
                each.setdefault("groups", {})[loop] = groups


def _weights(graph: Document) -> int:
    return sum(int(weight["size"]) for operator in graph["operators"] for weight in operator["weights"])


def _graph(random: Random, item: int, shared: int, sizes: list[int] | None = None) -> Document:
    """One to four operators; some of them may be split along their loops, each reads some of those before it."""
    count = random.choice((1, 1, 1, 1, 2, 2, 2, 3)) if random.random() < 0.95 else 4
    graph: Document = {"input": random.choice((0, 1, 4, 7)), "operators": []}
    axes: dict[str, int] = {"input": random.choice((1, 2))}
    bytes_ = {"input": graph["input"]}
    for k in range(count):
        last = k == count - 1
        unread = [name for name in axes if not any(name in each["reads"] for each in graph["operators"])]
        sources = unread if last else random.sample(list(axes), min(len(axes), random.choice((1, 1, 2))))
        if last and len(axes) > 1 and random.random() < 0.8:
            sources = [name for name in sources if name != "input"] or sources
        makes = random.sample(LOOPS, random.choice((1, 2)))
        reads = {name: random.sample(LOOPS, axes[name]) for name in sources}
        weights = []
        own = sizes if shared and k == 0 and sizes else []
        drawn = [item * random.choice((0, 1, 2, 3, 4, 8, 12)) for _ in range(random.choice((0, 1, 1, 2)) or int(not k))]
        for n, size in enumerate([*own, *drawn]):
            loops = random.sample(LOOPS, random.choice((1, 2)))
            weights.append(
                {"name": f"w{k}{n}", "loops": loops, "size": size} | ({"shared": True} if n < len(own) else {})
            )
        used = sorted({loop for row in (makes, *reads.values(), *(w["loops"] for w in weights)) for loop in row})
        parts = {
            loop: random.choice((2, 4, 12, 12, 12, 3))
            for loop in random.sample(used, min(len(used), random.choice((0, 1, 2, 2, 2))))
        }
        if weights and random.random() < 0.6:
            parts[weights[-1]["loops"][0]] = 12
        flops = {
            f"{name}_flops": random.choice((0, 2, 5, 12, 40))
            for name in ("forward", "input_gradient", "weight_gradient")
        }
        if not weights and random.random() < 0.8:
            flops["weight_gradient_flops"] = 0
        name = f"o{k}"
        graph["operators"].append(
            {"name": name, "kind": "drawn", "loops": parts, "reads": reads, "makes": makes, "weights": weights}
            | {"output": random.choice((0, 1, 2, 5, 8)), "kept": random.random() < 0.6}
            | flops
        )
        axes[name], bytes_[name] = len(makes), graph["operators"][-1]["output"]
    return graph


def _more_ends(random: Random, graph: Document) -> None:
    """Several inputs and outputs in half of the graphs, and tensors without gradient."""
    operators = graph["operators"]
    if random.random() < 0.5:
        sizes = {"input": graph.pop("input")} if random.random() < 0.9 else {}
        graph["inputs"] = sizes | {f"input#{n}": random.choice((0, 1, 4, 7)) for n in range(2, random.choice((3, 4)))}
        if not sizes:
            graph.pop("input")
            for each in operators:
                if "input" in each["reads"]:
                    each["reads"] = {{"input": "input#2"}.get(name, name): row for name, row in each["reads"].items()}
        for name in list(graph["inputs"])[1:]:
            axes = random.choice((1, 2))
            for each in random.sample(operators, min(len(operators), random.choice((0, 1, 1, 2)))):
                each["reads"].setdefault(name, random.sample(LOOPS, axes))
    names = [*(graph.get("inputs") or ("input",)), *(each["name"] for each in operators)]
    if random.random() < 0.5:
        graph["outputs"] = random.sample(names, random.choice((1, min(len(names), 2), min(len(names), 3))))
    if random.random() < 0.3:
        graph["without_gradient"] = random.sample(names, random.choice((1, min(len(names), 2))))
