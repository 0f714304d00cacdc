"""Some steps of an ocean model of Veros, whose code knows mpi4jax only; saves the whole domain's fields.

Started under mpixla.compat on any number of ranks: python -m mpixla.compat NAME veros_model.py STEPS FILE.npz
"""

import sys
from types import ModuleType

import numpy as np
from mpi4py import MPI
from veros import runtime_settings, runtime_state

comm = MPI.COMM_WORLD
steps, file = int(sys.argv[1]), sys.argv[2]
parts = (comm.size // 2, 2) if comm.size > 2 else (comm.size, 1)
runtime_settings.update(
    backend="jax",
    num_proc=parts,
    loglevel="error",
    linear_solver="scipy_jax",
    diskless_mode=True,
)

# Veros's own compiled kernel needs a JAX that is no more; without it Veros computes the same in JAX.
kernel = ModuleType("veros.core.special.tdma_")
kernel.tdma, kernel.HAS_CPU_EXT, kernel.HAS_GPU_EXT = None, False, False
sys.modules[kernel.__name__] = kernel

from veros.setups.acc_basic.acc_basic import ACCBasicSetup  # noqa: E402

STEP = 86400.0 / 2
FIELDS = ("temp", "u", "v", "psi")
GHOSTS = 2

model = ACCBasicSetup(override={"runlen": steps * STEP})
model.setup()
for diagnostic in model.state.diagnostics.values():
    diagnostic.output_frequency = diagnostic.sampling_frequency = float("inf")
model.run(show_progress_bar=False)

variables = model.state.variables
blocks = {name: np.asarray(getattr(variables, name))[..., int(variables.tau)] for name in FIELDS}
inside = {name: block[GHOSTS:-GHOSTS, GHOSTS:-GHOSTS] for name, block in blocks.items()}
gathered = comm.gather((runtime_state.proc_idx, inside))
if gathered is not None:
    block_at = dict(gathered)
    whole = {
        name: np.concatenate(
            [np.concatenate([block_at[i, j][name] for j in range(parts[1])], axis=1) for i in range(parts[0])]
        )
        for name in FIELDS
    }
    np.savez(file, **whole)
