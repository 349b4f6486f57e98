"""Buckets of a stage's gradients, which leave for their sums while the stage's last backward still runs.

::

    last backward   │ layer 3 │ layer 2 │ layer 1 │ layer 0 │ R
    sums                                ├── 3, 2 ────┤      ├─ 1, 0 ─┤

A bucket leaves when the gradients of all its parameters are complete and all buckets before it have left. So replicas
begin their sums in one order, even if gradients are complete in different orders. R begins the rest and waits.

A rank with several stages, and so its replicas, sums those of its last stage first. A bucket of another stage then also
waits until all buckets of the stages ahead have left::

    last backwards  │ stage 5 │ … │ stage 1 │ R of both
    sums                ├─ 5 ─┤       ├─ 1 ─┤

With an ``order`` of a plan, buckets are cut into chunks, and those of front layers overtake. R begins the rest, and the
next forward of each layer waits for its own bucket (`pipeplan_executor.optim.front_first`)::

    last backward   │ layer 2 │ layer 1 │ layer 0 │ R     F: layer 0 │ layer 1 │ layer 2
    sums                      ├─ 2 ─┼ 1 ┼ 1 ┼─ 0 ─┼─ 0 ─┼─ 1 ─┼─ 2 ─┤
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn

from pipeplan.core.errors import PlanError
from pipeplan.frontend.split_backward.queue import Work, run_delayed, targets
from pipeplan_executor.optim.flat import Flat
from pipeplan_executor.optim.lossy.sums import BoundedLoss
from pipeplan_executor.optim.reduction import begins, first_layers
from pipeplan_executor.stages.stage_module import Pending


class Buckets:
    """Buckets of one stage on this replica, in the order in which they leave.

    A parameter of several layers belongs to the first of them, whose gradient comes last. A parameter without a
    gradient in the last backward keeps its bucket, and those after it, until R.

    Parameters
    ----------
    layers : sequence of torch.nn.Module
        Layers of the stage.
    sizes : sequence of int
        Number of layers in each bucket; the first bucket has the stage's last layers.
    parts : sequence of Flat
        Parameters of these layers that are summed over the replicas only.
    last : int or None
        Micro-batch whose backward ends the stage's backwards on this replica; None if it has no micro-batch, or others
        add to its gradients later: then all leave at R.
    last_slice : int
        Its slice.
    order : sequence of int, optional
        The bucket of each chunk, in the order in which chunks leave: a bucket that is there k times is cut into k
        chunks of nearly equal length, and every bucket with parameters is there. By default all buckets leave whole, in
        their own order.
    losses : sequence of BoundedLoss
        With an order, what the sums of each bucket may leave out; none for nothing.
    ahead : Buckets, optional
        Those of another stage on this rank, which leave before all of these.

    Attributes
    ----------
    firsts : list of int
        First layer of each bucket.
    ordered : bool
        There is such an order.
    begun : list of list of Pending
        Sums of each bucket that have begun in this step, with an order.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        sizes: Sequence[int],
        parts: Sequence[Flat],
        last: int | None,
        last_slice: int = 0,
        order: Sequence[int] = (),
        losses: Sequence[BoundedLoss] = (),
        ahead: "Buckets | None" = None,
    ) -> None:
        self._losses = losses
        self._ahead = ahead
        self.last, self.last_slice = last, last_slice
        self._parts = parts
        self.firsts = firsts = begins(sizes, len(layers))
        of_layer = [next(i for i, first in enumerate(firsts) if first <= layer) for layer in range(len(layers))]
        home = {parameter: of_layer[layer] for parameter, layer in first_layers(layers).items()}
        self._home = {id(p): home[id(p)] for part in parts for _, p in part.named}
        self._starts = [
            [
                next((edge for (_, p), edge in zip(part.named, part.edges, strict=False) if home[id(p)] <= i), None)
                for part in parts
            ]
            for i in range(len(sizes))
        ]
        self._missing: list[set[int]] = []
        self._next = 0
        # chunks in the order in which they leave: the bucket, which of its chunks it is
        self.ordered = bool(order)
        self._many, seen = Counter(order), Counter[int]()
        self._chunks = []
        for bucket in order or range(len(sizes)):
            self._chunks.append((bucket, seen[bucket]))
            seen[bucket] += 1
        self._first = {bucket: place for place, (bucket, number) in enumerate(self._chunks) if not number}
        self.begun: list[list[Pending]] = []

    def ranges(self, bucket: int) -> Iterator[tuple[Flat, int, int]]:
        """Yield the parts that have gradients of a bucket, and where these begin and end in each."""
        for place, (part, start) in enumerate(zip(self._parts, self._starts[bucket], strict=True)):
            behind = self._starts[bucket - 1][place] if bucket else None
            if start is not None:
                yield part, start, part.edges[-1] if behind is None else behind

    def bucket_of(self, parameter: Tensor) -> int:
        """Return the bucket of a parameter."""
        return self._home[id(parameter)]

    def begin(self) -> None:
        """Prepare a step: no gradient is complete."""
        self._next, self._missing = 0, [set() for _ in self._starts]
        self.begun = [[] for _ in self._starts]
        for parameter, bucket in self._home.items():
            self._missing[bucket].add(parameter)

    @contextmanager
    def leaving(self) -> Iterator[None]:
        """Context for the last backward, if it is joined."""
        handles = [p.register_post_accumulate_grad_hook(self._complete) for part in self._parts for _, p in part.named]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def run(self, works: Sequence[Work]) -> None:
        """Run the delayed weight gradients of the last backward, if it is split."""
        left = Counter(id(parameter) for work in works for parameter in targets(work))
        for part in self._parts:
            for _, parameter in part.named:
                if id(parameter) not in left:
                    self._complete(parameter)
        for work in works:
            run_delayed([work])
            for parameter in targets(work):
                left[id(parameter)] -= 1
                if not left[id(parameter)] and id(parameter) in self._home:
                    self._complete(parameter)

    def finish(self) -> None:
        """Begin the sums of all buckets that have not left, those ahead first."""
        if self._ahead is not None:
            self._ahead.finish()
        while self._next < len(self._chunks):
            self._leave()

    def _complete(self, parameter: Tensor) -> None:
        bucket = self._home[id(parameter)]
        if self._first[bucket] < self._next:
            raise PlanError(
                f"a parameter of shape {tuple(parameter.shape)} got a gradient after its bucket had left: a backward "
                "accumulates it several times, as torch's checkpoints with use_reentrant=True do. Use "
                "use_reentrant=False, or a plan without buckets"
            )
        self._missing[bucket].discard(id(parameter))
        self._advance()

    def _advance(self) -> bool:
        """Begin the sums of buckets up to the first one that is not complete; return whether all have left."""
        if self._ahead is not None and not self._ahead._advance():
            return False
        while self._next < len(self._chunks) and not self._missing[self._chunks[self._next][0]]:
            self._leave()
        return self._next == len(self._chunks)

    def _leave(self) -> None:
        bucket, number = self._chunks[self._next]
        self._next += 1
        many = self._many[bucket]
        for part, start, end in self.ranges(bucket):
            if not self.ordered:
                part.leave(start)
                continue
            low, high = (start + (end - start) * edge // many for edge in (number, number + 1))
            self.begun[bucket] += part.leave_between(low, high, self._losses[bucket] if self._losses else None)
