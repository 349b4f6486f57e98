"""Token slices: the question in which a sample is a slice, and what slices of a layer differ by."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import gcd
from random import Random

from .costs import ITEM, Costs, layer_costs
from .documents import Document, Question
from .graphs import SAMPLE, TOKEN
from .schedules import HALVED, SLICED

FLOPS = ("forward_flops", "input_gradient_flops", "weight_gradient_flops")


def counts(document: Document) -> list[int]:
    """The numbers of slices of a job's plans: without 1 if it names families of slices only."""
    named = {*document["job"].get("schedules", ())}
    alone = bool(named) and named <= {*SLICED}
    return [count for count in document["job"].get("slices") or [1] if count > 1 or not alone]


def cut(document: Document, count: int) -> Document:
    """The question of plans with so many slices."""
    if count == 1:
        return document | {"job": document["job"] | {"slices": []}}
    model, job = document["model"], document["job"]
    graphs = {name: _graph(graph, count) for name, graph in model["operators"].items()}
    layers = [_layer(model["operators"][layer["operators"]]["operators"], count) for layer in model["layers"]]
    levels = [level for level in job.get("zero", ()) if level < 2]
    own = {"slices": [count], "equal_replicas": True, "context_parallel": False, "unlike_teams": False, "zero": levels}
    sliced = {
        "profiles": [*_profiles(model, count)],
        "operators": graphs,
        "slice_profiles": [],
        "slicing": {"count": count, "layers": layers, "measured": [*_measured(model, count)]},
    }
    return document | {"model": model | sliced, "job": job | own}


def refusal(document: Document) -> str | None:
    """Why slices are refused, whatever is asked beside; None where there are none, or they are possible."""
    job, model = document["job"], document["model"]
    several = [count for count in job.get("slices", ()) if count > 1]
    if not several:
        only = {*job.get("schedules", ())}
        return "families of slices, and none asked for" if only & {*SLICED} else None
    if job.get("objective") == "bottleneck" or job.get("intra_layer") or "any" in job.get("schedules", ()):
        return "slices of an endless pipeline, of divided layers or in any order"
    if min(job.get("zero") or [0]) > 1:
        return "slices with sharded gradients only"
    named = {*job.get("schedules", ())}
    if named and not named & {*SLICED}:
        return "slices in families of whole sequences"
    if named & {*HALVED} and (job.get("objective", "step") != "step" or unparted(document)):
        return "backwards in parts whose times are not known, or in a long run"
    graphs = model.get("operators") or {}
    every = [each for graph in graphs.values() for each in graph["operators"]]
    tokens = max((each.get("loops", {}).get(TOKEN, 0) for each in every), default=0)
    for layer in model["layers"]:
        graph = graphs.get(layer.get("operators", ""))
        if graph is None:
            return "slices of unknown operators"
        loss = (graph.get("loss") or {"operators": ()})["operators"]
        for each in graph["operators"]:
            attention = each.get("attention")
            if each["name"] in loss:
                continue
            if attention and not (attention.get("causal") or attention.get("masked")):
                return "an attention that looks ahead"
            rows = (each["makes"], *each["reads"].values())
            has = any(TOKEN in row for row in rows)
            norm = each["kind"] == "rms norm" and not any(TOKEN in own["loops"] for own in each.get("weights", ()))
            if (norm or each["kind"] in ("add", "sub", "mul")) and all(TOKEN in row for row in rows):
                continue  # a table of positions, say, which no team splits
            if (has or each["reads"]) and each.get("loops", {}).get(TOKEN) != tokens:
                return "an operator that mixes tokens"
    return "slices that do not divide the tokens" if any(tokens % count for count in several) else None


def unparted(document: Document) -> bool:
    """Whether the parts of some layer's backward have no times on a kind of device that is there."""
    kinds = document["cluster"]["devices"]
    return any(
        cost["backward"] and not cost.get("input_gradient", 0) + cost.get("weight_gradient", 0)
        for device, cost in _stated(document["model"])
        if device in kinds
    )


def _stated(model: Document) -> Iterator[tuple[str, Document]]:
    """The costs of all layers in profiles of sequences and of slices, each with the kind of device."""
    for profile in model["profiles"]:
        yield from ((profile["device"], cost) for cost in profile["costs"].values())
    for profile in model.get("slice_profiles", ()):
        yield from ((profile["device"], cost) for end in ("first", "last") for cost in profile[end].values())


