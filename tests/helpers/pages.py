"""The code of documentation pages, which tests run: Python in tests/spmd, commands in tests/launch.

Of docs/solvers.md tests/ecosystem runs what needs libraries.
"""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = [README, *sorted(DOCS.glob("*.md"))]
SOLVERS = (DOCS / "solvers.md").read_text()
SOLVERS_WITHOUT_LIBRARIES = re.sub(r"\n## diffrax.*?(?=\n## Ranks and counts)", "", SOLVERS, flags=re.DOTALL)


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
    """Return the blocks of a page in these languages, by default in any."""
    text = page.read_text()
    return [
        Block(page.name, text[: found.start(2)].count("\n") + 1, *found.groups())
        for found in _BLOCK.finditer(text)
        if not languages or found[1] in languages
    ]


def block(page, words):
    """Return the one block of a page that has these words in its code."""
    (found,) = (block for block in blocks(page) if words in block.text)
    return found


def blocks_of(text):
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def run(text, **names):
    """Run the code of a page as printed, and return the names that it defines; ``names`` replace built-in ones."""
    for block in blocks_of(text):
        exec(block, names)
    return names
