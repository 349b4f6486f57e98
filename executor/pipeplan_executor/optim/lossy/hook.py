"""`bounded_loss_hook`: sums with bounded loss in torch's `DistributedDataParallel`, without a plan."""

from itertools import accumulate

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from pipeplan.core.errors import InputError
from pipeplan_executor.optim.lossy.sums import BoundedLoss, Kept
from pipeplan_executor.stages.messages import messages


def bounded_loss_hook(state: BoundedLoss, bucket: dist.GradBucket) -> Future[Tensor]:
    """Average a bucket of gradients with bounded loss, while the backward goes on.

    A communication hook of torch's ``DistributedDataParallel``. Messages go over gloo, one bucket after the other, in a
    thread. Gradients on a GPU are copied to main memory and back.

    Parameters
    ----------
    state : BoundedLoss
        One per model, with the same arguments on all ranks.
    bucket : torch.distributed.GradBucket

    Returns
    -------
    torch.futures.Future of Tensor
        The bucket's mean, the same on all ranks. It raises RuntimeError if a rank is gone, or stands still longer than
        the ``timeout`` of the process group: that is an error, not a loss.

    Raises
    ------
    InputError
        If the format of the gradients or the process group has no bounded loss.

    Examples
    --------
    >>> import torch, torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # with each rank's own number
    >>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
    >>> model.register_comm_hook(pipeplan_executor.BoundedLoss(0.02), pipeplan_executor.bounded_loss_hook)
    >>> model(torch.ones(3, 4)).sum().backward()
    >>> model.module.bias.grad
    tensor([3., 3.])
    >>> dist.destroy_process_group()
    """
    group = state.group or dist.group.WORLD
    assert group is not None
    values = bucket.buffer()
    state.check(values.dtype)
    if dist.get_backend(group) == "nccl":
        raise InputError(
            "bounded loss needs messages whose length is known only when they are sent, which nccl has not: give "
            'BoundedLoss(…, group=torch.distributed.new_group(backend="gloo"))'
        )
    kept, on_host = _kept(state, bucket), values.cpu()
    ended: Future[list[Exception]] = Future(devices=[] if on_host is values else [values.device])

    def average() -> None:
        failed = []
        try:
            state.mean(on_host, kept, group)
            if on_host is not values:
                values.copy_(on_host)
        except Exception as error:
            failed.append(error)
        ended.set_result(failed)

    def result(done: Future[list[Exception]]) -> Tensor:
        for error in done.value():
            raise error
        return values

    messages(group).ask(average)
    return ended.then(result)


def _kept(state: BoundedLoss, bucket: dist.GradBucket) -> Tensor | None:
    """Return what was left out of a bucket's gradients; after the first step torch puts them into other buckets."""
    parameters, sizes = tuple(bucket.parameters()), [gradient.numel() for gradient in bucket.gradients()]
    before = [state.kept.get(parameter) for parameter in parameters]
    if before[0] is not None and [*map(id, before[0].parameters)] == [*map(id, parameters)]:
        return before[0].numbers
    numbers = state.room(sum(sizes), bucket.buffer())
    if numbers is None:
        return None
    for parameter, size, start, old in zip(parameters, sizes, accumulate(sizes, initial=0), before, strict=False):
        if old is not None:
            numbers[start : start + size] = old.numbers[old.start : old.start + size]
        state.kept[parameter] = Kept(parameters, numbers, start)
    return numbers
