"""The end of a process: what still runs is waited for, and a rank that fails takes the job down."""

import atexit
import os
import sys
import time
from types import TracebackType

import jax
import jax.numpy as jnp

from . import native
from .mpi import MPI
from .private_jax import jax_has_started

_previous_hook = sys.excepthook

# Seconds for mpirun to forward what was printed: it drops the rest when a job aborts.
_FORWARDING = 0.3


def install() -> None:
    """Registers the exit handler and, unless ``MPIXLA_ABORT=0``, the hook for uncaught exceptions."""
    # Handlers run in reverse order of registration: ours before JAX's own, and before mpi4py finalizes MPI.
    atexit.register(_wait)
    if os.environ.get("MPIXLA_ABORT", "1").lower() not in ("0", "false", "off", "no"):
        sys.excepthook = _abort_job


def _can_abort() -> bool:
    interactive = hasattr(sys, "ps1")
    alone = not MPI.Is_initialized() or MPI.Is_finalized() or MPI.COMM_WORLD.Get_size() == 1
    return not (interactive or alone)


def _abort_job(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
    """Prints the exception and ends all ranks: they may be waiting for this one."""
    _previous_hook(kind, value, trace)
    if _can_abort():
        rank = MPI.COMM_WORLD.Get_rank()
        sys.stderr.write(
            f"mpixla: rank {rank} ended with an uncaught {kind.__name__} (above), so the whole job is aborted. "
            "Set MPIXLA_ABORT=0 to let the other ranks go on.\n"
        )
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(_FORWARDING)
        MPI.COMM_WORLD.Abort(1)


def _wait() -> None:
    """Waits for the programs that this process has dispatched, before MPI is finalized."""
    if MPI.Is_finalized() or not jax_has_started():
        return
    try:
        # Programs run in the order of their dispatch (ARCHITECTURE.md, "Order"), so the last one waits for all.
        jax.block_until_ready(jax.jit(jnp.negative)(jnp.zeros(())))
        jax.effects_barrier()
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__)
    # Threads of the user's have an order of their own; what they dispatched may still be inside MPI.
    while native.lib.mpixla_calls_in_flight():
        time.sleep(0.001)
    native.lib.mpixla_requests_end()
