"""The contenders that run Veros, an ocean model whose code knows mpi4jax only: time steps of its setup acc_basic.

python bench/veros_worker.py SOCKET mpixla|mpi4jax, under mpirun.
"""

import sys
from types import ModuleType

from mpi4py import MPI

if sys.argv[2] == "mpixla":
    from mpixla.compat import install

    install("mpi4jax")

from veros import runtime_settings

from worker import repeat, serve

comm = MPI.COMM_WORLD.Dup()  # of the barriers, so that they never meet the library's messages
STEP = 86400.0 / 2  # seconds of the model's time

runtime_settings.update(
    backend="jax", num_proc=(comm.size, 1), loglevel="error", linear_solver="scipy_jax", diskless_mode=True
)
# Veros's own compiled kernel needs a JAX that is no more; without it Veros computes the same in JAX.
kernel = ModuleType("veros.core.special.tdma_")
kernel.tdma, kernel.HAS_CPU_EXT, kernel.HAS_GPU_EXT = None, False, False  # type: ignore[attr-defined]
sys.modules[kernel.__name__] = kernel

from veros.setups.acc_basic.acc_basic import ACCBasicSetup  # noqa: E402

model = ACCBasicSetup(override={"runlen": STEP})
model.setup()
for diagnostic in model.state.diagnostics.values():
    diagnostic.output_frequency = diagnostic.sampling_frequency = float("inf")
model.run(show_progress_bar=False)  # compiles


def steps(count: int) -> list[list[float]]:
    def run() -> None:
        for _ in range(count):
            model.step(model.state)

    return [[seconds / count for seconds in one] for one in repeat([run], 1, comm.Barrier)]


serve(sys.argv[1], comm.rank, {"steps": steps})
