"""Small workloads in other projects' formats, made up for tests."""

from typing import Any

IMAGES = 8
IMAGE_BYTES = 4 * 3 * 224 * 224


def line(name: str, what: str, forward: float = 0, backward: float = 0, size: str = "100", parameters: int = 0) -> str:
    """One node of a graph.txt."""
    return (
        f"{name} -- {what} -- forward_compute_time={forward:.3f}, backward_compute_time={backward:.3f}, "
        f"activation_size={size}, parameter_size={parameters}.000"
    )


def edges(*pairs: tuple[int, int]) -> list[str]:
    """Edge lines between nodes of these numbers."""
    return [f"\tnode{a} -- node{b}" for a, b in pairs]


BRANCH = "\n".join(
    [
        line("node10", "Linear(in_features=8, out_features=2, bias=True)", 0.5, 0.7, "16.0", 64),
        line("node4", "ReLU(inplace)", 0.25, 0.125, "4096.000"),
        line("node2", "Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1))", 1.5, 3.001, "4096.000", 896),
        line("node1", "Input", 17.9, 0, f"{IMAGES * IMAGE_BYTES}.000"),
        line("node3", "Conv2d(3, 8, kernel_size=(1, 1), stride=(1, 1))", 1.0, 2.0, "[2048.0; 1024.0; 8]", 96),
        line("node5", "Add(inplace)", size="4096"),
        line("node7", "__getitem__(1)", size="1024"),
        line("node8", "__getitem__(0)", size="512"),
        *edges((5, 10), (4, 5), (1, 2), (1, 3), (2, 4), (3, 5), (3, 7), (7, 8), (2, 10)),
    ]
)
"""An input, two convolutions, a ReLU on one of them, their sum, a skip from the first to the end, two unread items."""


RATE = 2 * 10**9
"""Bytes per second of a link in the made-up workload: a cost of one millisecond moves two million bytes."""


def node(i: int, latency: float, *, backward: bool = False, color: int | None = None, **more: Any) -> dict[str, Any]:
    """One operator."""
    fields = {"id": i, "name": f"op{i}", "fpgaLatency": latency, "cpuLatency": 9, "isBackwardNode": int(backward)}
    fields |= {"supportedOnFpga": 1, "size": 10.0}
    return fields | ({} if color is None else {"colorClass": color}) | more


def edge(a: int, b: int, size: float) -> dict[str, Any]:
    """One tensor's transfer, priced at `RATE`."""
    return {"sourceId": a, "destId": b, "size": size, "cost": size / RATE * 1000}


def training() -> dict[str, Any]:
    """Three forward operators in a row with their mates, the last two of one colour, and a loss that goes back only."""
    forward = [node(1, 1.5, color=1), node(2, 2.0, color=2), node(3, 3.0, color=2)]
    backward = [node(6, 6.0, backward=True, color=2), node(7, 5.0, backward=True, color=1)]
    loss = [node(5, 0.5, backward=True, color=3)]
    ways = [edge(1, 2, 4e6), edge(2, 3, 8e6), edge(3, 5, 2e6), edge(5, 6, 2e6), edge(6, 7, 4e6)]
    return {"maxFPGAs": 4, "maxCPUs": 1, "maxSizePerFPGA": 1000.0, "nodes": forward + backward + loss, "edges": ways}


def variant(name: str, time: float, parameters: float = 100.0) -> dict[str, Any]:
    """One variant of a layer."""
    fields = {"id": name, "timePerSample": time, "parameterSize": parameters, "memoryUsageA": 7.0}
    return fields | {"memoryUsageB": 2 * parameters, "syncTimeFw": {}, "syncTimeBw": {}}


def workload() -> dict[str, Any]:
    """Three layers in a row, listed out of order, with other variants beside the plain one."""
    ways = {"1": [variant("vanilla", 0.003), variant("activation recomp", 0.004)], "2": [variant("vanilla", 0.002)]}
    return {
        "maxDevices": 3, "maxMemoryPerDevice": 1e9, "bandwidth": 25e9, "mbsInBatch": 8,
        "nodes": [
            {"id": 1, "name": "middle", "TMPCs": ways},
            {"id": 0, "name": "embed", "TMPCs": {"1": [variant("vanilla", 0.001, 0.0)]}},
            {"id": 2, "name": "head", "TMPCs": {"1": [variant("vanilla", 0.002)]}},
        ],
        "edges": [
            {"sourceId": 0, "destId": 1, "communicationCost": 64.0},
            {"sourceId": 1, "destId": 2, "communicationCost": 32.0},
        ],
    }  # fmt: skip
