"""Profiling of a workload in a process of its own, with a local worker's allocator.

::

    this process ──build, arguments──▶ measuring process ──fork──▶ busy siblings
                 ◀──progress, model, error──
"""

import multiprocessing
import os
import pickle
import signal
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from pipeplan.errors import InputError, PipeplanError
from pipeplan.model import Model
from pipeplan.profile.allocator import allocator_settings, inherited
from pipeplan.workload import Workload, load_workload


def profile_workload(
    source: str | Callable[[], Workload] | Workload,
    *,
    input_spec: str | None = None,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
    **how: Any,
) -> Model:
    """Measure a workload's layers where its plan will run: on a CPU, in a new process with a worker's allocator.

    `pipeplan.profile.profile` measures in the calling process, whose C library may hand out memory otherwise (see
    `pipeplan.profile.allocator`); on a GPU that makes no difference, and nothing is started.

    Parameters
    ----------
    source : str, callable or Workload
        ``'module:function'``, a function that returns a workload, or the workload itself. A function must be importable
        by name, and a workload's parts too.
    input_spec : str, optional
        What a sample looks like, where ``'module:function'`` returns a plain module.
    seed : int
        Of the random batches.
    progress : callable, optional
        Called here with a line of text as the measurement goes on.
    **how
        Any of `pipeplan.profile.profile`'s ``micro_batches``, ``repeats``, ``warmup``, ``optimizer``, ``device``,
        ``device_name``, ``threads``, ``crowd``, ``name``, ``group``, ``front_end`` and ``precision``.

    Raises
    ------
    InputError
        If the workload cannot be built, is no row of layers, or cannot be sent to another process.
    PipeplanError
        If the measuring process fails or is killed.
    """
    tell = progress or _ignore
    if isinstance(source, str):
        source = partial(load_workload, source, input_spec)
    if how.get("device", "cpu") != "cpu":
        return _measure(source, seed, tell, how)
    try:
        task = pickle.dumps((source, seed, how))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InputError(
            f"the workload cannot be sent to a process of its own: {error}; name it as 'module:function', or measure "
            "it in this process with pipeplan.profile(module, example_inputs)"
        ) from error
    return _ask_process(task, tell)


def _ask_process(task: bytes, progress: Callable[[str], None]) -> Model:
    """Start the measuring process and listen to it; it is gone when this returns, whatever happens."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(theirs, task))
    try:
        with inherited(allocator_settings()):
            process.start()
        theirs.close()  # so that the end of the process is the end of what can be read
        while True:
            what, value = ours.recv()
            if what == "progress":
                progress(value)
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
    """What the measuring process does. Ctrl-C reaches the parent too, which then ends this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        source, seed, how = pickle.loads(task)
        pipe.send(("model", _measure(source, seed, lambda text: pipe.send(("progress", text)), how)))
    except BrokenPipeError:
        os._exit(1)  # the parent is gone
    except PipeplanError as error:
        pipe.send(("error", error))
    except Exception as error:
        text = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
        pipe.send(("error", PipeplanError(f"the measurement failed: {text}")))


def _measure(
    source: Callable[[], Workload] | Workload, seed: int, progress: Callable[[str], None], how: dict[str, Any]
) -> Model:
    import torch

    from pipeplan.profile import profile

    workload = source if isinstance(source, Workload) else source()
    generator = torch.Generator().manual_seed(seed)
    return profile(
        workload.module, lambda samples: workload.draw(samples, generator), loss=workload.loss, progress=progress, **how
    )


def _ignore(_: str) -> None:
    pass
