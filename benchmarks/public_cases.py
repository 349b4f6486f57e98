"""Public workloads under their authors' own rules: values proved here, beside the published figures.

The columns of other projects are not measured here. They are figures known of the projects' own programs on these
inputs: the optimum or the value that the program reports, and processor seconds if known. The public data must lie
beside the repository; cases without data are left out.
"""

from collections.abc import Iterator
from pathlib import Path

from pipeplan.io.published import Published, dnn_partitioning, pipedream, piper
from pipeplan_formulations import graph
from pipeplan_formulations.common.report import Limits

DATA = Path(__file__).resolve().parent.parent.parent / "shared" / "data"
GIB = 2**30
SECONDS = 60
DNN = (
    ("bert24_training", False, None, "optimum 41.7458 in 0.0 s, expert 49.4"),
    ("gnmt_training", False, None, "optimum 107.0044 in 20.8 s, expert 137.2"),
    ("resnet50_training", False, None, "optimum 78.6318 in 0.15 s, expert 112.1"),
    ("bert_l-3_inference", False, None, "optimum 27.9186 in 0.7 s"),
    ("bert_l-3_training", False, None, "optimum 65.3031 in 3.7 s"),
    ("gnmt_training", True, 4, "chain programme on one order 187.9"),
    ("gnmt_training", True, 8, ""),
    ("resnet50_training", True, 6, "chain programme on one order 605.9"),
    ("bert24_training", True, 8, ""),
)
PIPEDREAM = {
    "vgg16": (205.52, 103.83, 56.53, 411.04, 411.04),
    "alexnet": (34.22, 18.87, 18.87, 66.45, 66.45),
    "gnmt": (25.87, 19.29, 19.29, 25.87, 19.29),
    "resnet18": (100.00, 50.78, 25.69, 201.60, 201.60),
    "resnet50": (162.88, 92.01, 47.80, 258.15, 258.15),
}
BERT32 = (
    (8, 80, "122.007"),
    (8, 8, "165.856, equal split 230.978"),
    (8, 2, "infeasible"),
    (32, 8, "41.5155, equal split 51.3511"),
    (64, 8, "20.2006, equal split 25.7245"),
    (128, 8, "10.1209, equal split 12.9113"),
)


def cases() -> Iterator[tuple[str, Published, str]]:
    """Label, problem, and known figures of other projects, in milliseconds."""
    for name, corrected, count, known in DNN:
        path = DATA / "dnn-partitioning" / f"{name}.json"
        if path.exists():
            case = dnn_partitioning(path, corrected=corrected, accelerators=count, processors=0 if corrected else None)
            unit = f", unit corrected, {count} accelerators" if corrected else ""
            yield f"dnn-partitioning {name}{unit}", case, known
    for name, values in PIPEDREAM.items():
        path = DATA / "pipedream" / f"{name}.graph.txt"
        runs = zip((4, 8, 16, 4, 8), (True,) * 3 + (False,) * 2, values, strict=True)
        for devices, flat, value in runs if path.exists() else ():
            label = f"PipeDream {name}, {devices} devices, {'flat' if flat else 'straight'}"
            yield label, pipedream(path, devices, replicate=flat), f"its optimiser {value}"
    path = DATA / "piper" / "bert32a100.json"
    for devices, memory, known in BERT32 if path.exists() else ():
        case = piper(path, devices=devices, memory=memory * GIB, bandwidth=25 * GIB)
        yield f"Piper BERT-32, {devices} x {memory} GiB", case, known


def main() -> None:
    """Print the table."""
    print(f"{'case':58} {'groups':>6} {'value ms':>11} {'bound ms':>11} {'seconds':>8} {'by':>6}  status; peers (ms)")
    for label, case, known in cases():
        report = graph.solve(case.problem, Limits(SECONDS))
        unit = case.unit * 1e3
        value = "-" if report.objective is None else f"{report.objective * unit:.4f}"
        bound = "-" if report.objective is None else f"{report.bound * unit:.4f}"
        print(
            f"{label:58} {case.problem.groups:6} {value:>11} {bound:>11} {report.wall:8.2f} {report.backend:>6}  "
            f"{report.status}; {known}",
            flush=True,
        )


if __name__ == "__main__":
    main()