def costs_of(question: Question, kind: str, size: int) -> list[Costs]:
    """Every layer on a kind of device, of a slice of average work: measured on devices alone, or by whole sequences."""
    known = _measured_on(question, kind)
    if not known:
        return one_by_one(question, kind, layer_costs(question, kind, size))
    model = question.document["model"] | {"profiles": known}
    return layer_costs(Question(question.document | {"model": model}, question.level), kind, size)


PASSES = ("forward", "backward", "input_gradient", "weight_gradient")


def shares_of(question: Question, kind: str, size: int, i: int) -> list[Fraction]:
    """What part of each pass of a slice attention is."""
    known = {entry["micro_batch"]: entry["shares"][question.names[i]] for entry in _measured_on(question, kind)}
    layer = question.slicing["layers"][i]
    if not known:
        return [layer[name] for name in PASSES]
    return [_line({b: own[n] for b, own in known.items()}, size) for n in range(len(PASSES))]


def _measured_on(question: Question, kind: str) -> list[Document]:
    timed = question.kinds[kind].get("timed_as") or kind
    if question.team(kind) > 1:
        return []
    return [entry for entry in question.slicing.get("measured", ()) if entry["device"] == timed]


def _measured(model: Document, count: int) -> Iterator[Document]:
    """Profiles of average slices where some were measured: what these took beyond shares of sequences, on a line."""
    every = (each for graph in model["operators"].values() for each in graph["operators"])
    tokens = max(each.get("loops", {}).get(TOKEN, 0) for each in every)
    for profile in model["profiles"]:
        key = profile["device"], profile["micro_batch"]
        known = [own for own in model.get("slice_profiles", ()) if (own["device"], own["micro_batch"]) == key]
        if not known:
            continue
        rows = {b["micro_batch"]: b["costs"] for b in model["profiles"] if b["device"] == key[0]}
        costs, shares = {}, {}
        for name in profile["costs"]:
            whole = {b: row[name] for b, row in rows.items()}

            def derived(length: int, whole: Document = whole, size: int = key[1]) -> Document:
                return _row(whole, Fraction(size * length, tokens))

            more: Document = {figure: {} for figure in profile["costs"][name] if figure != "update"}
            looked: list[dict[int, Fraction]] = [{} for _ in PASSES]
            for own in known:
                length, first, last = own["tokens"], own["first"][name], own["last"][name]
                for figure, beyond in more.items():
                    a, b = first.get(figure, 0), last.get(figure, 0)
                    taken = max(a, b) if figure in ("saved", "output", "workspace") else (a + b) // 2
                    beyond[length] = Fraction(taken - derived(length)[figure])
                for n, figure in enumerate(PASSES):
                    a, b = first[figure], last[figure]
                    longer = Fraction(max(b - a, 0), a + b) if a + b else Fraction(0)
                    looked[n][length] = min(longer * Fraction(tokens, tokens - length), Fraction(1))
            length = tokens // count
            plain = derived(length)
            costs[name] = {
                figure: max(value + round(_line(more[figure], length)), min(value, 1)) if figure in more else value
                for figure, value in plain.items()
            }
            shares[name] = tuple(_line(each, length) for each in looked)
        yield {"device": key[0], "micro_batch": key[1], "costs": costs, "shares": shares}


def _line(known: dict[int, Fraction], at: int) -> Fraction:
    """On the line between the sizes beside it; beyond all of them as at the last."""
    if at in known:
        return known[at]
    below, above = [n for n in known if n < at], [n for n in known if n > at]
    if not below or not above:
        return known[min(above) if above else max(below)]
    low, high = max(below), min(above)
    return (known[low] * (high - at) + known[high] * (at - low)) / (high - low)


def one_by_one(question: Question, kind: str, rows: list[Costs]) -> list[Costs]:
    """Times of layers whose slices a device alone runs operator by operator."""
    longer = question.kinds[kind].get("shard_overhead", 0)
    if question.slices == 1 or question.team(kind) > 1:
        return rows
    model, found = question.document["model"], []
    for layer, row in zip(model["layers"], rows, strict=True):
        operators = model["operators"][layer["operators"]]["operators"]
        with_weights = sum(1 for each in operators if each.get("weights"))
        forward = longer * len(operators) if row.forward else 0
        inputs = longer * len(operators) if row.input_gradient else 0
        weights = longer * with_weights if row.weight_gradient else 0
        times = {"forward": forward, "input_gradient": inputs, "weight_gradient": weights, "backward": inputs + weights}
        found.append(replace(row, **{name: getattr(row, name) + more for name, more in times.items()}))
    return found


