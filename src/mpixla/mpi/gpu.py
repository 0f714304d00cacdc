"""GPUs: the use of GPUs in this process and its job, the transport of their arrays, and a GPU for each rank."""

import ctypes
import functools
import os
import warnings
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax

from ..base.required import jax_has_started
from ..base.tracebacks import public
from . import native
from .comm import comm_of, communicator_of
from .mpi import MPI

# Variables that name a driver for the C library instead of the system's.
_DRIVER_VARIABLES = ("MPIXLA_CUDA_LIBRARY", "MPIXLA_HIP_LIBRARY", "MPIXLA_SYCL_LIBRARY")

# JAX's options for the visible devices of the platforms in native/device/driver_types.h.
_VISIBLE_DEVICES = {
    "CUDA": "jax_cuda_visible_devices",
    "ROCm": "jax_rocm_visible_devices",
    "SYCL": "jax_oneapi_visible_devices",
}

in_job = _here = False  # True if any rank of the job may use a GPU; True if this rank may


def read_settings() -> bool:
    """Return whether this rank may use a GPU, for the agreement of all ranks at import; keep the answer, too."""
    global _here
    _here = _is_possible()
    return _here


def start_gpus(rank_settings: Sequence[bool]) -> None:
    """Tell the C library the user's transport, whether any rank may use a GPU, and, where one is here, NCCL's file.

    Args:
        rank_settings: for each rank, whether it may use a GPU.

    Raises:
        ValueError: if the C library refuses the transport.
    """
    global in_job
    transport = os.environ.get("MPIXLA_GPU_TRANSPORT") or "auto"
    native.check_result(native.lib.mpixla_gpu_transport_set(os.fsencode(transport)))
    in_job = any(rank_settings)
    native.lib.mpixla_gpus_expect(in_job, _here)
    if not _here:
        return
    if nccl := _nccl_file():
        native.lib.mpixla_nccl_file_add(os.fsencode(nccl))
    if why_not := mpi_refuses():
        native.lib.mpixla_gpu_mpi_refuse(why_not.encode(errors="replace"))


def note_missing_gpu() -> None:
    """Tell the C library if JAX finds no GPU here; called when a program is lowered, by when JAX has started."""
    global _here
    if not _here or any(os.environ.get(name) for name in _DRIVER_VARIABLES):
        return
    try:
        jax.devices("gpu")
    except RuntimeError:
        _here = False
        native.lib.mpixla_gpus_expect(in_job, _here)
    else:
        _warn_of_second_mpi()


@functools.cache
def _warn_of_second_mpi() -> None:
    """Warn, once, if JAX's plugin for Intel's GPUs has loaded an MPI beside that of the program."""
    own = Path(native.lib.mpixla_mpi_file().decode()).resolve()
    if find_spec("jax_oneapi_plugin") is None or not own.name.startswith("libmpi.so"):
        return
    with suppress(OSError):
        lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
        loaded = {line.split(maxsplit=5)[5] for line in lines if "/libmpi.so" in line}
        if others := ", ".join(sorted(loaded - {str(own)})):
            warnings.warn(
                f"JAX's plugin for Intel's GPUs has loaded a second MPI, {others}, beside the program's, {own}. Their "
                "functions have the same names, so that one may call the other's by mistake: use MPICH or Intel MPI "
                "in this program (docs/gpu.md)",
                RuntimeWarning,
                stacklevel=2,
            )


def _is_possible() -> bool:
    """Return whether JAX may run on a GPU here, without starting it; pass HIP's and SYCL's files to the C library."""
    if not any(os.environ.get(name) for name in _DRIVER_VARIABLES):
        platforms = jax.config.jax_platforms  # type: ignore[attr-defined]
        if platforms and not {"cuda", "rocm", "oneapi", "gpu"} & set(platforms.split(",")):
            return False
        if find_spec("jax_plugins") is None:
            return False
        if hip := _hip_file():
            native.lib.mpixla_hip_file_add(os.fsencode(hip))
        if sycl := _sycl_file():
            native.lib.mpixla_sycl_file_add(os.fsencode(sycl))
    return bool(native.lib.mpixla_gpu_is_possible())


def _hip_file() -> str | None:
    """Return the HIP library that JAX's plugin will load, or None: a process must not load two of them."""
    folders = [Path(folder) for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]
    folders += [*_libraries_of("rocm"), *_libraries_of("_rocm_sdk_core"), Path("/opt/rocm/lib")]
    return _first_of(folders, "libamdhip64.so.7", "libamdhip64.so.6")


def _sycl_file() -> str | None:
    """Return dpctl's C interface to SYCL; None if it or JAX's plugin for Intel's GPUs is not installed."""
    if find_spec("jax_oneapi_plugin") is None:
        return None
    return _first_of(_folders_of("dpctl"), "libDPCTLSyclInterface.so")


def _nccl_file() -> str | None:
    """Return the NCCL library of JAX's CUDA packages; None if it is not installed."""
    return _first_of(_libraries_of("nvidia.nccl"), "libnccl.so.2")


def _libraries_of(package: str) -> list[Path]:
    """Return the ``lib`` folders of an installed Python package; [] if it is not installed."""
    return [folder / "lib" for folder in _folders_of(package)]


def _folders_of(package: str) -> list[Path]:
    """Return the folders of an installed Python package; [] if it is not installed."""
    with suppress(ModuleNotFoundError):  # find_spec raises it if the parent package is missing
        if spec := find_spec(package):
            return list(map(Path, spec.submodule_search_locations or ()))
    return []


