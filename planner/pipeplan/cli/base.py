"""`Command` of the ``pipeplan`` program, and checks of its output paths before the work begins.

Other packages add commands as entry points ``pipeplan.commands``.
"""

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import _ArgumentGroup


@dataclass(frozen=True)
class Command:
    """A command of the program.

    Attributes
    ----------
    name, summary : str
        The word that calls it, and one line of help.
    configure : callable
        Adds its arguments to a parser, in groups (`group`) where there are many.
    run : callable
        Returns the exit code: 0, 1 or 2.
    example : str
        Words after the name, with which the help begins.
    """

    name: str
    summary: str
    configure: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], int]
    example: str = ""


OUTPUT = "output"
"""Title of the group of options about what is printed and written; it is the last, and has ``--help``."""


def group(parser: ArgumentParser, title: str) -> "_ArgumentGroup":
    """Return the parser's group of that title, a new one if there is none."""
    known = (each for each in parser._action_groups if each.title == title)
    return next(known, None) or parser.add_argument_group(title)


def add_json(parser: ArgumentParser, beside: str = "; progress stays on standard error") -> None:
    """Add ``--json``."""
    group(parser, OUTPUT).add_argument("--json", action="store_true", help=f"print one JSON object{beside}")


STDOUT = "/dev/stdout"


def try_outputs(
    options: Namespace,
    files: Sequence[str] = (),
    pictures: Sequence[str] = (),
    pages: Sequence[str] = (),
    folders: Sequence[str] = (),
    inputs: Sequence[str] = (),
) -> None:
    """Refuse paths that cannot be written to, before any long work.

    ``-`` becomes ``/dev/stdout``: the file's content is printed, and the command's own text goes to standard error (see
    `show`).

    Parameters
    ----------
    options : Namespace
    files, pictures, pages, folders : sequence of str
        Names of options that hold a path, or None. Folders are made when they are written to; the nearest existing
        parent must be a writable folder.
    inputs : sequence of str
        Names of options whose files are read, and must not be overwritten.

    Raises
    ------
    InputError
        Naming the option and its path.
    """
    from pipeplan.core.errors import InputError
    from pipeplan.io.atomic import try_to_write
    from pipeplan.report.page.chart import require_plotly
    from pipeplan.report.plot.library import check_suffix, require_matplotlib

    read = {name: Path(os.path.realpath(text)) for name in inputs if (text := getattr(options, name))}
    taken: dict[Path, str] = {}
    for name in (*files, *pictures, *pages, *folders):
        given = getattr(options, name)
        if given is None:
            continue
        option = _option(name)
        text = str(given)
        if not text:
            raise InputError(f"{option} names no path; give one, or leave {option} out")
        try:
            if name in pictures:
                check_suffix(Path(text))
                require_matplotlib()
            if name in pages:
                require_plotly(Path(text))
            if name in folders:
                _try_folder(text)
                continue
            if text == "-":
                if getattr(sys.stdout, "closed_before", False):
                    raise InputError("- is standard output, which is closed; name a file")
                text = STDOUT
                setattr(options, name, text)
            try_to_write(Path(text))
        except InputError as error:
            raise InputError(f"{option}: {error}") from error
        if text == STDOUT and getattr(options, "json", False):
            raise InputError(
                f"--json prints one object and nothing else on standard output, where {option} - would print a file "
                "too; name a file, or leave out one of the two"
            )
        place = Path(os.path.realpath(text))
        over = next((name for name, source in read.items() if source == place and place.is_file()), None)
        if over is not None:
            raise InputError(f"{option} {given} would overwrite the {over} that is read; name another file")
        if place in taken and (place.is_file() or not place.exists() or text == STDOUT):
            raise InputError(f"{taken[place]} and {option} both write {given}; give each a path of its own")
        taken[place] = option


def add_report(parser: ArgumentParser) -> None:
    """Add ``--report``, which `try_outputs` checks among the pages."""
    group(parser, OUTPUT).add_argument(
        "--report", metavar="FILE", help="write the answer as a page to open, print or send: one file (.html)"
    )


def show(answer: object, options: Namespace, *names: str, end: str = "\n") -> None:
    """Print on standard output, or on standard error if one of these options writes its file to standard output.

    Long lines of text are wrapped for a terminal, those of JSON, CSV and other formats are not.

    What the stream cannot take raises nothing (see `pipeplan.cli.streams`): the following work, like saving the answer,
    is still done.
    """
    from pipeplan.core.wording import fitted

    taken = any(getattr(options, name) == STDOUT for name in names)
    stream = sys.stderr if taken else sys.stdout
    text = str(answer)
    formatted = getattr(options, "json", False) or getattr(options, "format", "text") != "text"
    print(text if formatted else fitted(text), file=stream, end=end, flush=True)


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _try_folder(text: str) -> None:
    from pipeplan.core.errors import InputError

    if text == "-":
        raise InputError("files of several kinds are written, which standard output cannot hold; name a folder")
    try:
        folder = Path(os.path.realpath(text))
        there = next(place for place in (folder, *folder.parents) if place.exists() or place.is_symlink())
    except (OSError, ValueError) as error:
        raise InputError(f"cannot write into {text!r}: {getattr(error, 'strerror', None) or error}") from error
    if not there.is_dir():
        raise InputError(f"cannot write into {text}: {there} is there and is no folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"cannot write into {text}: {there} may not be written to")
