"""Weights to and from other programs: safetensors, one file or several, with tied weights, and `transformers`."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from helpers.captured_models import tiny_gpt2
from pipeplan.core.errors import InputError
from pipeplan.frontend.parameters import named_tensors
from pipeplan_executor.checkpoint import save_safetensors
from pipeplan_executor.checkpoint.inventory import Entry
from pipeplan_executor.checkpoint.record import Record, write_record
from pipeplan_executor.checkpoint.slices import model_key, write
from pipeplan_executor.stages.materialise import values_of
from pipeplan_executor.stages.weight_files import opened_weights

pytest.importorskip("safetensors")
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.fixture(scope="module")
def model() -> nn.Module:
    """GPT-2, whose embedding and head are one matrix."""
    pytest.importorskip("transformers")
    module: nn.Module = tiny_gpt2().module
    return module


@pytest.fixture(scope="module")
def checkpoint(model: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the model."""
    path = tmp_path_factory.mktemp("runs") / "step-00000001"
    path.mkdir()
    firsts: dict[int, str] = {}
    for name, tensor in named_tensors(model):
        firsts.setdefault(id(tensor), name)
    inventory = tuple(
        Entry(name, tuple(tensor.shape), True, firsts[id(tensor)]) for name, tensor in named_tensors(model)
    )
    write(path, {model_key(name): tensor.detach() for name, tensor in named_tensors(model) if name in firsts.values()})
    write_record(Record(1, 0, "small", inventory, []), path)
    return path


def _equal(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


def test_a_checkpoint_becomes_a_model_of_transformers(model: Any, checkpoint: Path, tmp_path: Path) -> None:
    """``save_safetensors`` writes tied weights once; ``from_pretrained`` and ``load_model`` tie them again."""
    from safetensors.torch import load_model

    model.config.save_pretrained(tmp_path)
    save_safetensors(checkpoint, tmp_path / "model.safetensors")
    assert "lm_head.weight" not in opened_weights(tmp_path)
    assert _equal(type(model).from_pretrained(tmp_path), model)
    fresh = tiny_gpt2().module
    assert not _equal(fresh, model)
    load_model(fresh, str(tmp_path / "model.safetensors"))
    assert _equal(fresh, model)
    assert [path.name for path in tmp_path.glob("*.safetensors")] == ["model.safetensors"]
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("size", ["1GB", "5KB"])
def test_weights_of_transformers_are_read(model: Any, tmp_path: Path, size: str) -> None:
    """``weights=`` takes what ``save_pretrained`` writes, in one file or several; all names of a tensor are one."""
    model.save_pretrained(tmp_path, max_shard_size=size)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (size == "5KB")
    with torch.device("meta"):
        blank = tiny_gpt2().module
    found = values_of(blank, blank, dict(named_tensors(blank)), weights=tmp_path)
    assert all(torch.equal(found[name], value) for name, value in model.named_parameters())
    assert found["lm_head.weight"] is found["transformer.wte.weight"]


def test_what_is_no_file_of_weights_is_named(tmp_path: Path) -> None:
    """A folder without weights, and a damaged file."""
    with pytest.raises(InputError, match="the folder has no file"):
        opened_weights(tmp_path)
    (tmp_path / "a.safetensors").write_bytes(b"nothing")
    with pytest.raises(InputError, match="cannot read weights"):
        opened_weights(tmp_path / "a.safetensors")
