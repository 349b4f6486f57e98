"""A device's list as a word: what it does, without micro-batches.

::

    'f f F I W f i w'  on device 1 of 3, vee        1F0 1F1 4F0 4I0 4W0 1F2 1I0 1W0
     │   └ upper case: the far stage, 2 p − 1 − d, which micro-batches reach on their way back
     └ lower case: the near stage, d

Micro-batches of one kind and stage run in order, so the n-th forward is micro-batch n, the n-th B or I its backward,
and a W belongs to the earliest I that still lacks one.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator

from pipeplan.core.schedule import Action, Kind


def spell(word: Iterable[str], device: int, devices: int, micro_batches: int) -> Iterator[Action]:
    """The actions that a word means, but for those of micro-batches that there are not.

    Leaving micro-batches out of lists that end leaves lists that end, so a word may be that of a longer step.
    """
    forwards: Counter[int] = Counter()
    backwards: Counter[int] = Counter()
    lacking: dict[int, deque[int]] = defaultdict(deque)
    for letter in word:
        kind, stage = Kind(letter.upper()), device if letter.islower() else 2 * devices - 1 - device
        if kind is Kind.WEIGHT_GRADIENT:
            micro_batch = lacking[stage].popleft()
        else:
            counts = forwards if kind is Kind.FORWARD else backwards
            micro_batch = counts[stage]
            counts[stage] += 1
        if kind is Kind.INPUT_GRADIENT:
            lacking[stage].append(micro_batch)
        if micro_batch < micro_batches:
            yield Action(kind, stage, micro_batch)
