"""Buckets: gradients of neighbouring layers that are summed together while the last backward of a stage still runs.

The backward goes from the stage's last layer to its first. A bucket is ready when the gradients of all its layers are;
the collectives run one after another beside the backward, and each pays a base time::

    backward    │ layer 3 │   layer 2   │ layer 1 │ layer 0 │
    sums                                ├── 3, 2 ───┤       ├─ 1, 0 ─┤
                                                            └ exposed┘

What is left when the backward ends is *exposed*: the step is longer by that time only.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

from pipeplan.core.pipeline import Bucket


def given_buckets(times: Sequence[int], hides: Sequence[int], base: int, sizes: Sequence[int]) -> tuple[Bucket, ...]:
    """Return buckets of these numbers of layers, the last layers first; otherwise as `best_buckets`."""
    ahead = list(accumulate(hides, initial=0))
    found, end = [], len(times)
    for size in sizes:
        own = range(end - size, end)
        first = next((i for i in own if times[i]), None)
        if first is not None:
            found.append(Bucket(size, ahead[first], base + sum(times[i] for i in own)))
        end -= size
    return tuple(found)


@lru_cache(maxsize=2**14)
def best_buckets(times: tuple[int, ...], hides: tuple[int, ...], base: int) -> tuple[Bucket, ...]:
    """Return the buckets of a stage whose sums end first.

    Parameters
    ----------
    times : tuple of int
        Nanoseconds to sum each layer's gradients, without the base; 0 for a layer without any.
    hides : tuple of int
        Nanoseconds of each layer in the last backward.
    base : int
        Nanoseconds that each bucket takes in addition.

    Notes
    -----
    Take the layers with gradients only. D(k) is the earliest end of the sums of layers k, k + 1, … if a bucket begins
    with layer k, and r_k the time at which its gradients are there. A bucket k … j − 1 begins at max(r_k, D(j)), so
    D(k) = min over j of max(r_k, D(j)) + base + p_k + … + p_{j−1}. Another layer takes its own time at least:
    D(j) ≥ D(j + 1) + p_j. So among the j with D(j) ≤ r_k the least is best, and among the others, which are all
    before it, the largest. r_k rises as k falls, so one pass with a pointer finds both.
    """
    layers = [i for i, time in enumerate(times) if time]
    ahead = list(accumulate(hides, initial=0))
    total = list(accumulate((times[i] for i in layers), initial=0))
    count = len(layers)
    end, after = [0] * count, [count] * count
    first = count  # the least j with D(j) ≤ r_k; behind the last layer nothing is left to sum
    for k in range(count - 1, -1, -1):
        release = -ahead[layers[k]]
        while first - 1 > k and end[first - 1] <= release:
            first -= 1
        end[k], after[k] = release + base + total[first] - total[k], first
        if first - 1 > k:
            later = end[first - 1] + base + total[first - 1] - total[k]
            if later < end[k]:
                end[k], after[k] = later, first - 1
    begins = [0] if count else []
    while begins and after[begins[-1]] < count:
        begins.append(after[begins[-1]])
    edges = [*(layers[k] for k in begins), len(times)]
    edges[0] = 0  # layers without gradients join the layers before them, those at the front the ones behind
    found = [
        Bucket(b - a, ahead[layers[k]], base + total[after[k]] - total[k])
        for k, a, b in zip(begins, edges[:-1], edges[1:], strict=True)
    ]
    return tuple(reversed(found))
