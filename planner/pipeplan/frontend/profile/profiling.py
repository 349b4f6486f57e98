"""`profile` measures a torch module in this process, `profile_workload` in one with a local worker's allocator.

::

    this process ──build, arguments──▶ measuring process ──fork──▶ background workers
                 ◀──progress, model, error──
"""

import multiprocessing
import os
import pickle
import signal
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from multiprocessing.connection import Connection
from typing import Any, Literal

from pipeplan.core.choices import known, names, numbers
from pipeplan.core.errors import InputError, PipeplanError
from pipeplan.core.figures import MOST_SAMPLES, shown, whole
from pipeplan.core.model import Model
from pipeplan.core.options import require, require_callback
from pipeplan.core.wording import hint
from pipeplan.frontend.profile.allocator import allocator_settings, inherited
from pipeplan.frontend.workload import Workload, load_workload

DEVICES = ("cpu", "cuda", "meta")
HOW = (
    *("micro_batches", "repeats", "warmup", "optimizer", "device", "device_name", "threads", "crowd", "name", "group"),
    *("front_end", "precision", "slices"),
)
"""Settings of a measurement that `profile_workload` takes too."""


def profile(
    module: Any,
    example_inputs: Any = None,
    *,
    micro_batches: Sequence[int] = (1, 2, 4, 8),
    repeats: int = 7,
    warmup: int = 2,
    optimizer: str = "sgd",
    device: str = "cpu",
    device_name: str | None = None,
    threads: int = 1,
    crowd: int = 1,
    name: str | None = None,
    loss: Callable[[Any, Any], Any] | None = None,
    targets: Any = None,
    weight: Callable[[Any], float] | None = None,
    group: Sequence[str] = (),
    front_end: Literal["auto", "chain", "graph"] = "auto",
    precision: Literal["bf16", "fp16"] | None = None,
    slices: Sequence[int] = (),
    on_progress: Callable[[str], None] | None = None,
    on_refusal: Callable[[str], None] | None = None,
) -> Model:
    """Measure the costs of every layer of a torch module on this machine, in this process.

    On a CPU times depend on the allocator settings of the process, which the provenance records; `profile_workload`
    measures in a process with the settings of a local worker.

    The layers run as in a pipeline stage: all forward in order, keeping the tensors that backward needs, then backward
    in reverse order into existing gradients. So caches are as cold, and memory as fresh, as in training. The backward
    pass is joined, and split as a pipeline splits it (see `pipeplan.frontend.split_backward`).

    A module on the measured device is measured in place, and its parameters, buffers and gradients are restored
    afterwards. From any other device, ``meta`` included, each layer is moved to the measured device alone (parameters
    without values are drawn with ``reset_parameters``) and dropped before the next one. So the whole module never
    exists there.

    Parameters
    ----------
    module : torch.nn.Module or str
        The module to split into layers (see `pipeplan.frontend.capture`). It is neither copied nor changed. Or the
        name of a workload, ``'module:function'`` or ``'hf:gpt2'``, which draws its inputs and has a loss.
    example_inputs : batch or callable, optional
        The module's argument, a tuple of its arguments, or a dict of its keyword arguments: tensors whose first axis
        counts samples, cut or repeated to every micro-batch size. Or ``draw(samples)``, which returns such a batch, or
        a pair of a batch and its targets (so a batch of two tensors can only be drawn in such a pair).
    micro_batches : sequence of int
        Sizes to measure, in samples.
    repeats, warmup : int
        Measured rounds over all layers and sizes (their median is kept), and rounds before them that do not count.
    optimizer : {'sgd', 'momentum', 'adam'}
        Optimiser whose step is timed, layer by layer, with a learning rate of zero.
    device : {'cpu', 'cuda', 'meta'}
        On 'meta' nothing is measured or allocated: the model has sizes, operations and operators, and no profile.
    device_name : str, optional
        Name of the kind of device in the profile; by default ``'cpu-worker'``, or CUDA's name of the card.
    threads : int
        Threads that torch may use on a CPU. With one, the time of other programs on a busy machine is not counted.
    crowd : int
        Number of workers that run on this machine at once, the measured one included: the number of processes that
        will train here. The others run the same layers in the background, each with its own gradients.
    name : str, optional
        Name of the model; otherwise the workload's, or the module's class.
    loss : callable, optional
        ``loss(outputs, targets) -> scalar tensor``. Its costs are added to the last layer, because the last stage
        computes it. Without it, backward starts from a gradient of ones.
    targets : batch, optional
        The targets of ``example_inputs``.
    weight : callable, optional
        ``weight(targets)``, over which the loss is a mean, if not the number of samples (see `Workload`).
    group : sequence of str
        Patterns (``'blocks.*'``, ``'Bottleneck'``) of module paths or class names to keep whole, as one layer.
    front_end : {'auto', 'chain', 'graph'}
        Source of the layers. ``'chain'``: submodules that pass one tensor on. ``'graph'``: the graph that torch.export
        captures. ``'auto'``: the chain if the module is one, otherwise the graph.
    precision : {'bf16', 'fp16'}, optional
        Measure forward and loss under autocast, as ``Pipeline(..., precision=)`` runs them.
    slices : sequence of int
        Also measure the first and the last of so many equal token slices of each sequence, as a pipeline runs them.
    on_progress : callable, optional
        Called with a line of text as the measurement goes on.
    on_refusal : callable, optional
        Called with each reason why ``pipeplan run`` would refuse plans of this module, before anything is measured, and
        in the end with operations of which nothing could be counted, and with what plans change in its training if its
        loss is no mean over samples. By default it is a warning.

    Returns
    -------
    Model
        One profile for each micro-batch size. The weight gradient is that of linear maps, convolutions and embeddings;
        gradients of other parameters come with the input gradient.

    Raises
    ------
    InputError
        If the module is not a sequence of layers, or an argument makes no sense.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> model = pipeplan.profile(net, torch.zeros(2, 4), micro_batches=(1, 2), repeats=1, warmup=0)
    >>> [(each.micro_batch, len(each.costs)) for each in model.profiles]
    [(1, 3), (2, 3)]
    """
    from torch import nn

    from pipeplan.frontend.profile.request import Request
    from pipeplan.frontend.profile.run import run

    _check_callbacks(on_progress=on_progress, on_refusal=on_refusal, loss=loss, weight=weight)
    known(device, "device", DEVICES)
    if isinstance(module, str):
        workload = _built(partial(load_workload, module), device, on_refusal or _warn)
        module, loss, weight, name = workload.module, workload.loss, workload.weight, name or workload.name
        example_inputs = example_inputs or drawing(workload, seed=0)
    elif not isinstance(module, nn.Module):
        raise InputError(f"a torch.nn.Module, or 'module:function' that builds one, is needed, not {shown(module)}")
    elif example_inputs is None:
        raise InputError("profile(module, example_inputs) needs a batch of the module's inputs, or draw(samples)")
    request = Request(
        micro_batches=numbers(micro_batches, "micro_batches", "micro_batches", 1, MOST_SAMPLES),
        repeats=repeats,
        warmup=warmup,
        optimizer=optimizer,
        device=device,
        device_name=device_name,
        threads=threads,
        crowd=crowd,
        name=name,
        loss=loss,
        weight=weight,
        group=names(group, "group"),
        front_end=front_end,
        precision=precision,
        slices=numbers(slices, "slices", "slices (token slices of a sequence)", 1, MOST_SAMPLES),
    )
    refused: list[str] = []

    def refusal(reason: str) -> None:
        refused.append(reason)
        (on_refusal or _warn)(reason)

    try:
        return run(module, example_inputs, targets, request, on_progress or _ignore, refusal, on_refusal or _warn)
    except PipeplanError:
        raise
    except Exception as error:
        if not refused:
            raise
        raise InputError(f"cannot be profiled ({type(error).__name__}): {refused[0]}") from error


