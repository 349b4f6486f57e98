"""``pipeplan profile``: measure a torch model layer by layer."""

import sys
from argparse import ArgumentParser, Namespace

from pipeplan.cli.base import OUTPUT, Command, group, show, try_outputs


def configure(parser: ArgumentParser) -> None:
    """Arguments of ``profile``."""
    parser.add_argument(
        "workload", metavar="MODULE:FUNCTION", help="builds and returns the model; or hf:gpt2, of transformers"
    )
    parser.add_argument("--batch", required=True, metavar="N,N", help="micro-batch sizes to measure, like 1,2,4,8")
    parser.add_argument(
        "--slices",
        default="",
        metavar="N,N",
        help="also measure token slices, like 4,16: the first and the last of so many equal slices of each sequence",
    )
    parser.add_argument(
        "--input", metavar="SPEC", help="one sample of a plain module: float32:3x224x224, int64:128@50257"
    )
    parser.add_argument(
        "--front-end",
        choices=("auto", "chain", "graph"),
        default="auto",
        help="layers are modules that pass one tensor on (chain), or runs of torch.export's graph (graph); auto: the "
        "chain where the model is one",
    )
    parser.add_argument(
        "--group",
        action="append",
        default=[],
        metavar="PATTERN",
        help="a module whose path or class is like this is one layer: 'blocks.*', Bottleneck; may be given again",
    )
    parser.add_argument(
        "--device", default="cpu", help="cpu or cuda; meta: measure nothing, only count sizes and operations"
    )
    parser.add_argument("--name", help="of the model in plans (the workload's own, or its module's class)")
    parser.add_argument("--kind", metavar="NAME", help="name of the device kind that the numbers belong to")
    parser.add_argument("--threads", type=int, default=1, help="of a CPU worker (1)")
    parser.add_argument(
        "--crowd",
        type=int,
        default=1,
        metavar="N",
        help="CPU workers that are busy at once, this one included: as many as will train on this machine (1)",
    )
    parser.add_argument("--precision", choices=("bf16", "fp16"), help="measure under autocast")
    parser.add_argument("--repeats", type=int, default=7, help="of which the median is taken (7)")
    parser.add_argument("--optimizer", default="sgd", help="whose update is timed: sgd, momentum or adam")
    parser.add_argument("--seed", type=int, default=0)
    group(parser, OUTPUT).add_argument(
        "-o", "--output", metavar="MODEL", required=True, help="write the profiled model here; - prints it"
    )


def run(options: Namespace) -> int:
    """Measure the model and write its profile."""
    from pipeplan.core.choices import numbers
    from pipeplan.core.figures import MOST_SAMPLES
    from pipeplan.frontend.profile import profile_workload
    from pipeplan.io.model_file import write_model

    try_outputs(options, files=("output",))
    model = profile_workload(
        options.workload,
        input_spec=options.input,
        seed=options.seed,
        on_progress=lambda text: print(f"profiling  {text}", file=sys.stderr),
        on_refusal=lambda text: print(f"pipeplan: note: {text}", file=sys.stderr),
        micro_batches=numbers(options.batch, "--batch", "micro-batches (sizes of samples)", 1, MOST_SAMPLES),
        repeats=options.repeats,
        optimizer=options.optimizer,
        device=options.device,
        device_name=options.kind,
        threads=options.threads,
        crowd=options.crowd,
        group=options.group,
        front_end=options.front_end,
        precision=options.precision,
        slices=numbers(options.slices, "--slices", "slices (token slices of a sequence)", 1, MOST_SAMPLES)
        if options.slices
        else (),
        name=options.name,
    )
    write_model(model, options.output)
    text = f"{model.name}: {len(model.layers)} layers, {len(model.profiles)} profiles, written to {options.output}"
    show(text, options, "output")
    return 0


command = Command(
    "profile",
    "measure a torch model layer by layer",
    configure,
    run,
    "my_project:build_model --batch 1,2,4 -o model.yaml",
)
