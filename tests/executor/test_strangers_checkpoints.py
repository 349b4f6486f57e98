"""Checkpoints from strangers: reading one runs nothing, and says what is wrong with it."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import FileSystemReader

from pipeplan.core.errors import InputError
from pipeplan_executor.checkpoint import as_plain
from pipeplan_executor.checkpoint.folder import MANIFEST
from pipeplan_executor.checkpoint.inventory import Entry
from pipeplan_executor.checkpoint.origin import from_plain
from pipeplan_executor.checkpoint.record import STATE, Record, write_record
from pipeplan_executor.checkpoint.slices import model_key, stored, write

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


class Stranger:
    """A value whose pickle writes a file when it is read."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.mark}",)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A whole checkpoint of one tensor."""
    path = tmp_path / "step-00000001"
    path.mkdir()
    weights = torch.arange(6.0).reshape(2, 3)
    write(path, {model_key("w"): weights, model_key("half"): weights.to(torch.bfloat16)})
    inventory = (Entry("w", (2, 3), True, "w"), Entry("half", (2, 3), True, "half"))
    write_record(Record(1, 0, "small", inventory, []), path)
    return path


def test_what_was_saved_is_read(checkpoint: Path) -> None:
    """The restricted reader reads what torch writes, and sees what torch's own reader sees."""
    model = as_plain(checkpoint)["model"]
    assert torch.equal(model["w"], torch.arange(6.0).reshape(2, 3))
    assert model["half"].dtype == torch.bfloat16
    theirs = FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    assert {key: (tuple(each.size), each.properties.dtype) for key, each in theirs.items()} == {
        key: (each.shape, each.dtype) for key, each in stored(checkpoint).items()
    }


def test_a_description_with_code_runs_nothing(checkpoint: Path, tmp_path: Path) -> None:
    """A description of tensors that would call a function is refused by that function's name."""
    (checkpoint / ".metadata").write_bytes(pickle.dumps(Stranger(tmp_path / "mark")))
    with pytest.raises(InputError, match=r"wants to call \w+\.system, which torch never writes"):
        as_plain(checkpoint)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("call", ["builtins eval", "builtins getattr", "torch load", "os system", "pipeplan solve"])
def test_a_description_may_name_no_function(call: str, checkpoint: Path) -> None:
    """Also functions of torch are refused."""
    module, name = call.split()
    (checkpoint / ".metadata").write_bytes(f"c{module}\n{name}\n(V1\ntR.".encode())
    with pytest.raises(InputError, match=f"wants to call {call.replace(' ', '.')}"):
        as_plain(checkpoint)


@pytest.mark.parametrize("name", ["../other.distcp", "/etc/passwd", "", ".."])
def test_a_description_names_files_of_its_folder_only(name: str, checkpoint: Path) -> None:
    """Files outside the folder are not opened."""
    description = FileSystemReader(checkpoint).read_metadata()
    for each in description.storage_data.values():
        each.relative_path = name
    (checkpoint / ".metadata").write_bytes(pickle.dumps(description))
    with pytest.raises(InputError, match="which is not in the folder"):
        as_plain(checkpoint)


def test_tensors_and_record_with_code_run_nothing(checkpoint: Path, tmp_path: Path) -> None:
    """Neither the files of tensors nor the record nor a plain file run code."""
    mark = tmp_path / "mark"
    evil = tmp_path / "evil.pt"
    torch.save({"model": Stranger(mark)}, evil)
    with pytest.raises(InputError, match="cannot read"):
        from_plain(evil, ())
    shard = next(checkpoint.glob("*.distcp"))
    good = shard.read_bytes(), (checkpoint / STATE).read_bytes()
    # every tensor's bytes are replaced by the file with code
    description = FileSystemReader(checkpoint).read_metadata()
    for each in description.storage_data.values():
        each.offset, each.length = 0, evil.stat().st_size
    whole = (checkpoint / ".metadata").read_bytes()
    (checkpoint / ".metadata").write_bytes(pickle.dumps(description))
    shard.write_bytes(evil.read_bytes())
    with pytest.raises(InputError, match="cannot read checkpoint"):
        as_plain(checkpoint)
    shard.write_bytes(good[0]), (checkpoint / ".metadata").write_bytes(whole)
    assert as_plain(checkpoint)["step"] == 1
    (checkpoint / STATE).write_bytes(evil.read_bytes())
    with pytest.raises(InputError, match="cannot read checkpoint"):
        as_plain(checkpoint)
    assert not mark.exists()
    assert (checkpoint / MANIFEST).exists()
