"""A second scorer of the networks of `benchmarks/graphs.py`, node by node, from the sentences of that file."""

from math import ceil


def score(net, stages, devices: int, memory: int, micro_batches: int, bandwidth: int) -> int:
    """Nanoseconds per micro-batch of the busiest stage, under the rule ``apart``; every requirement is asserted.

    ``stages``: for each stage its replicas, its nodes and the nodes of these that are recomputed, front to back.
    """
    home = {}
    for number, (_, nodes, _) in enumerate(stages):
        for node in nodes:
            assert node not in home
            home[node] = number
    assert len(home) == len(net.reads)
    assert sum(replicas for replicas, _, _ in stages) <= devices
    for node, reads in enumerate(net.reads):
        assert all(home[source] <= home[node] for source in reads)
    worst = 0
    for number, (replicas, nodes, again) in enumerate(stages):
        total = 0
        for node in nodes:
            total += micro_batches * (net.forward[node] + net.backward[node])
            if node in again:
                total += micro_batches * net.forward[node]
            # All replicas wait for the ring: r times its share of 2 (r − 1) / r of the gradients.
            total += replicas * (2 * (replicas - 1) * net.parameters[node] * 10**9 // (replicas * bandwidth))
        arriving = 0
        for node, reads in enumerate(net.reads):
            readers = [home[other] for other, sources in enumerate(net.reads) if node in sources]
            here = home[node] == number
            tensor = micro_batches * net.output[node] * 10**9 // bandwidth
            if here and any(other != number for other in readers):
                total += tensor
            if not here and number in readers:
                total += tensor
                arriving += net.output[node]
            if reads:
                gradient = micro_batches * max(net.output[source] for source in reads) * 10**9 // bandwidth
                makers = [home[source] for source in reads]
                if here and any(other != number for other in makers):
                    total += gradient
                if not here and number in makers:
                    total += gradient
        worst = max(worst, ceil(total / (replicas * micro_batches)))
        flying = ceil(sum(own for own, _, _ in stages[number:]) / replicas)
        each = arriving + sum(net.output[node] if node in again else net.saved[node] for node in nodes)
        need = sum(4 * net.parameters[node] for node in nodes) + flying * each
        need += max((net.saved[node] for node in again), default=0)
        assert need <= memory, f"stage {number} needs {need} of {memory}"
    return worst
