"""Words, figures and tables as HTML: every text is escaped here."""

from collections.abc import Iterable, Sequence
from html import escape

from pipeplan.core.tabular import Table


def paragraph(text: str, kind: str = "") -> str:
    """Return a paragraph, nothing without text; ``kind`` is its class in the style sheet."""
    return f"<p{_class(kind)}>{escape(text)}</p>" if text else ""


def listing(lines: Iterable[str], kind: str = "") -> str:
    """Return a list of sentences; nothing if there are none."""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<ul{_class(kind)}>{items}</ul>" if items else ""


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """Return names with their figures, large; without those whose figure is empty."""
    known = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(figure)}</dd></div>" for name, figure in pairs if figure)
    return f'<dl class="facts">{known}</dl>'


def table(found: Table, caption: str) -> str:
    """Return a table that scrolls by itself where it is wider than the page."""
    return (
        f'<div class="table" role="region" tabindex="0" aria-label="{escape(caption)}">{found.as_html(caption)}</div>'
    )


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