def keys_on(layer: Document, loops: dict[str, tuple[str, ...]], sizes: tuple[int, ...]) -> int:
    """Bytes of keys and values of a slice on a device whose operators are split along these loops."""
    total = 0
    for name, size in layer["keys"].items():
        for loop, devices in zip(loops.get(name, ()), sizes, strict=False):
            size = -(-size // devices) if loop not in ("", TOKEN, SAMPLE) else size
        total += size
    return total


def times(mean: int, share: Fraction, count: int) -> list[int]:
    """Nanoseconds of each slice of a layer whose slices take so many on average."""
    step = int(mean * share) // count
    return [mean - count * step + (2 * k + 1) * step for k in range(count)]


def gradient_bytes(kept: int, dtype: str) -> int:
    """Bytes of the gradients of so many bytes of keys and values: 4 a number, or more."""
    return kept // ITEM[dtype] * max(ITEM[dtype], 4)


def _layer(operators: list[Document], count: int) -> Document:
    attention = [each for each in operators if each.get("attention")]

    def share(*names: str) -> Fraction:
        own, every = (sum(each.get(name, 0) for each in row for name in names) for row in (attention, operators))
        return Fraction(own, every) if every else Fraction(0)

    keys = {each["name"]: -(-each["attention"]["keys"] // count) for each in attention}
    parts = {name: share(f"{name}_flops") for name in ("input_gradient", "weight_gradient")}
    return {"forward": share(FLOPS[0]), "backward": share(*FLOPS[1:]), "keys": keys} | parts


def _graph(graph: Document, count: int) -> Document:
    own = deepcopy(graph)
    for name in [name for name in ("input",) if name in own]:
        own[name] = -(-own[name] // count)
    if "inputs" in own:
        own["inputs"] = {name: -(-size // count) for name, size in own["inputs"].items()}
    if own.get("loss"):
        own["loss"]["rows"] = -(-own["loss"]["rows"] // count)
    for each in own["operators"]:
        if not each["reads"]:
            continue
        for name in ("output", *FLOPS):
            each[name] = -(-each.get(name, 0) // count)
        if each.get("attention"):
            each["attention"] |= {name: -(-each["attention"][name] // count) for name in ("queries", "keys")}
        if TOKEN in each.get("loops", {}):
            each["loops"] = each["loops"] | {TOKEN: each["loops"][TOKEN] // count}
    return own


def _profiles(model: Document, count: int) -> Iterator[Document]:
    for profile in model["profiles"]:
        known = {
            each["micro_batch"]: each["costs"] for each in model["profiles"] if each["device"] == profile["device"]
        }
        size = Fraction(profile["micro_batch"], count)
        names = profile["costs"]
        yield profile | {"costs": {name: _row({b: row[name] for b, row in known.items()}, size) for name in names}}


def _row(known: dict[int, Document], size: Fraction) -> Document:
    sizes = sorted(known)
    below = [each for each in sizes if each <= size]
    low = below[-1] if below else sizes[0]
    high = next((each for each in sizes if each > low), low)

    def at(name: str) -> int:
        first, last = known[low].get(name, 0), known[high].get(name, 0)
        if name == "update" or size == low:
            return int(first)
        line = first + (size - low) * Fraction(last - first, high - low) if high > low else Fraction(0)
        return round(line if size > low else min(max(line, first * size / low), Fraction(first)))

    return {name: at(name) for name in known[low]}


def in_slices(random: Random, document: Document) -> None:
    """Make a question one about slices: operators on each token, attention in some layers, mostly nothing forbidden."""
    model, job, item = document["model"], document["job"], ITEM[document["model"]["dtype"]]
    tokens = random.choice((12, 12, 12, 4))
    teams = "teams" in job
    if teams or any(len(layer["inputs"]) > 1 for layer in model["layers"]):
        names = [layer["name"] for layer in model["layers"]]
        for before, layer in zip([None, *names], model["layers"], strict=False):
            layer["inputs"] = [before] if before else []
    if teams:
        model.pop("ties", None)
    model["operators"] = {}
    for layer in model["layers"]:
        copied = sum(tie.get("parameters", 0) for tie in model.get("ties", ()) if layer["name"] in tie["layers"][1:])
        weights = layer["parameters"] + copied
        model["operators"][layer["name"]] = _drawn(random, tokens, weights, item)
        layer["operators"] = layer["name"]
    job["slices"] = random.choice(([2], [1, 2], [1, 4], [4], [1, 3], [2, 4], [12], [1, 5]))
    if random.random() < 0.9:
        job.pop("intra_layer", None)
        if job.get("objective") == "bottleneck":
            job.pop("objective")
        if job.get("zero") and min(job["zero"]) > 1:
            job["zero"] = [0, *job["zero"]]
        kept = [name for name in job.get("schedules", ()) if name != "any"]
        if kept or "schedules" in job:
            job["schedules"] = random.choice(([*kept, "terapipe"], ["1f1b-slices"], [*SLICED[:2]], [], kept or []))
        if not job.get("schedules"):
            job.pop("schedules", None)
    own = [count for count in job["slices"] if tokens % count == 0]
    if random.random() < 0.95:
        job["slices"] = own or [gcd(tokens, 4)]
    for entry in () if teams else document["cluster"]["devices"].values():
        if random.random() < 0.4:
            entry["shard_overhead"] = random.choice((1, 3, 20, 100))
    model["slice_profiles"] = [*_slices_measured(random, model, tokens)]
    if max(job["slices"]) > 1:
        _in_halves(random, document)


def _slices_measured(random: Random, model: Document, tokens: int) -> Iterator[Document]:
    """Measured slices of one to three lengths for some kinds of device; the last mostly takes longer than the first."""
    for device in sorted({profile["device"] for profile in model["profiles"]}):
        lengths = random.sample(range(1, tokens), random.choice((0, 0, 1, 2, 3)))
        for profile, length in product(model["profiles"], lengths):
            if profile["device"] != device:
                continue
            ends: Document = {"first": {}, "last": {}}
            for name, row in profile["costs"].items():
                for end, least in (("first", 1), ("last", random.choice((1, 4)))):
                    drawn = ((figure, value * length * random.randint(least, 6)) for figure, value in row.items())
                    ends[end][name] = {
                        figure: value and max(value // tokens // 2, 1) + random.choice((0, 0, 1, 30))
                        for figure, value in drawn
                    }
            own = {"device": device, "micro_batch": profile["micro_batch"], "tokens": length}
            yield own | {"provenance": profile["provenance"]} | ends


def _in_halves(random: Random, document: Document) -> None:
    """Sometimes split backwards too, the parts of which mostly have times; by draws of its own."""
    own, job = Random(f"halves {random.getstate()[1][:3]}"), document["job"]
    if own.random() > 0.3:
        return
    if own.random() < 0.95:
        in_parts(own, document)
    if own.random() < 0.95 and job.get("objective") == "period":
        job.pop("objective")
        job.pop("staleness", None)
    whole = [name for name in job.get("schedules", ()) if name not in (*SLICED, "any")]
    job["schedules"] = own.choice(([*SLICED], ["zb-h1-slices"], [*whole, "1f1b-slices", "zb-h1-slices"]))


def in_parts(random: Random, document: Document) -> None:
    """Let the parts of all backwards have times."""
    for _, cost in _stated(document["model"]):
        if cost["backward"] and not cost["input_gradient"] + cost["weight_gradient"]:
            cost["input_gradient"] = random.randint(1, cost["backward"])


def _drawn(random: Random, tokens: int, weights: int, item: int) -> Document:
    """An operator on each token, sometimes with attention behind it; heads and features may be split."""
    axes, loops = ["token", "p"], {"token": tokens, "p": 12}
    own = [{"name": "w", "loops": ["p"], "size": weights}] if weights else []
    first = {
        "name": "m",
        "kind": "drawn",
        "loops": dict(loops),
        "reads": {"input": ["token", "q"]},
        "makes": list(axes),
        "output": item * random.choice((1, 4, 6)),
        "kept": random.random() < 0.7,
        "weights": own,
    } | {name: random.choice((2, 12, 40)) for name in FLOPS}
    graph = {"input": item * random.choice((0, 1, 4)), "operators": [first]}
    if random.random() < 0.6:
        looks = random.choice(("causal", "causal", "causal", "masked"))
        forbidden = random.random() < 0.03
        attention = {"queries": random.choice((0, 4)), "keys": item * random.choice((0, 1, 2, 8, 30)), "heads": 12}
        attention |= {} if forbidden else {looks: True}
        graph["operators"].append(
            {"name": "a", "kind": "drawn", "loops": dict(loops), "reads": {"m": list(axes)}, "makes": list(axes)}
            | {"output": item * random.choice((1, 4)), "kept": True, "weights": [], "attention": attention}
            | {"forward_flops": random.choice((3, 40, 150)), "input_gradient_flops": random.choice((5, 80, 300))}
        )
    return graph
