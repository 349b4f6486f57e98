"""Pages of HTML: each is one file that loads nothing from anywhere, made of sections.

::

    data ──▶ sections/NAME.py ──▶ Section ──▶ pages.py: which sections an answer has ──▶ skeleton.py ──▶ page.html

A further section is one function in `pipeplan.report.page.sections` that returns a `Section`, and its call in the pages
of `pipeplan.report.page.pages` that show it.
"""
