import jax.numpy as jnp
import mpixla
import numpy as np
from mpi4py import MPI


def test_allreduce(comm):
    x = jnp.arange(3.0) + comm.Get_rank()
    np.testing.assert_array_equal(
        mpixla.allreduce(x, op=MPI.SUM), sum(np.arange(3.0) + r for r in range(comm.Get_size()))
    )
