"""Cost of the split backward relative to the joined one, with pipeplan's split and with torch's own.

Each model runs without its first layer, like the last stage of a pipeline of two: one thread, existing gradients,
medians over rounds in which all variants take turns, processor time of the thread. Torch's split is the one of
``torch.distributed.pipelining``; pipeplan's is `frontend.split_backward`. The bytes are those of a micro-batch, kept by
forward, and kept by pipeplan between I and W.
"""

import copy
import gc
import time
from collections import defaultdict
from collections.abc import Iterable
from statistics import median

import torch
from torch import Tensor, nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from pipeplan.frontend.profile.passes import Feed
from pipeplan.frontend.profile.saved import saved_bytes
from pipeplan.frontend.split_backward.attach import attach
from pipeplan.frontend.split_backward.queue import WeightQueue, Work, run_delayed
from pipeplan.frontend.workload import Workload
from pipeplan_executor.zoo import decoder, resnet50, vgg16

CASES = (("decoder", decoder, 4), ("vgg16", vgg16, 2), ("resnet50", resnet50, 4))
"""Name, workload, micro-batch."""
Times = dict[str, list[int]]
ROUNDS, WARMUP = 9, 2


def main() -> None:
    """Print a row for each model."""
    torch.set_num_threads(1)
    print("ms                  F      B |  torch's split: I      W  (I+W)/B |  pipeplan's: F      I      W  (I+W)/B")
    for name, build, size in CASES:
        t, kept, between = measured(build(), size)
        print(
            f"{name:12} x {size:<2}{t['F']:7.1f} {t['B']:6.1f} | {t['torch I']:16.1f} {t['torch W']:6.1f} "
            f"{(t['torch I'] + t['torch W']) / t['B']:8.2f} | {t['F split']:14.1f} {t['I']:6.1f} {t['W']:6.1f} "
            f"{(t['I'] + t['W']) / t['B']:8.2f}    kept {kept / 2**20:.1f} MiB from F, {between / 2**20:.1f} from I",
            flush=True,
        )


def measured(workload: Workload, size: int) -> tuple[dict[str, float], int, int]:
    """Milliseconds of each part, and bytes kept from F on and between I and W."""
    inputs, targets = workload.draw(size, torch.Generator().manual_seed(0))
    first, *rest = workload.module.children()
    with torch.no_grad():
        received = first(inputs)
    plain, waiting, queue = nn.Sequential(*rest), nn.Sequential(*copy.deepcopy(rest)), WeightQueue()
    attach(queue, [waiting])
    for parameter in (*plain.parameters(), *waiting.parameters()):
        parameter.grad = torch.zeros_like(parameter)
    times: dict[str, list[int]] = defaultdict(list)
    between = 0
    gc.disable()
    for number in range(WARMUP + ROUNDS):
        if number == WARMUP:
            times.clear()
        _joined(plain, workload, received, targets, times)
        _torchs(plain, workload, received, targets, times)
        between = _pipeplans(waiting, queue, workload, received, targets, times)
    gc.enable()
    kept = saved_bytes(list(plain), Feed((received,), (True,), workload.loss, targets))
    return {what: median(row) / 1e6 for what, row in times.items()}, sum(kept.saved), between


def _joined(module: nn.Module, workload: Workload, received: Tensor, targets: Tensor, times: Times) -> None:
    start = time.thread_time_ns()
    loss = workload.loss(module(received.detach().requires_grad_()), targets)
    middle = time.thread_time_ns()
    loss.backward()
    times["F"].append(middle - start)
    times["B"].append(time.thread_time_ns() - middle)


def _torchs(module: nn.Module, workload: Workload, received: Tensor, targets: Tensor, times: Times) -> None:
    leaf, parameters = received.detach().requires_grad_(), list(module.parameters())
    loss = workload.loss(module(leaf), targets)
    start = time.thread_time_ns()
    _, groups = stage_backward_input([loss], None, [leaf], iter(parameters))
    middle = time.thread_time_ns()
    stage_backward_weight(iter(parameters), groups)
    times["torch I"].append(middle - start)
    times["torch W"].append(time.thread_time_ns() - middle)


def _pipeplans(
    module: nn.Module, queue: WeightQueue, workload: Workload, received: Tensor, targets: Tensor, times: Times
) -> int:
    start = time.thread_time_ns()
    with queue.opened():
        loss = workload.loss(module(received.detach().requires_grad_()), targets)
    middle = time.thread_time_ns()
    with queue.opened():
        loss.backward()
    after = time.thread_time_ns()
    works = queue.take()
    between = bytes_kept(works)
    begin = time.thread_time_ns()
    run_delayed(works)
    times["W"].append(time.thread_time_ns() - begin)
    times["F split"].append(middle - start)
    times["I"].append(after - middle)
    return between


def bytes_kept(works: Iterable[Work]) -> int:
    """Bytes of storages kept between I and W, without parameters."""
    found: dict[int, int] = {}
    for work in works:
        for value in work.args:
            if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
                storage = value.untyped_storage()
                found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())


if __name__ == "__main__":
    main()
