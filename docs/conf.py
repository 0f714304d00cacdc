"""Sphinx's configuration: `make docs` builds these pages into build/docs/html."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

project = PROJECT["name"]
author = PROJECT["authors"][0]["name"]
version = release = PROJECT["version"]
copyright = author

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
source_suffix = {".md": "markdown"}
exclude_patterns = ["diagrams"]

# Markdown as a repository's host shows it: titles have anchors there, so they have them here.
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4

# Docstrings are Google's, with a section of our own.
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = ["Derivative"]
napoleon_use_rtype = False

# A reference that leads nowhere is an error (`sphinx-build -n -W`). What others document is known only online.
NOT_OURS = r"(jax|MPI|mpi4py|numpy|typing|collections)\..*"
nitpick_ignore_regex = [] if tags.has("online") else [("py:.*", NOT_OURS)]  # noqa: F821
if tags.has("online"):  # noqa: F821
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "jax": ("https://docs.jax.dev/en/latest", None),
        "mpi4py": ("https://mpi4py.readthedocs.io/en/stable", None),
    }

html_theme = "sphinx_book_theme"
html_title = f"mpixla {version}"
html_static_path = ["static"]
html_css_files = ["mpixla.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "show_toc_level": 2,
    "show_navbar_depth": 1,
    "home_page_in_toc": True,
    "use_download_button": False,
    "use_fullscreen_button": False,
}

# What is copied of a console is what was typed.
copybutton_prompt_text = r"\$ |>>> |\.\.\. |In \[\d+\]: "
copybutton_prompt_is_regexp = True
copybutton_exclude = ".linenos, .gp, .go"
