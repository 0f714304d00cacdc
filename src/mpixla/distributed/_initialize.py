"""The start of JAX's processes over MPI."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from mpi4py import MPI

from ..base import jax_settings
from ..base.required import jax_has_started
from ..base.speaker import print_message
from ..extend import limit_wait
from . import _cliques, _trampoline
from ._coordinator import find_coordinator

_initialize_of_jax = jax.distributed.initialize
_is_initialized = False


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    local_device_ids: Any = None,
    cluster_detection_method: str | None = None,
    **options: Any,
) -> None:
    """Call ``jax.distributed.initialize`` with MPI's ranks as processes and a coordinator that is found over MPI.

    All ranks of ``MPI.COMM_WORLD`` must call it, before any of them computes with JAX. Then ``jax.devices()`` has the
    devices of all ranks, one each on CPUs, and JAX's process *i* is MPI's rank *i*. The collectives of programs, both
    explicit ones (``jax.lax.psum``) and those that XLA inserts for sharded arrays, go over MPI.

    Args:
        coordinator_address: the coordinator's address; by default one that all ranks reach.
        num_processes: the number of ranks; it may be left out.
        process_id: the rank; it may be left out.
        local_device_ids: passed on to JAX.
        cluster_detection_method: ignored.
        **options: passed on to ``jax.distributed.initialize``, such as time limits.

    Raises:
        RuntimeError: if the job was not started by ``python -m mpixla.distributed``, if JAX has started, if this was
            called before, if MPI was initialized with less than ``MPI_THREAD_MULTIPLE``, or if the program has set
            one of JAX's variables in the environment, which has no effect.
        ValueError: if the processes are not MPI's, or if JAX is set to have several CPU devices in a process.

    Example:
        >>> import jax, mpixla.distributed
        >>> mpixla.distributed.initialize()
        >>> jax.process_count() == jax.device_count()
        True
    """
    global _is_initialized
    rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
    if process_id not in (None, rank) or num_processes not in (None, size):
        raise ValueError(
            f"jax.distributed.initialize was given process_id={process_id} and num_processes={num_processes}, but this "
            f"process is rank {rank} of {size} under MPI. Leave both out, or pass MPI's."
        )
    _refuse_impossible_start()
    jax_settings.refuse_late()
    if jax.config.jax_cpu_collectives_implementation == "gloo" and rank == 0:  # type: ignore[attr-defined]
        print_message(
            "mpixla: the program asks for gloo (jax_cpu_collectives_implementation), but under python -m "
            f"{_trampoline.LAUNCHER} JAX's collectives go over MPI. For gloo, start the program without it.\n"
        )
    jax.config.update("jax_cpu_collectives_implementation", "mpi")
    # Where a cluster is detected, the address comes from MPI as well; it is the same on all ranks or on none.
    with limit_wait("mpixla.distributed.initialize()", "All ranks must call it, and another one has not."):
        coordinator_address = coordinator_address or find_coordinator()
    _initialize_of_jax(
        coordinator_address,
        num_processes=size,
        process_id=rank,
        local_device_ids=local_device_ids,
        cluster_detection_method="deactivate",
        **options,
    )
    _cliques.install()
    _is_initialized = True


def _refuse_impossible_start() -> None:
    """Raise RuntimeError or ValueError where ``initialize`` is impossible: without the launcher, twice, or too late."""
    if _trampoline.why_not:
        raise RuntimeError(f"mpixla.distributed.initialize() needs the launcher, and {_trampoline.why_not}.")
    if _is_initialized:
        raise RuntimeError("mpixla.distributed.initialize() was called before. Call it once.")
    if jax_has_started():
        raise RuntimeError(
            "mpixla.distributed.initialize() was called after JAX had started. Call it before anything that computes "
            "or asks for devices, such as jnp.zeros or jax.devices."
        )
    if MPI.Query_thread() != MPI.THREAD_MULTIPLE:
        raise RuntimeError(
            "mpixla.distributed needs MPI_THREAD_MULTIPLE, since XLA calls MPI from several threads, but "
            "MPI was initialized with less. Leave mpi4py.rc.thread_level as it is, or use an MPI that has it."
        )
    devices = jax.config.jax_num_cpu_devices  # type: ignore[attr-defined]
    if devices > 1:
        raise ValueError(
            f"JAX was told to have {devices} CPU devices in a process (jax_num_cpu_devices), but over MPI a process "
            "has one. Start one process a device."
        )


def wrap_make_mesh(make_mesh: Any) -> Any:
    """Return a ``jax.make_mesh`` that also makes meshes of CPUs of several hosts, in the order of the devices.

    JAX takes each host for a slice of accelerators, with a fast network inside and a slow one between, and refuses to
    make a mesh of several. Under MPI there is one network.
    """

    @functools.wraps(make_mesh)
    def make_mesh_over_hosts(
        axis_shapes: Sequence[int], axis_names: Any, *types: Any, devices: Sequence[Any] | None = None, **named: Any
    ) -> Any:
        """Make a mesh as JAX does; over CPUs of several hosts, with the devices in their order."""
        used = (jax.devices() if devices is None else list(devices))[: math.prod(axis_shapes)]
        if not _are_cpus_of_several_hosts(used) or len(used) < math.prod(axis_shapes):
            return make_mesh(axis_shapes, axis_names, *types, devices=devices, **named)
        # A mesh of one device shows how this version of JAX interprets the other arguments, and their defaults.
        one = make_mesh([1] * len(axis_shapes), axis_names, *types, devices=used[:1], **named)
        return jax.sharding.Mesh(np.array(used).reshape(axis_shapes), one.axis_names, axis_types=one.axis_types)

    return make_mesh_over_hosts


def _are_cpus_of_several_hosts(devices: list[Any]) -> bool:
    slices = {getattr(device, "slice_index", 0) for device in devices}
    return len(slices) > 1 and all(device.platform == "cpu" for device in devices)