def profile_workload(
    source: str | Callable[[], Workload] | Workload,
    *,
    input_spec: str | None = None,
    seed: int = 0,
    on_progress: Callable[[str], None] | None = None,
    on_refusal: Callable[[str], None] | None = None,
    **how: Any,
) -> Model:
    """Measure a workload's layers under the conditions of its workers.

    On a CPU, a new process with a worker's allocator settings measures. `pipeplan.profile` measures in the calling
    process, whose C library may have other settings (see `pipeplan.frontend.profile.allocator`). On a GPU these make no
    difference, and no process is started.

    Parameters
    ----------
    source : str, callable or Workload
        ``'module:function'``, a function that returns a workload, or the workload itself. A function must be importable
        by name, and a workload's parts too.
    input_spec : str, optional
        Type and shape of a sample, if ``'module:function'`` returns a plain module.
    seed : int
        Seed of the random batches.
    on_progress, on_refusal : callable, optional
        Called here with a line of text as the measurement goes on, and with reasons why ``pipeplan run`` would refuse
        plans of the workload.
    **how
        Any of `pipeplan.profile`'s ``micro_batches``, ``repeats``, ``warmup``, ``optimizer``, ``device``,
        ``device_name``, ``threads``, ``crowd``, ``name``, ``group``, ``front_end``, ``precision`` and ``slices``.

    Raises
    ------
    InputError
        If the workload cannot be built, is not a sequence of layers, or cannot be sent to another process; if torch is
        not installed.
    PipeplanError
        If the measuring process fails or is killed.

    Examples
    --------
    >>> model = pipeplan.profile_workload("pipeplan_executor.zoo:decoder", device="meta", micro_batches=(2,))
    >>> model.names[0], model.names[-1]
    ('embedding', 'head')
    """
    if find_spec("torch") is None:
        raise InputError("profiles need torch; install it with: pip install 'pipeplan[torch]'")
    _check_callbacks(on_progress=on_progress, on_refusal=on_refusal)
    seed = whole(seed, "the seed", 0, 2**63 - 1)
    _check_settings(how)
    hear = {"progress": on_progress or _ignore, "refusal": on_refusal or _warn}
    if isinstance(source, str):
        source = partial(load_workload, source, input_spec)
    elif not isinstance(source, Workload) and not callable(source):
        raise InputError(f"a Workload, or a function or a name that makes one, is needed, not {shown(source)}")
    if how.get("device", "cpu") != "cpu":
        return _measure(source, seed, hear["progress"], hear["refusal"], how)
    try:
        task = pickle.dumps((source, seed, how))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InputError(
            f"the workload cannot be sent to a process of its own: {error}; name it as 'module:function', or measure "
            "it in this process with pipeplan.profile(module, example_inputs)"
        ) from error
    return _ask_process(task, hear)


