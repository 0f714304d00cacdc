"""mpixla: MPI communication of JAX arrays from inside ``jax.jit``.

Importing it is collective: all processes of ``MPI.COMM_WORLD`` must import it.
"""

# Before anything that imports JAX. As `python -m mpixla run` the process becomes MPI's launcher here.
from . import satellites as _satellites
from .base import spawned as _spawned  # noqa: F401
from .base import started as _started

# isort: split
from . import patches as _patches
from .base import settings as _settings
from .base import speaker as _speaker
from .checks import agreement as _agreement
from .checks import exit as _exit
from .core.export import export_checks
from .core.jit import jit
from .core.rank import rank
from .mpi.comm import Shift, comm_of, default_comm, get_default_comm, hashable_comm, size
from .mpi.errors import MPIError, error_of
from .mpi.gpu import has_cuda_support, has_rocm_support, has_sycl_support, select_local_gpu
from .mpi.mpi import MPI as _MPI
from .mpi.native import set_logging
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
from .ops.exact import fsum
from .ops.halo import halo_exchange, halo_start
from .ops.inner import norm, vdot
from .ops.neighbor import neighbor_allgather, neighbor_alltoall, neighbor_alltoallv
from .ops.point_to_point import MessageStatus, recv, send, sendrecv, shift
from .ops.replicated import assert_replicated
from .ops.request import (
    Request,
    iallgather,
    iallreduce,
    ialltoall,
    ialltoallv,
    ibarrier,
    ibcast,
    iexscan,
    igather,
    irecv,
    ireduce,
    ireduce_scatter,
    iscan,
    iscatter,
    isend,
    isendrecv,
    overlap,
    wait,
    waitall,
)
from .ops.vector import allgatherv, alltoallv, gatherv, ragged_all_to_all, scatterv
from .patches import JaxVersionWarning as JaxVersionWarning

__all__ = [
    "MPIError",
    "MessageStatus",
    "Request",
    "Shift",
    "allgather",
    "allgatherv",
    "allreduce",
    "alltoall",
    "alltoallv",
    "assert_replicated",
    "barrier",
    "bcast",
    "default_comm",
    "error_of",
    "export_checks",
    "exscan",
    "fsum",
    "gather",
    "gatherv",
    "get_default_comm",
    "halo_exchange",
    "halo_start",
    "has_cuda_support",
    "has_rocm_support",
    "has_sycl_support",
    "hashable_comm",
    "iallgather",
    "iallreduce",
    "ialltoall",
    "ialltoallv",
    "ibarrier",
    "ibcast",
    "iexscan",
    "igather",
    "irecv",
    "ireduce",
    "ireduce_scatter",
    "iscan",
    "iscatter",
    "isend",
    "isendrecv",
    "jit",
    "neighbor_allgather",
    "neighbor_alltoall",
    "neighbor_alltoallv",
    "norm",
    "overlap",
    "pvary",
    "ragged_all_to_all",
    "rank",
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
    "shift",
    "size",
    "vdot",
    "wait",
    "waitall",
]


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> str:
    if name == "__version__":  # which takes a while to read
        from importlib import metadata

        return metadata.version(__name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# Number 1 on every rank in every run, so that a program that was exported elsewhere finds it (docs/other_tools.md).
comm_of(None)
# The end of the process first, so that what fails from here on, on one rank only as well, ends the job; then what the
# ranks agree on, before anything that depends on it.
_exit.install()
if _started.is_of_run():
    _satellites.own_process()
_agreement.begin_agreed_parts()
_patches.install()
if (_report := _settings.removed_variables_report()) and _MPI.COMM_WORLD.Get_rank() == 0:
    _speaker.print_message(_report)
_patches.warn_of_newer_jax()
if _settings.is_on("MPIXLA_DEBUG"):
    set_logging(True)
