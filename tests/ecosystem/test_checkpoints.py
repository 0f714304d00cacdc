"""A checkpoint of each rank's part, by orbax, as docs/other_tools.md writes it."""

import os

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint

import mpixla
import pages


def test_page(comm, rank, size, tmp_path):
    """What comes back is what was saved, and any rank can read another's part."""
    before = os.getcwd()
    os.chdir(comm.bcast(str(tmp_path), 0))
    names = {}
    for block in pages.blocks(pages.DOCS / "other_tools.md", "python"):
        if block.text.startswith(("import jax\n", "from pathlib", "import orbax")):
            exec(block.text, names)
    comm.Barrier()
    np.testing.assert_array_equal(names["back"]["u"], np.arange(6) + 10 * rank)
    assert names["back"]["step"] == 7
    other = (rank + 1) % size
    with orbax.checkpoint.StandardCheckpointer() as checkpointer:
        back = checkpointer.restore(names["here"].with_name(f"rank-{other}-of-{size}"), names["state"])
    np.testing.assert_array_equal(back["u"], np.arange(6) + 10 * other)
    assert mpixla.vdot(back["u"], back["u"]) == sum(((np.arange(6) + 10 * r) ** 2).sum() for r in range(size))
    assert isinstance(back["u"], jnp.ndarray)
    comm.Barrier()
    os.chdir(before)
