"""The whole page around its sections: title, contents, style, and the one copy of the plotting library."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from pipeplan.core.version import __version__
from pipeplan.io.atomic import write_whole
from pipeplan.report.page.chart import library

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"
"""The browser itself refuses whatever the page would load."""
PAPER = """
for (const [when, width] of [["beforeprint", 680], ["afterprint", null]])
  addEventListener(when, () => document.querySelectorAll(".js-plotly-plot").forEach(
    plot => Plotly.relayout(plot, {width, autosize: !width})));
"""
"""Charts get the width of the paper before they are printed."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page: ``name`` is its address in it, ``body`` is HTML."""

    name: str
    title: str
    body: str


@dataclass(frozen=True, slots=True)
class Page:
    """A title, a sentence below it, and sections, the first of which says most."""

    title: str
    lead: str
    sections: Sequence[Section]

    def as_html(self) -> str:
        """Return the whole file."""
        style = Path(__file__).with_name("style.css").read_text()
        contents = "".join(f'<li><a href="#{one.name}">{escape(one.title)}</a></li>' for one in self.sections)
        return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{escape(self.title)} · pipeplan</title>
<style>{style}</style>
<script>{library()}</script>
</head>
<body>
<header><h1>{escape(self.title)}</h1><p>{escape(self.lead)}</p></header>
<nav aria-label="Contents"><ul>{contents}</ul></nav>
<main>{"".join(map(_section, self.sections))}</main>
<footer><p>Made by pipeplan {escape(__version__)}. This file is complete: it loads nothing from anywhere.</p>
<noscript><p>Charts need JavaScript; the tables have all of their figures.</p></noscript></footer>
<script>{PAPER}</script>
</body>
</html>
"""

    def save(self, path: str | Path) -> None:
        """Write the file, whole or not at all."""
        write_whole(Path(path), self.as_html())


def _section(one: Section) -> str:
    title = f'<h2 id="{one.name}-title">{escape(one.title)}</h2>'
    return f'<section id="{one.name}" aria-labelledby="{one.name}-title">{title}{one.body}</section>\n'