def _first_of(folders: Sequence[Path], *names: str) -> str | None:
    files = (folder / name for folder in folders for name in names)
    return next((str(file) for file in files if file.exists()), None)


def mpi_refuses() -> str | None:
    """Return why MPI does not accept a GPU's memory, by its own account; None if it says that it does."""
    library = ctypes.CDLL(str(MPI.__file__))  # also has the functions of the MPI that it has loaded
    answers = []
    if hasattr(library, "MPIX_GPU_query_support"):  # MPICH's; 0 is CUDA, 1 Level Zero, 2 HIP
        for kind in (0, 1, 2):
            answer = ctypes.c_int()
            if library.MPIX_GPU_query_support(kind, ctypes.byref(answer)) == 0:
                answers.append(bool(answer.value))
    # Open MPI's; the last is MPICH's and Intel MPI's.
    for name in ("MPIX_Query_cuda_support", "MPIX_Query_rocm_support", "MPIX_Query_ze_support"):
        if hasattr(library, name):
            answers.append(bool(getattr(library, name)()))
    if any(answers) or {"cuda", "rocm", "level_zero"} & set(_memory_kinds()):
        return None
    if answers:
        return "this MPI says that it was built without support for GPUs"
    return "this MPI does not say whether it can be given a GPU's memory"


def _memory_kinds() -> list[str]:
    """Return the memory kinds that MPI supports (mpi_memory_alloc_kinds); [] before MPI 4.1."""
    if MPI.Get_version() < (4, 1):
        return []
    info = MPI.COMM_WORLD.Get_info()
    kinds = info.Get("mpi_memory_alloc_kinds") or ""
    info.Free()
    return [kind.split(":")[0] for kind in kinds.split(",")]


def gpu_count(platform: str) -> int:
    """Return the number of GPUs of a platform ("CUDA", "ROCm", "SYCL") that this process can use."""
    return int(native.lib.mpixla_gpu_count(platform.encode()))


def gpu_platform() -> str | None:
    """Return the first platform with a GPU that this process can use; None if there is none."""
    return next((name for name in _VISIBLE_DEVICES if gpu_count(name) > 0), None)


def use_mpi() -> None:
    """Have this rank pass GPU arrays to MPI, unless MPIXLA_GPU_TRANSPORT is set; ValueError if it cannot."""
    if not os.environ.get("MPIXLA_GPU_TRANSPORT"):
        native.check_result(native.lib.mpixla_gpu_transport_set(b"mpi"))


def describe_gpus() -> str:
    """Return in words the GPUs of this rank, or why it has none."""
    if not native.lib.mpixla_gpu_is_possible():
        return f"none: {native.lib.mpixla_last_error().decode()}"
    if not _here:
        return "not used: JAX has no plugin for them here, or is told not to use it (JAX_PLATFORMS)"
    platform = gpu_platform()
    return f"{gpu_count(platform)}, platform {platform}" if platform else "none that this process can use"


def transport_of(comm: Any) -> str:
    """Return in words the transport of GPU arrays in collective calls on a communicator, and the reason for it."""
    text = ctypes.create_string_buffer(1024)
    native.lib.mpixla_gpu_transport_describe(comm_of(comm).id, text, len(text))
    return text.value.decode()


@public
def has_cuda_support() -> bool:
    """Return whether arrays in the memory of an NVIDIA GPU can be communicated.

    They can if there are a CUDA driver and a GPU: nothing else is needed when mpixla is built or installed.

    Example:
        >>> import mpixla
        >>> mpixla.has_cuda_support() in (True, False)
        True
    """
    return gpu_count("CUDA") > 0


@public
def has_rocm_support() -> bool:
    """Return whether arrays in the memory of an AMD GPU can be communicated.

    Example:
        >>> import mpixla
        >>> mpixla.has_rocm_support() in (True, False)
        True
    """
    return gpu_count("ROCm") > 0


@public
def has_sycl_support() -> bool:
    """Return whether arrays in the memory of an Intel GPU can be communicated.

    They can if there are JAX's plugin for Intel's GPUs, the package dpctl, and a GPU that SYCL finds.

    Example:
        >>> import mpixla
        >>> mpixla.has_sycl_support() in (True, False)
        True
    """
    return gpu_count("SYCL") > 0


@public
def select_local_gpu(comm: MPI.Intracomm | None = None) -> int | None:
    """Select a GPU for each rank of a host, and return its number. Call it before anything that starts JAX.

    JAX takes the first visible GPU in every process, so that all ranks of a host share it. This function makes only
    the first GPU visible to rank 0 of the host, the second one to rank 1, and so on, from the beginning again if there
    are more ranks than GPUs. If the launcher has given each rank a GPU, each rank sees one, and keeps it. All ranks of
    ``comm`` must call it.

    Args:
        comm: a communicator of all ranks that share GPUs; by default the one of all processes.

    Returns:
        The number of the GPU among those that this process sees, or None if there is none: JAX then uses the CPU.

    Raises:
        RuntimeError: if JAX has started, and has chosen a GPU.

    Example:
        >>> import mpixla
        >>> mpixla.select_local_gpu()  # doctest: +SKIP
        0
    """
    if jax_has_started():
        raise RuntimeError(
            "select_local_gpu was called after JAX had started, which has taken a GPU by then. Call it before the "
            "first array is made, and before jax.devices() and the like."
        )
    local = communicator_of(comm).Split_type(MPI.COMM_TYPE_SHARED)
    rank = local.Get_rank()
    local.Free()
    platform = gpu_platform()
    if platform is None:
        return None
    gpu = rank % gpu_count(platform)
    jax.config.update(_VISIBLE_DEVICES[platform], str(gpu))
    return gpu
