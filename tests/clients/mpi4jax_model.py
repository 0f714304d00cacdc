"""Some steps of mpi4jax's own example, as it is in mpi4jax's source distribution; saves the whole domain's fields.

Started under mpixla.compat on 1, 2 or 4 ranks: python -m mpixla.compat mpi4jax mpi4jax_model.py STEPS FILE.npz
"""

import sys

import jax
import numpy as np
from mpi4py import MPI

jax.config.update("jax_enable_x64", True)  # so that fields can be compared over many steps

import shallow_water as example  # noqa: E402

comm = MPI.COMM_WORLD
steps, file = int(sys.argv[1]), sys.argv[2]
state = example.solve_shallow_water(t1=2 * steps * example.dt, num_multisteps=steps)[-1]
gathered = comm.gather([np.asarray(field) for field in state])
if gathered is not None:
    whole = np.asarray(example.reassemble_array(np.stack(gathered, axis=1)))
    fields = zip(state._fields, whole[:, 1:-1, 1:-1], strict=True)
    np.savez(file, **{name: field for name, field in fields if name in ("h", "u", "v")})