def _check_settings(how: Mapping[str, Any]) -> None:
    """Refuse settings of `profile_workload` that `profile` does not have."""
    for name in how:
        if name not in HOW:
            hinted = hint(name, HOW).removesuffix("?")
            raise InputError(f"profile_workload has no option {name!r}{hinted}; options are {', '.join(HOW)}")
    known(how.get("device", "cpu"), "device", DEVICES)


def _check_callbacks(**calls: object) -> None:
    for name, call in calls.items():
        if call is not None:
            require_callback(call, name)


def _ask_process(task: bytes, hear: Mapping[str, Callable[[str], None]]) -> Model:
    """Start the measuring process, pass its lines on, and return its model; the process always ends first."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(theirs, task))
    try:
        with inherited(allocator_settings()):
            process.start()
        theirs.close()  # so that reading ends when the process ends
        while True:
            what, value = ours.recv()
            if what in hear:
                hear[what](value)
            elif what == "model":
                return value  # type: ignore[no-any-return]
            else:
                raise value
    except EOFError:
        process.join()
        raise PipeplanError(f"the measuring process {_end(process.exitcode)}; nothing was measured") from None
    finally:
        if process.pid is not None:
            process.kill()
            process.join()
        ours.close()


def _end(code: int | None) -> str:
    if code is not None and code < 0:
        return f"was ended by {signal.Signals(-code).name}" + " (out of memory?)" * (-code == signal.SIGKILL)
    return f"ended with exit code {code}"


def _serve(pipe: Connection, task: bytes) -> None:
    """Main function of the measuring process. Ctrl-C reaches the parent too, which then ends this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        source, seed, how = pickle.loads(task)
        progress, refusal = (lambda text, what=what: pipe.send((what, text)) for what in ("progress", "refusal"))
        pipe.send(("model", _measure(source, seed, progress, refusal, how)))
    except BrokenPipeError:
        os._exit(1)  # the parent is gone
    except PipeplanError as error:
        pipe.send(("error", error))
    except Exception as error:
        text = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
        pipe.send(("error", PipeplanError(f"the measurement failed: {text}")))


def _measure(
    source: Callable[[], Workload] | Workload,
    seed: int,
    on_progress: Callable[[str], None],
    on_refusal: Callable[[str], None],
    how: dict[str, Any],
) -> Model:
    workload = source if isinstance(source, Workload) else _built(source, how.get("device", "cpu"), on_refusal)
    lines: dict[str, Any] = {"on_progress": on_progress, "on_refusal": on_refusal}
    lines |= {"loss": workload.loss, "weight": workload.weight}
    named = {"name": how.get("name") or workload.name or None}
    return profile(workload.module, drawing(workload, seed), **lines, **(how | named))


def _built(build: Callable[[], Workload], device: str, on_note: Callable[[str], None]) -> Workload:
    """Build the workload; for the meta device without values."""
    from pipeplan.frontend.blank import blank_workload, built_for_real

    def checked() -> Workload:
        workload = build()
        require(workload, Workload)
        return workload

    return blank_workload(checked, partial(built_for_real, checked), on_note) if device == "meta" else checked()


def drawing(workload: Workload, seed: int) -> Callable[[int], tuple[Any, Any]]:
    """Return a function that draws so many samples of the workload, and their targets."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    return lambda samples: workload.draw(samples, generator)


def _ignore(_: str) -> None:
    pass


def _warn(reason: str) -> None:
    warnings.warn(reason, stacklevel=6)
