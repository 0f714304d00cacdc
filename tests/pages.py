"""The code of documentation pages, which tests run.

Of docs/solvers.md tests/ecosystem runs what needs libraries.
"""

import re
from pathlib import Path

import jax.numpy as jnp

import mpixla

DOCS = Path(__file__).parents[1] / "docs"
SOLVERS = (DOCS / "solvers.md").read_text()
SOLVERS_WITHOUT_LIBRARIES = SOLVERS.partition("## diffrax")[0]
RUN_TIME = (DOCS / "run_time.md").read_text()


def blocks_of(text):
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def run(text, **names):
    """What the code of a part of a page defines, beside what pages take for known and these names."""
    known = {
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
