"""Sphinx's configuration: `make docs` builds these pages into build/docs/html."""

import os
import re
import tomllib
from pathlib import Path
from typing import Any

from pygments.lexers import TextLexer
from sphinx.pycode import ModuleAnalyzer

import mpixla

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

# A reference that leads nowhere is an error (`sphinx-build -n -W`), but for those to what others document, which are
# links online, and to the type variable of a pytree.
NOT_OURS = r"(jax|jaxlib|MPI|mpi4py|numpy|typing|collections|contextlib)\..*"
nitpick_ignore_regex = [("py:.*", NOT_OURS), ("py:.*", r"mpixla\.core\.tree\.Tree")]
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
    "navbar_start": [],
    "navbar_center": [],
    "navbar_end": [],
    "navbar_persistent": [],
    "home_page_in_toc": True,
    "use_download_button": False,
    "use_fullscreen_button": False,
}

if repository := os.environ.get("REPOSITORY"):  # as `make docs REPOSITORY=https://...` says
    html_theme_options |= {"repository_url": repository, "use_repository_button": True}

# What is copied of a console is what was typed.
copybutton_prompt_text = r"\$ |>>> |\.\.\. |In \[\d+\]: "
copybutton_prompt_is_regexp = True
copybutton_exclude = ".linenos, .gp, .go"


# Names that JAX has as well: alone they may be either's.
AMBIGUOUS = {"jit", "scan"}


def link(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Make links of the functions of mpixla and the pages that a docstring names."""

    def function(match: re.Match[str]) -> str:
        named = match[1]
        is_ours = named in mpixla.__all__ and named not in AMBIGUOUS and named != name.rpartition(".")[2]
        return f":py:obj:`~mpixla.{named}`" if is_ours else match[0]

    lines[:] = [re.sub(r"``(\w+)``", function, line) for line in lines]
    lines[:] = [re.sub(r"\bdocs/(\w+)\.md\b", r":doc:`/\1`", line) for line in lines]


analyze = ModuleAnalyzer.analyze


def analyze_without_overloads(self: ModuleAnalyzer) -> None:
    """Leave out the signatures that a source gives to type checkers: pages show the one that `help` shows."""
    analyze(self)
    self.overloads = {}


ABOVE = "ARCHITECTURE|CHANGELOG|CONTRIBUTING|SECURITY"  # pages of the folder above, which pages here include


def on_this_site(app: Any, page: str, source: list[str]) -> None:
    """Replace links to pages of the folder above by links to the pages that include them, and file names by titles.

    Folders are names here, where a repository's host shows what is in them. A link to a function is Sphinx's own.
    """
    up = "../" * page.count("/")
    source[0] = re.sub(r"\[`([^`]+)`\]\(api/\w+\.md#(mpixla\.\w+)\)", r"{py:obj}`\1 <\2>`", source[0])
    source[0] = re.sub(rf"\]\({up}\.\./({ABOVE})\.md", lambda found: f"]({up}{found[1].lower()}.md", source[0])
    source[0] = re.sub(r"\[(?:docs/)?([a-z]\w*)\.md\]\(", lambda found: f"[{found[1].replace('_', ' ')}](", source[0])

    def folder(found: re.Match[str]) -> str:
        is_folder = (Path(app.srcdir, page).parent / found[2]).is_dir()
        return f"`{found[1]}`" if is_folder else found[0]

    source[0] = re.sub(r"\[([\w/.]+)\]\(([\w/.]+)\)", folder, source[0])


def in_the_folder_above(app: Any, path: Path, page: str, source: list[str]) -> None:
    """Replace links in an included page; the inclusion takes care of its links to `docs/`."""
    source[0] = re.sub(rf"\]\(({ABOVE})\.md", lambda found: f"](docs/{found[1].lower()}.md", source[0])


def setup(app: Any) -> None:
    """Connect these functions to Sphinx, which calls this one."""
    app.add_lexer("mlir", TextLexer)  # Pygments has none
    app.connect("source-read", on_this_site)
    app.connect("include-read", in_the_folder_above)
    ModuleAnalyzer.analyze = analyze_without_overloads
    app.connect("autodoc-process-docstring", link)
