"""Cases that tests draw from the oracle's table (tests/reference.py), and ways to call what a case has."""

import traceback

import jax
import pytest
from mpi4py import MPI

import mpixla
from reference import ROWS

HOWS = {"eager": lambda f: f, "jit": jax.jit, "sealed": mpixla.jit}


def cases(which=lambda row, variant: True):
    """Return each row with each variant of its static arguments, or one variant unless all are asked for."""
    return [
        pytest.param(row, variant, id=f"{row.name}-{variant}")
        for row in ROWS
        for variant in row.variants(MPI.COMM_WORLD.Get_size())
        if which(row, variant)
    ]


def explicit_mesh():
    """Return a mesh of this process's device that JAX has in all types, as a context manager."""
    return jax.set_mesh(jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,)))


def check_refused(call, kind, sentence):
    """Check that a call is refused, eagerly and when traced, with a sentence that has these words."""
    for mode in (lambda f: f, jax.jit):
        with pytest.raises(kind, match=sentence) as raised:
            mode(lambda: call())()
        if mode is not jax.jit:  # one sentence, with no other exception's traceback before it
            shown = "".join(traceback.format_exception(raised.value))
            assert shown.count("Traceback (most recent call last)") == 1, shown
        text = str(raised.value)
        assert text[0].isalpha()
        assert text.endswith(".")
        assert "0x" not in text
    return text
