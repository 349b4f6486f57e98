"""Workers for the tests of losses on logits that are split along their classes, on teams of two processes."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.distributed.exactness import worst_error
from helpers.distributed.models import blank_model, decoder, tiny_decoder, tiny_tied
from helpers.plans import in_teams, plan_for
from helpers.quick import thinned
from helpers.runnable_schedules import halved
from pipeplan.frontend.workload import Workload
from pipeplan.schedules import FAMILIES
from pipeplan_executor.stages.source import draw
from pipeplan_executor.train.pipeline import Pipeline
from pipeplan_executor.zoo.decoder import SHARDS

HEAD = {**SHARDS, "head.weight": 0}
TIED = {**SHARDS, "embedding.tokens.weight": 0}
ROWS = {**SHARDS, "head.weight": 1}
PADDING = 3


def _with_loss(loss: Callable[[Tensor, Tensor], Tensor], weight: Callable[[Tensor], float] | None = None) -> Workload:
    return replace(tiny_decoder(), loss=loss, weight=weight)


def _cross_entropy(options: dict[str, object], logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), **options)


def ignoring() -> Workload:
    """A mean over the words that are no padding; there are fewer of them in some micro-batches."""

    def count(targets: Tensor) -> float:
        return float((targets != PADDING).sum())

    return _with_loss(partial(_cross_entropy, {"ignore_index": PADDING}), count)


def weighted() -> Workload:
    """A sum with weights of classes, as a mean over words."""

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        own = torch.arange(1, logits.shape[-1] + 1, dtype=logits.dtype, device=logits.device) / logits.shape[-1]
        return _cross_entropy({"weight": own, "reduction": "sum"}, logits, targets) / targets.numel()

    return _with_loss(loss)


def masked() -> Workload:
    """The losses of single words, of which all but the first two of each sample count."""

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        each = _cross_entropy({"reduction": "none"}, logits, targets).view_as(targets)
        return each[:, 2:].mean()

    return _with_loss(loss)


def shifted() -> Workload:
    """Each word predicts the target of the next one, in float32 at least, as in causal language models."""

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        higher = logits[:, :-1].contiguous().to(torch.promote_types(logits.dtype, torch.float32))
        return _cross_entropy({}, higher, targets[:, 1:])

    return _with_loss(loss)


def smoothed() -> Workload:
    """Smoothed labels, and a penalty on the logits: what has no rule on parts is gathered."""

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        penalty = torch.logsumexp(logits, -1).square().mean()
        return _cross_entropy({"label_smoothing": 0.1}, logits, targets) + 1e-2 * penalty

    return _with_loss(loss)


def reused() -> Workload:
    """Logarithms of probabilities that two terms read: their gradient's row sums are not those of one of them."""

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        logs = logits.flatten(0, 1).log_softmax(-1)
        return functional.nll_loss(logs, targets.flatten()) + 0.1 * logs.square().mean()

    return _with_loss(loss)


def dropping() -> Workload:
    """Logits of which some are left out at random."""
    return _with_loss(lambda logits, targets: _cross_entropy({}, functional.dropout(logits, 0.1), targets))


def shaken() -> Workload:
    """The loss times a number that Python draws."""
    return _with_loss(lambda logits, targets: _cross_entropy({}, logits, targets) * random.uniform(0.9, 1.1))


@dataclass(frozen=True)
class Case:
    """A model, what its teams split, and how its plan runs it."""

    build: Callable[[], Workload]
    shards: dict[str, int]
    tokens: bool = False
    split: bool = False
    again: bool = False
    replicas: int = 1


EVERY = {
    "head by columns": Case(tiny_decoder, HEAD),
    "recomputed": Case(tiny_decoder, HEAD, again=True),
    "split backwards": Case(tiny_decoder, HEAD, split=True),
    "tokens": Case(tiny_decoder, HEAD, tokens=True),
    "tokens, recomputed, split backwards": Case(tiny_decoder, HEAD, tokens=True, split=True, again=True),
    "tied": Case(tiny_tied, TIED),
    "tied, tokens": Case(tiny_tied, TIED, tokens=True),
    "head by rows": Case(tiny_decoder, ROWS),
    "ignoring": Case(ignoring, HEAD),
    "weighted": Case(weighted, HEAD, tokens=True),
    "masked": Case(masked, HEAD),
    "shifted": Case(shifted, HEAD, tokens=True),
    "smoothed": Case(smoothed, HEAD),
    "reused": Case(reused, HEAD),
}
CASES = thinned(EVERY, 3)


def errors() -> dict[str, float]:
    """The worst error of each case, over as many stages as there are teams."""
    return {name: _error(case) for name, case in CASES.items()}


def _error(case: Case) -> float:
    module, layers, held = blank_model(case.build)
    schedule = FAMILIES["1f1b-sno"].write((1,) * (dist.get_world_size() // 2), 3)
    edges = (0, *range(2, 1 + schedule.stages), len(layers))
    lists = halved(schedule) if case.split else schedule
    plan = plan_for(module, layers, edges, lists, 2, recompute=layers if case.again else (), held=held)
    tokens = layers[:-1] if case.tokens else ()
    return worst_error(in_teams(plan, module, case.shards, sequence=tokens, vocabulary=True), case.build, 3)


def small() -> Workload:
    """A decoder of one block."""
    return decoder(blocks=1, width=16, heads=2, vocabulary=50, length=6, hidden=32)


def many() -> Workload:
    """The same with a number of words that four processes can share out, some of which are ignored."""
    build = decoder(blocks=1, width=16, heads=2, vocabulary=48, length=6, hidden=32)
    return replace(build, loss=partial(_cross_entropy, {"ignore_index": PADDING, "reduction": "sum"}))


class Exchanged(TorchDispatchMode):
    """Bytes of every all-reduce inside, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: object, types: object, args: tuple = (), kwargs: dict | None = None) -> object:
        if "all_reduce" in str(func):
            self.sizes.append(args[0].nbytes)
        return func(*args, **(kwargs or {}))


def sent() -> dict[str, dict[str, int]]:
    """Collectives of a micro-batch with only the head split: forward, and with backward; with a whole loss, too."""
    module, layers, held = blank_model(small)
    ranks = dist.get_world_size() // 2
    plan = plan_for(module, layers, (0, len(layers)), FAMILIES["gpipe"].write((ranks,), ranks), 2, held=held)
    found = {}
    for vocabulary in (False, True):
        own = in_teams(plan, module, {"head.weight": 0}, vocabulary=vocabulary)
        pipeline = Pipeline(own, small)
        batch = draw(pipeline.workload, own.batch, 3)
        with CommDebugMode() as forward:
            pipeline.evaluate(*batch)
        with CommDebugMode() as both:
            pipeline.compute(*batch, update=False)
        found |= {f"forward {vocabulary}": _counts(forward), f"both {vocabulary}": _counts(both)}
    with Exchanged() as exchanged:
        pipeline.compute(*batch, update=False)
    return found | {"bytes": exchanged.sizes}


def _counts(seen: CommDebugMode) -> dict[str, int]:
    """Collectives, by kind."""
    counts = {str(operation): count for operation, count in seen.get_comm_counts().items()}
    return {key.rpartition(".")[2]: count for key, count in counts.items() if "functional" in key}
