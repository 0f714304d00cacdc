"""The code of documentation pages, which tests run: Python in tests/spmd, commands in tests/launch.

Of docs/solvers.md tests/ecosystem runs what needs libraries.
"""

import re
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp

import mpixla

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = [README, *sorted(DOCS.glob("*.md"))]
SOLVERS = (DOCS / "solvers.md").read_text()
SOLVERS_WITHOUT_LIBRARIES = SOLVERS.partition("## diffrax")[0]
RUN_TIME = SOLVERS.partition("## Ranks and counts known at run time")[2].partition("\n## ")[0]


class Block(NamedTuple):
    """A block of code on a page.

    Attributes:
        page: the page's name.
        line: where the code begins.
        language: what stands behind the fence.
        text: the code.
        output: what the page shows below it, in a block of text.
    """

    page: str
    line: int
    language: str
    text: str
    output: str | None

    @property
    def place(self):
        return f"{self.page}:{self.line}"


_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$(?=(?:\s+```text\n(.*?)^```$)?)", re.DOTALL | re.MULTILINE)


def blocks(page, *languages):
    """The blocks of a page in these languages, by default in any."""
    text = page.read_text()
    return [
        Block(page.name, text[: found.start(2)].count("\n") + 1, *found.groups())
        for found in _BLOCK.finditer(text)
        if not languages or found[1] in languages
    ]


def block(page, words):
    """The one block of a page that has these words in its code."""
    (found,) = (block for block in blocks(page) if words in block.text)
    return found


def blocks_of(text):
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def run(text, **names):
    """What the code of a part of a page defines, beside what pages take for known and these names."""
    known = {
        "jax": jax,
        "jnp": jnp,
        "mpixla": mpixla,
        "x": jnp.ones(3),
        "y": jnp.ones(3),
        "u": jnp.ones((4, 4)),
        "interior": (2, 2),
    }
    defined = known | names
    for block in blocks_of(text):
        exec(block, defined)
    return defined
