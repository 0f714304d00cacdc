"""The fake GPU: putting mpixla's device handlers behind the seam, and what tests ask and tell the fakes.

The libraries are those that `make fake-device` builds from native/test/gpu. MPIXLA_FAKE_DEVICE_LIBRARY names another
libmpixla_fake_gpu.so; its neighbour libmpixla_mpi_gate.so is used for the transport `mpi`.
MPIXLA_FAKE_DEVICE_PLATFORM=ROCM makes it an AMD GPU: mpixla then takes its handlers for ROCM, and HIP's functions.
ONEAPI makes it Intel's, with dpctl's.
"""

import contextlib
import ctypes
import functools
import os
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_int64, c_size_t, c_uint64, c_void_p, py_object
from pathlib import Path
from typing import NamedTuple

PATH = Path(
    os.environ.get("MPIXLA_FAKE_DEVICE_LIBRARY")
    or Path(__file__).parents[2] / "build/fake-device/libmpixla_fake_gpu.so"
)

# Where mpixla takes the driver and NCCL from, on each of XLA's platforms.
LIBRARIES = {
    "CUDA": ("MPIXLA_CUDA_LIBRARY", "MPIXLA_NCCL_LIBRARY"),
    "ROCM": ("MPIXLA_HIP_LIBRARY", "MPIXLA_RCCL_LIBRARY"),
    "ONEAPI": ("MPIXLA_SYCL_LIBRARY",),
}
PLATFORM = os.environ.get("MPIXLA_FAKE_DEVICE_PLATFORM") or "CUDA"


class _Noted(ctypes.Structure):
    _fields_ = (("function", c_char_p), ("bytes", c_uint64), ("thread", c_uint64))


class Call(NamedTuple):
    """A call of the driver's or NCCL's that was made."""

    function: str
    bytes: int
    thread: int


@functools.cache
def library():
    """Return the fake GPU's library."""
    try:
        lib = ctypes.CDLL(str(PATH))
    except OSError as e:
        raise ImportError(f"MPIXLA_FAKE_DEVICE is set, but there is no fake GPU ({e}): make fake-device") from e
    for name, result, arguments in (
        ("fake_calls_count", c_int64, [c_char_p]),
        ("fake_calls_read", c_int, [c_int64, POINTER(_Noted)]),
        ("fake_calls_forget", None, []),
        ("fake_fail", c_int, [c_char_p, c_int64, c_int]),
        ("fake_fail_nothing", None, []),
        ("fake_fail_may_pass", c_int, [c_int]),
        ("fake_complaint_take", c_int, [c_char_p, c_size_t]),
        ("fake_memory_live", c_int64, []),
        ("fake_pinned_live", c_int64, []),
        ("fake_pinned_bytes", c_int64, []),
        ("fake_events_live", c_int64, []),
        ("seam_wrapper", c_void_p, [c_char_p]),
        ("seam_handler_set", c_int, [c_char_p, c_void_p]),
        ("seam_calls", c_int64, []),
    ):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


def _address(capsule):
    pointer = CFUNCTYPE(c_void_p, py_object, c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
    return pointer(capsule, None)


def _register_behind_the_seam(register):
    """Register a target as JAX does, but the CPU's handlers of mpixla for the fake's platform."""
    import jax

    @functools.wraps(register)
    def register_ffi_target(name, fn, platform="cpu", *args, **kwargs):
        wrapper = library().seam_wrapper(name.encode())
        if not wrapper:
            if name.startswith("mpixla_"):
                raise ValueError(f"the seam does not know the target {name}: is it built from these sources?")
            return register(name, fn, platform, *args, **kwargs)
        if platform != PLATFORM:
            return None
        stages = fn if isinstance(fn, dict) else {"execute": fn}
        library().seam_handler_set(name.encode(), _address(stages["execute"]))
        return register(name, {**stages, "execute": jax.ffi.pycapsule(wrapper)}, "cpu", *args, **kwargs)

    return register_ffi_target


@contextlib.contextmanager
def prepared():
    """Prepare the import of mpixla, which happens in the with body."""
    import jax

    library()
    for variable in LIBRARIES[PLATFORM]:
        os.environ.setdefault(variable, str(PATH))
    jax.ffi.register_ffi_target = _register_behind_the_seam(jax.ffi.register_ffi_target)
    with _gate() if os.environ.get("MPIXLA_GPU_TRANSPORT") == "mpi" else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def _gate():
    """Let mpixla find the gate in place of mpi4py's extension module, by which it finds MPI."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):
        yield  # mpixla has the words for it
        return
    path = str(PATH.with_name("libmpixla_mpi_gate.so"))
    gate = ctypes.CDLL(path)
    gate.mpi_gate_start.restype, gate.mpi_gate_start.argtypes = c_char_p, [c_char_p, c_char_p]
    wrong = gate.mpi_gate_start(MPI.__file__.encode(), str(PATH).encode())
    if wrong:
        raise SystemExit(f"the gate to MPI cannot be used: {wrong.decode()}")
    file, MPI.__file__ = MPI.__file__, path
    try:
        yield
    finally:
        MPI.__file__ = file


def calls(function=None):
    """Return the calls of one function of the driver's or NCCL's, or of all, since `forget`, oldest first."""
    noted, found = _Noted(), []
    for number in range(library().fake_calls_count(None)):
        if library().fake_calls_read(number, ctypes.byref(noted)) == 0:
            found.append(Call(noted.function.decode(), noted.bytes, noted.thread))
    return [call for call in found if function in (None, call.function)]


def count(function=None):
    """Return how many calls of one function, or of all, were made since `forget`."""
    number = library().fake_calls_count(function.encode() if function else None)
    if number < 0:
        raise ValueError(f"neither the driver nor NCCL has {function}")
    return number


def forget():
    """Forget all calls that were made."""
    library().fake_calls_forget()


def moved(function):
    """Return how many bytes the calls of one function moved since `forget`."""
    return sum(call.bytes for call in calls(function))


@contextlib.contextmanager
def failing(function, nth, code, may_pass=False):
    """Let the nth call of the function from now fail with the code; 0: every call.

    A handler that succeeds all the same is an error of its own, except where it may.
    """
    before = library().fake_fail_may_pass(int(may_pass))
    if library().fake_fail(function.encode(), nth, code):
        raise ValueError(f"neither the driver nor NCCL has {function}")
    try:
        yield
    finally:
        library().fake_fail_nothing()
        library().fake_fail_may_pass(before)


def skipping(function, nth=0):
    """Let the nth call of the function from now, or all calls, succeed and do nothing, to break their caller."""
    return failing(function, nth, -1)


def complaint():
    """Return the complaint of the fakes about an action outside of calls, or None."""
    text = ctypes.create_string_buffer(1024)
    return text.value.decode() if library().fake_complaint_take(text, len(text)) else None


def live():
    """Return the numbers of allocated pieces of device memory, pieces of pinned memory, and events."""
    lib = library()
    return lib.fake_memory_live(), lib.fake_pinned_live(), lib.fake_events_live()
