"""Sphinx's settings of the site, which `scripts/site.py` builds from the pages of this folder."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

project = "pipeplan"
version = release = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
copyright = "the pipeplan maintainers"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"pipeplan {version}"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_theme_options = {"source_directory": "docs/", "top_of_page_buttons": []}
html_show_sphinx = False
myst_heading_anchors = 4
nb_execution_mode = "cache"
nb_execution_timeout = 120
nb_execution_raise_on_error = True
default_role = "code"
autodoc_typehints = "none"
autodoc_preserve_defaults = True
toc_object_entries = False
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_use_param = False
napoleon_use_rtype = False
highlight_language = "text"
suppress_warnings = ["misc.highlighting_failure"]  # excerpts with dots
