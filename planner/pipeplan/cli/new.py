"""``pipeplan new``: a commented cluster, job or experiment file to begin with."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from pipeplan.cli.base import Command

TEMPLATES = ("cluster", "experiment", "job")


def configure(parser: ArgumentParser) -> None:
    """Arguments of ``new``."""
    parser.add_argument("file", metavar="NAME", choices=TEMPLATES, help=", ".join(TEMPLATES))
    parser.add_argument("path", metavar="PATH", nargs="?", type=Path, help="where to write it (NAME.yaml); - prints it")


def run(options: Namespace) -> int:
    """Write the template; refuse to overwrite a file."""
    from pipeplan.core.errors import InputError
    from pipeplan.io.atomic import write_whole

    if str(options.path) == "-":
        print(template(options.file), end="")
        return 0
    path = options.path or Path(f"{options.file}.yaml")
    if path.exists():
        raise InputError(f"{path} is there already, and is not overwritten; name another file")
    write_whole(path, template(options.file))
    print(f"{path} written; edit it, and see what it describes with: pipeplan show {path}")
    return 0


def template(file: str) -> str:
    """Return the text of a new file. Its first line names the schema to editors."""
    from pipeplan.io.datasets import datasets_folder

    folder = datasets_folder()
    schema = (folder / "schemas" / f"{file}.json").as_uri()
    text = (folder / "templates" / f"{file}.yaml").read_text(encoding="utf-8")
    return f"# yaml-language-server: $schema={schema}\n{text}"


command = Command(
    "new", "a commented cluster, job or experiment file to begin with", configure, run, "cluster my-cluster.yaml"
)
