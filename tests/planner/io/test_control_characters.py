"""Control characters in names: they could change what a terminal shows, so they are refused where they come in."""

import json
from pathlib import Path

import pytest

import pipeplan
from helpers.instances import equal_devices, fat_head
from pipeplan import DeviceKind, Layer, Model
from pipeplan.cli.main import main
from pipeplan.core.errors import InputError
from pipeplan.io.cluster_file import write_cluster
from pipeplan.io.model_file import write_model
from pipeplan.io.text import parse_data

BAD = ("\x1b[31mred", "a\x00b", "\x9b2J", "a\x7f")


@pytest.mark.parametrize("name", [*BAD, "two\nlines", "a\tb", "a\rb"])
def test_names_are_printable(name: str) -> None:
    """Names of models, layers and kinds have neither escapes nor line breaks."""
    for make in (
        lambda: Model(name, fat_head().layers),
        lambda: Model("m", (Layer(name, 0),)),
        lambda: DeviceKind(name),
    ):
        with pytest.raises(InputError, match="with the control character"):
            make()


@pytest.mark.parametrize("name", BAD)
def test_files_with_escapes_are_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In YAML and JSON, in names, keys and notes; the error and the terminal show the character as text."""
    for data in ({"name": name}, {name: 1}, {"notes": ["fine", name]}):
        with pytest.raises(InputError, match="holds the control character"):
            parse_data(json.dumps(data), "here")
        with pytest.raises(InputError, match="holds the control character"):
            parse_data("x: " + json.dumps(data), "here")
    write_model(fat_head(), tmp_path / "model.yaml")
    write_cluster(equal_devices(2), tmp_path / "cluster.yaml")
    text = (tmp_path / "model.yaml").read_text()
    first = fat_head().layers[0].name
    (tmp_path / "bad.yaml").write_text(text.replace(first, json.dumps(name), 1))
    assert main(["solve", str(tmp_path / "bad.yaml"), str(tmp_path / "cluster.yaml"), "--batch", "8"]) == 2
    said = capsys.readouterr().err
    assert "control character" in said
    assert said.replace("\n", "").isprintable()


def test_line_breaks_in_notes_are_fine() -> None:
    """Texts that are no names may have several lines."""
    assert parse_data('{"notes": "one\\n\\ttwo"}', "here") == {"notes": "one\n\ttwo"}


def test_paths_are_printable(tmp_path: Path) -> None:
    """No file is written under such a name, and none is read."""
    path = tmp_path / "plan\x1b[31m.json"
    with pytest.raises(InputError, match=r"the path is .* with the control character"):
        pipeplan.solve(fat_head(), equal_devices(2), 8, time_limit=2).plan.save(path)
    assert not path.exists()
    with pytest.raises(InputError):
        pipeplan.load_model(tmp_path / "a\x00b.yaml")
