"""mpixla: MPI communication of JAX arrays from inside ``jax.jit``.

Importing it is collective: all processes of ``MPI.COMM_WORLD`` must import it.
"""

import inspect
from importlib import metadata as _metadata

# Before anything that imports JAX. As `python -m mpixla run` the process becomes MPI's launcher here.
from . import launch as _launch  # noqa: F401
from .runtime import spawned as _spawned  # noqa: F401
from .runtime import trampoline as _trampoline  # noqa: F401

# isort: split
from .core import jit as _jit
from .core import loops as _loops
from .core import reveal as _reveal
from .core.export import export_checks
from .core.jit import jit
from .ops import decisions as _decisions
from .ops.collective import (
    allgather,
    allreduce,
    alltoall,
    barrier,
    bcast,
    exscan,
    gather,
    pvary,
    reduce,
    reduce_scatter,
    scan,
    scatter,
)
from .ops.halo import halo_exchange
from .ops.halves import halo_start, halo_wait
from .ops.inner import norm, vdot
from .ops.jacobian import jacfwd, jacrev
from .ops.neighbor import neighbor_allgather, neighbor_alltoall, neighbor_alltoallv
from .ops.point_to_point import recv, send, sendrecv
from .ops.ragged import ragged_all_to_all
from .ops.replicated import assert_replicated
from .ops.request import (
    Request,
    after_start,
    before_wait,
    iallgather,
    iallreduce,
    ialltoall,
    ibcast,
    irecv,
    ireduce_scatter,
    isend,
    isendrecv,
    wait,
    waitall,
)
from .ops.vector import allgatherv, alltoallv, gatherv, scatterv
from .runtime import agreement as _agreement
from .runtime import exit as _exit
from .runtime import settings as _settings
from .runtime import signatures as _signatures
from .runtime import turns as _turns
from .runtime import versions as _versions
from .runtime.comm import Shift, comm_of, get_default_comm
from .runtime.gpu import has_cuda_support, has_rocm_support, has_sycl_support, select_local_gpu
from .runtime.native import set_logging
from .runtime.versions import JaxVersionWarning as JaxVersionWarning

__all__ = [
    "Request",
    "Shift",
    "after_start",
    "allgather",
    "allgatherv",
    "allreduce",
    "alltoall",
    "alltoallv",
    "assert_replicated",
    "barrier",
    "bcast",
    "before_wait",
    "export_checks",
    "exscan",
    "gather",
    "gatherv",
    "get_default_comm",
    "halo_exchange",
    "halo_start",
    "halo_wait",
    "has_cuda_support",
    "has_rocm_support",
    "has_sycl_support",
    "iallgather",
    "iallreduce",
    "ialltoall",
    "ibcast",
    "irecv",
    "ireduce_scatter",
    "isend",
    "isendrecv",
    "jacfwd",
    "jacrev",
    "jit",
    "neighbor_allgather",
    "neighbor_alltoall",
    "neighbor_alltoallv",
    "norm",
    "pvary",
    "ragged_all_to_all",
    "recv",
    "reduce",
    "reduce_scatter",
    "scan",
    "scatter",
    "scatterv",
    "select_local_gpu",
    "send",
    "sendrecv",
    "set_logging",
    "vdot",
    "wait",
    "waitall",
]

__version__ = _metadata.version("mpixla")


def __dir__() -> list[str]:
    return __all__


# Number 1 on every rank in every run, so that a program that was exported elsewhere finds it (docs/jax.md).
comm_of(get_default_comm())
_agreement.settle()
_decisions.install()
_turns.install()
_exit.install()
_jit.install()
_loops.install()
_reveal.install()
for _name in __all__:
    if inspect.isfunction(globals()[_name]):
        globals()[_name] = _signatures.present(globals()[_name])
_versions.notice()
if _settings.is_on("MPIXLA_DEBUG"):
    set_logging(True)
