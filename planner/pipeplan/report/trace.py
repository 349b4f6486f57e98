"""Traces of time lines for Perfetto (ui.perfetto.dev) and Chrome (chrome://tracing).

Every time line is a process, every device a thread of it, and every pair of devices a thread for the tensors between
two stages on them. Arrows lead from the action that makes a tensor through its transfer to the action that reads it.
Memory is a counter for each device. Perfetto colours slices by name, digits aside, and Chrome by ``cname``. So the same
kind of action looks the same in every process, and predicted and measured are easy to compare.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from pipeplan.core.schedule import Kind
from pipeplan.core.timeline import Span, Timeline, TransferSpan
from pipeplan.io.atomic import write_whole
from pipeplan.report.plot.colours import STYLES, TRANSFER

Event = dict[str, Any]
Tensor = tuple[int, bool, int, int]
"""Key of one tensor: stage, true if it goes forward, micro-batch and slice."""
Link = tuple[int, int, int, int]
"""Source and target stage, source and target device."""
_FORWARD = (Kind.FORWARD,)
_BACK = (Kind.BACKWARD, Kind.INPUT_GRADIENT)


def write_trace(
    path: str | Path, tracks: Mapping[str, Timeline | Iterable[Span]], devices: Sequence[str] | None = None
) -> None:
    """Write time lines as one trace, whole or not at all.

    Parameters
    ----------
    path : str or Path
    tracks : mapping of str to Timeline or iterable of Span
        One process each, in this order, under these names: ``{"predicted": timeline, "measured": spans}``.
    devices : sequence of str, optional
        Names of the devices.
    """
    write_whole(Path(path), json.dumps(trace_data(tracks, devices)))


def trace_data(tracks: Mapping[str, Timeline | Iterable[Span]], devices: Sequence[str] | None = None) -> dict[str, Any]:
    """The trace as plain data; times in microseconds, the unit of the format."""
    arrows = count(1)
    events = [
        event
        for process, (label, track) in enumerate(tracks.items(), start=1)
        for event in _process(process, label, _timeline(track), arrows, devices or ())
    ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _timeline(track: Timeline | Iterable[Span]) -> Timeline:
    return track if isinstance(track, Timeline) else Timeline(tuple(track), (), (), ())


def _process(
    process: int, label: str, timeline: Timeline, arrows: Iterator[int], devices: Sequence[str]
) -> Iterator[Event]:
    yield _named("process_name", process, 0, name=label)
    yield _named("process_sort_index", process, 0, sort_index=process)
    for device, lane in sorted({(span.device, span.lane) for span in timeline.spans}):
        thread = _thread(device, lane)
        name = devices[device] if device < len(devices) else f"device {device}"
        yield _named("thread_name", process, thread, name=name + (" second lane" if lane else ""))
        yield _named("thread_sort_index", process, thread, sort_index=thread)
    ends = _ends(timeline)
    links = {tensor: _link(tensor, ends) for tensor in timeline.transfers}
    beyond = 1 + 2 * (1 + max((span.device for span in timeline.spans), default=0))
    threads = {link: number for number, link in enumerate(sorted(set(links.values())), start=beyond)}
    pairs = Counter(link[:2] for link in threads)
    for (source, target, maker, reader), thread in threads.items():
        between = "" if pairs[source, target] == 1 else f", device {maker} to {reader}"
        yield _named("thread_name", process, thread, name=f"stage {source} to stage {target}{between}")
        yield _named("thread_sort_index", process, thread, sort_index=thread)
    for span in timeline.spans:
        yield _slice(process, span)
    for tensor in timeline.transfers:
        thread = threads[links[tensor]]
        yield _transfer(process, tensor, thread)
        yield from _arrow(process, tensor, thread, ends, arrows)
    for device, line in enumerate(timeline.memory):
        for step in line:
            yield _event("C", f"memory of device {device}", process, device, step.time, args={"GiB": step.held / 2**30})


def _thread(device: int, lane: int) -> int:
    return 1 + 2 * device + lane


def _event(phase: str, name: str, process: int, thread: int, time: int, **more: Any) -> Event:
    return {"ph": phase, "name": name, "pid": process, "tid": thread, "ts": time / 1000, **more}


def _named(what: str, process: int, thread: int, **values: Any) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": values}


def _slice(process: int, span: Span) -> Event:
    style = STYLES[span.action.kind]
    numbered = f"{style.label} {span.action.micro_batch}" if span.action.kind.per_micro_batch else style.label
    return _event(
        "X",
        numbered,
        process,
        _thread(span.device, span.lane),
        span.start,
        dur=(span.end - span.start) / 1000,
        cat=style.label,
        cname=style.trace,
        args={"action": str(span.action), "stage": span.action.stage},
    )


def _transfer(process: int, tensor: TransferSpan, thread: int) -> Event:
    return _event(
        "X",
        f"{TRANSFER.label} {tensor.micro_batch}",
        process,
        thread,
        tensor.start,
        dur=(tensor.end - tensor.start) / 1000,
        cat=TRANSFER.label,
        cname=TRANSFER.trace,
        args={"arrives_us": tensor.arrival / 1000},
    )


def _ends(timeline: Timeline) -> dict[Tensor, Span]:
    """Actions that make or read the tensors of each stage, forward and backward."""
    return {
        (span.action.stage, span.action.kind in _FORWARD, span.action.micro_batch, span.action.slice): span
        for span in timeline.spans
        if span.action.kind in _FORWARD + _BACK
    }


def _maker_and_reader(tensor: TransferSpan, ends: dict[Tensor, Span]) -> tuple[Span | None, Span | None]:
    forward = tensor.source < tensor.target
    maker, reader = (
        ends.get((stage, forward, tensor.micro_batch, tensor.slice)) for stage in (tensor.source, tensor.target)
    )
    return maker, reader


def _link(tensor: TransferSpan, ends: dict[Tensor, Span]) -> Link:
    """Stages and devices of a transfer; −1 for a device that is not on the time line."""
    maker, reader = _maker_and_reader(tensor, ends)
    source, target = (-1 if span is None else span.device for span in (maker, reader))
    return tensor.source, tensor.target, source, target


def _arrow(
    process: int, tensor: TransferSpan, thread: int, ends: dict[Tensor, Span], arrows: Iterator[int]
) -> Iterator[Event]:
    """Arrow between the action that makes the tensor, its transfer, and the action that reads it."""
    maker, reader = _maker_and_reader(tensor, ends)
    if maker is None or reader is None:
        return
    stops = [
        ("s", _thread(maker.device, maker.lane), maker.start),
        ("t", thread, tensor.start),
        ("f", _thread(reader.device, reader.lane), reader.start),
    ]
    number = next(arrows)
    for phase, thread, time in stops:
        # without "enclosing slice" the arrow would end at the next slice that starts after this moment
        bound = {"bp": "e"} if phase == "f" else {}
        yield _event(phase, "tensor", process, thread, time, id=number, cat="tensor", **bound)
