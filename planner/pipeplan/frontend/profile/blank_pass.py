"""`BlankPass`: one pass of all layers on tensors without values, for bytes that do not depend on the device."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from pipeplan.core.errors import InputError
from pipeplan.core.model import Work
from pipeplan.frontend.batch import Batch, mapped, tensors
from pipeplan.frontend.capture.private import FakeTensorMode, fake, on_fake
from pipeplan.frontend.profile.live import workspace_of
from pipeplan.frontend.profile.passes import Feed, Loss, leaves, run_layer
from pipeplan.frontend.profile.saved import NOTE, SavedBytes, saved_bytes


class BlankPass:
    """Layers and a batch as tensors of a CPU without values, and what each layer reads and saves.

    Parameters
    ----------
    names : sequence of str
        Of the layers, for errors.
    layers : sequence of torch.nn.Module
        On any device, ``meta`` included.
    inputs, targets : batch
        On any device.
    loss : callable, optional
        Of the last layer's outputs and the targets.
    precision : {'bf16', 'fp16'}, optional

    Raises
    ------
    InputError
        If a layer, or the loss, reads values.
    """

    def __init__(
        self,
        names: Sequence[str],
        layers: Sequence[nn.Module],
        inputs: Batch,
        targets: Any,
        loss: Loss | None,
        precision: str | None,
    ) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.names = names
        self.layers = tuple(on_fake(layer, self.mode, "cpu") for layer in layers)
        given = tensors(inputs)
        wanted = tuple(tensor.requires_grad for tensor in given)
        targets = None if targets is None else self._faked(targets)
        self.feed = Feed(self._faked(given), wanted, loss, targets, precision)
        with self.mode:
            self.held = self._held()

    @cached_property
    def reads(self) -> list[tuple[torch.Tensor, ...]]:
        """Inputs of every layer."""
        with self.mode, self.feed.cast():
            values = self.feed.leaves()
            reads = [values]
            for layer in self.layers[:-1]:
                made = tensors(run_layer(layer, values))
                values = leaves(made, [tensor.requires_grad for tensor in made])
                reads.append(values)
        return reads

    def key_of(self, number: int, operators: str | None) -> tuple[str, int, int]:
        """Return what two layers have in common that compute alike; ``operators`` names what the layer computes."""
        return operators or self.names[number], self.held.saved[number], self._dropped(number)

    def feed_of(self, number: int) -> Feed:
        """Return what one layer reads, and the loss for the last one."""
        last = self.feed if number == len(self.layers) - 1 else replace(self.feed, loss=None)
        values = self.reads[number]
        return replace(last, inputs=values, wanted=tuple(tensor.requires_grad for tensor in values))

    def with_workspace(self, work: Work, number: int, size: int) -> Work:
        """Return a layer's work with its workspace, for a batch of ``size`` samples."""
        saved = self.held.saved[number]
        space = workspace_of(self.layers[number], self.feed_of(number), saved, self._dropped(number), self.mode)
        return replace(work, workspace=-(-space.of_samples // size), workspace_fixed=space.fixed)

    def _dropped(self, number: int) -> int:
        return self.held.dropped[number - 1] if number else 0

    def _faked(self, batch: Batch) -> Batch:
        return mapped(batch, lambda tensor: fake(tensor, self.mode, "cpu"))

    def _held(self) -> SavedBytes:
        try:
            return saved_bytes(self.layers, self.feed)
        except InputError:
            raise
        except Exception as error:
            number = next((int(note.removeprefix(NOTE)) for note in getattr(error, "__notes__", ())), -1)
            is_loss = number == len(self.layers)
            where = "the loss" if is_loss else f"layer {self.names[number]}" if number >= 0 else "the model"
            reason = next(iter(str(error).strip().splitlines()), "")[:200]
            raise InputError(
                f"{where} cannot be described without values ({type(error).__name__}: {reason}): what it computes, or "
                "its sizes, depend on values; measure it with --device cpu or cuda"
            ) from error


def with_workspaces(
    work: Sequence[Work], blank: BlankPass, operators: Sequence[str | None], size: int
) -> tuple[Work, ...]:
    """Return the work of all layers with workspaces; layers that compute alike are run once."""
    known: dict[tuple[str, int, int], Work] = {}
    for number, own in enumerate(work):
        key = blank.key_of(number, operators[number])
        if key not in known:
            known[key] = blank.with_workspace(own, number, size)
    spaces = [known[blank.key_of(number, operators[number])] for number in range(len(work))]
    return tuple(
        replace(own, workspace=space.workspace, workspace_fixed=space.workspace_fixed)
        for own, space in zip(work, spaces, strict=True)
    )
