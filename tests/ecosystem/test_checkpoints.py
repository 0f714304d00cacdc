"""A checkpoint of each rank's part, by orbax."""

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint

import mpixla


def test_each_rank_its_own(comm, rank, size, tmp_path):
    folder = comm.bcast(str(tmp_path), 0)
    part = {"u": jnp.arange(4.0) + rank, "step": jnp.int32(7)}
    with orbax.checkpoint.StandardCheckpointer() as checkpointer:
        checkpointer.save(f"{folder}/rank-{rank}-of-{size}", part)
        checkpointer.wait_until_finished()
        comm.Barrier()
        back = checkpointer.restore(f"{folder}/rank-{(rank + 1) % size}-of-{size}", part)
        comm.Barrier()
    np.testing.assert_array_equal(back["u"], np.arange(4.0) + (rank + 1) % size)
    assert mpixla.vdot(back["u"], back["u"]) == sum(((np.arange(4) + r) ** 2).sum() for r in range(size))
    assert back["step"] == 7
