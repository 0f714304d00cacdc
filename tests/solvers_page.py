"""The code of docs/solvers.md, which tests/spmd runs up to where it needs libraries, and tests/ecosystem all of."""

import re
from pathlib import Path

import jax.numpy as jnp

import mpixla

TEXT = (Path(__file__).parents[1] / "docs/solvers.md").read_text()
WITHOUT_LIBRARIES = TEXT.partition("## diffrax")[0]


def blocks_of(text):
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def run(text, **names):
    """What the code of a part of the page defines, beside what the page takes for known and these names."""
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
