"""The C library: loading it, connecting it to the MPI that mpi4py has loaded, and its tables."""

import ctypes
import sys
import threading
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any, NamedTuple

import jax

from ..base import speaker
from ..base.files import own_file
from ..base.tracebacks import public
from ..base.words import as_flag
from .mpi import MPI


class NamedInt(int):
    """An int whose repr is its name."""

    _name: str

    def __new__(cls, value: int, name: str) -> "NamedInt":
        """Return a number with a name."""
        self = super().__new__(cls, value)
        self._name = name
        return self

    def __repr__(self) -> str:
        return self._name


# The numbers that programs carry for MPI's special ranks and tags (mpixla.h), equal under every MPI.
ANY_SOURCE = NamedInt(-1, "ANY_SOURCE")
PROC_NULL = NamedInt(-2, "PROC_NULL")
ANY_TAG = NamedInt(-1, "ANY_TAG")
SITE, PACKED = "site", "packed"  # the attributes that lowering adds (sites.py)
NO_STATUS = -1
STATUS_RESULT = -2
STATUS_NUMBERS = -3

# mpixla_where: which ranks pass a buffer.
NOWHERE, EVERYWHERE, ON_ROOT, OFF_ROOT = range(4)


class TraceFacts(ctypes.Structure):
    """The C struct ``mpixla_trace_facts``."""

    _fields_ = (
        ("struct_size", c_size_t),
        ("directory", c_char_p),
        ("limit", c_int64),
        ("ranks", c_int64),
        ("job", c_char_p),
        ("clock", c_char_p),
    )


class Process(ctypes.Structure):
    """The C struct ``mpixla_process``."""

    _fields_ = (("host", c_char_p), ("name", c_char_p), ("number", c_int64))


class Dtype(NamedTuple):
    """A row of native/tables/dtypes.def."""

    name: str
    mpi_name: str
    kind: str
    itemsize: int


class Reduction(NamedTuple):
    """A row of native/tables/reductions.def; its number is its index."""

    name: str
    kinds: tuple[str, ...]


class _HelperRow(NamedTuple):
    """A handler that calls no MPI (mpixla.h)."""

    name: str
    host_handler: int
    device_handler: int


def target_of(name: str) -> str:
    """Return the name of XLA's custom call target for the row ``name`` of ops.def or a helper: mpixla_name."""
    return "mpixla_" + name


class Op(NamedTuple):
    """A row of native/tables/ops.def."""

    name: str
    mpi_name: str
    host_handler: int
    device_handler: int
    send: int
    template: int
    recv: int
    attributes: tuple[str, ...]
    in_place: bool
    request: int  # mpixla_request: its effect on a request
    optional: tuple[str, ...]  # attributes that a program may leave out

    @property
    def target(self) -> str:
        """The custom call target."""
        return target_of(self.name)

    @property
    def parameters(self) -> tuple[str, ...]:
        """The attributes that are parameters of the primitive: those that each call has."""
        return tuple(name for name in self.attributes if name not in self.optional)


ABI_VERSION = 1  # MPIXLA_ABI_VERSION of the mpixla.h that this module is written for


def _load_library() -> Any:
    """Load libmpixla.so and return it; raise ImportError if it is missing or has another ABI version."""
    file = own_file("libmpixla.so")
    try:
        library = ctypes.CDLL(str(file))
        version = library.mpixla_abi_version()
    except OSError as e:
        raise ImportError(f"mpixla's C library cannot be loaded ({e}). Install mpixla again.") from None
    except AttributeError:
        version = None
    if version == ABI_VERSION:
        return library
    found = "no ABI version" if version is None else f"ABI version {version}"
    raise ImportError(
        f"mpixla's C library and its Python files are not of one installation: {file} has {found}, but "
        f"the Python files need {ABI_VERSION}. Install mpixla again."
    )


_thread_states = threading.local()


def make_callback(function: Callable[[], None]) -> Any:
    """Return a C function that calls a Python function, for ``mpixla_front_end_set``.

    The calling thread is the C library's. It keeps the thread state that Python creates at its first call: otherwise
    Python would create and drop one in each call, and crash if ``tracemalloc.stop`` runs meanwhile.
    """

    def call_with_kept_state() -> None:
        if not hasattr(_thread_states, "kept"):
            _thread_states.kept = ctypes.pythonapi.PyGILState_Ensure()  # without PyGILState_Release, which drops it
        function()

    return ctypes.CFUNCTYPE(None)(call_with_kept_state)


lib = _load_library()
WISH_STACKS, WISH_FLUSH, WISH_FLUSH_OWN = range(3)  # mpixla_wish
# Signatures; functions that take only ints and return an int or nothing need none.
for _name, _result, _arguments in (
    ("mpixla_start", c_int, [c_void_p]),
    ("mpixla_mpi_file", c_char_p, []),
    ("mpixla_mpi_tool", c_char_p, []),
    ("mpixla_last_error", c_char_p, []),
    ("mpixla_datatype_bind", c_int, [c_char_p, c_uint64]),
    ("mpixla_reduction_bind", c_int, [c_char_p, c_uint64]),
    ("mpixla_reduction_register", c_int64, [c_uint64]),
    ("mpixla_reduction_keep", c_int, [c_int64, c_void_p]),
    ("mpixla_reduction_is_alive", c_int, [c_int64]),
    ("mpixla_comm_register", c_int64, [c_uint64, c_char_p]),
    ("mpixla_comm_is_alive", c_int, [c_int64]),
    ("mpixla_comm_shift", c_int, [c_int64, POINTER(c_int64), c_int64, POINTER(c_int64)]),
    ("mpixla_comm_members_set", c_int, [c_int64, POINTER(c_int)]),
    ("mpixla_site_name", c_int, [c_int64, c_char_p]),
    ("mpixla_site_call", None, [c_int64]),
    ("mpixla_check_set", c_int, [c_char_p, c_uint64]),
    ("mpixla_check_own_set", c_int, [c_int64]),
    ("mpixla_status_register", c_int64, [c_void_p]),
    ("mpixla_requests_end", c_int64, []),
    ("mpixla_trace_start", c_int, [POINTER(TraceFacts)]),
    ("mpixla_trace_now", c_int64, []),
    ("mpixla_trace_clock", c_int, [c_int64, c_int64, c_int64]),
    ("mpixla_calls_in_flight", c_int64, []),
    ("mpixla_failures_seen", None, [c_char_p]),
    ("mpixla_failures_raised_on", None, [c_void_p]),
    ("mpixla_failures_end", c_int64, []),
    ("mpixla_progress_set", c_int, [c_int64]),
    ("mpixla_timeout_set", c_int, [c_double, c_double, c_uint64, POINTER(Process), c_int64]),
    ("mpixla_front_end_set", None, [c_int, c_void_p]),
    ("mpixla_timeout_stack_give", None, [c_char_p, c_int64]),
    ("mpixla_count_limit_set", c_int64, [c_int64]),
    ("mpixla_gpu_transport_set", c_int, [c_char_p]),
    ("mpixla_gpu_mpi_refuse", None, [c_char_p]),
    ("mpixla_gpu_count", c_int, [c_char_p]),
    ("mpixla_gpu_transport_describe", None, [c_int64, c_char_p, c_size_t]),
    ("mpixla_nccl_file_add", None, [c_char_p]),
    ("mpixla_hip_file_add", None, [c_char_p]),
    ("mpixla_sycl_file_add", None, [c_char_p]),
    ("mpixla_gpu_piece_set", c_int64, [c_int64]),
):
    _function = getattr(lib, _name)
    _function.restype, _function.argtypes = _result, _arguments


def check_result(result: int) -> int:
    """Return a result of a C function; raise ValueError with the C library's error message if it is negative."""
    if result < 0:
        raise ValueError(lib.mpixla_last_error().decode())
    return result


def _read_table(function: Any, row_class: Any, *c_types: Any) -> list[Any]:
    """Read a table of the C library into a list of ``row_class``; its fields are the columns, with texts as ``str``."""

    class TableRow(ctypes.Structure):
        _fields_ = tuple(zip(row_class._fields, c_types, strict=True))

    count, size = c_size_t(), c_size_t()
    function.restype = c_void_p
    first = function(ctypes.byref(count), ctypes.byref(size))
    rows = [TableRow.from_address(first + i * size.value) for i in range(count.value)]
    values = [[getattr(row, name) for name in row_class._fields] for row in rows]
    return [row_class(*(v.decode() if isinstance(v, bytes) else v for v in row)) for row in values]


def _attribute_names() -> list[str]:
    count = c_size_t()
    lib.mpixla_attribute_table.restype = POINTER(c_char_p)
    return [name.decode() for name in lib.mpixla_attribute_table(ctypes.byref(count))[: count.value]]


def handle_of(mpi_object: Any) -> int:
    """Return MPI's handle of an mpi4py object as an unsigned number of 64 bits."""
    return int(MPI._handleof(mpi_object)) % 2**64


def find_mpi(mpi_name: str) -> Any:
    """Return mpi4py's object with an MPI name, such as MPI.SUM for MPI_SUM; AttributeError if it has none."""
    return getattr(MPI, mpi_name.removeprefix("MPI_"))


def _place_in_status(set_it: Any) -> int:
    """Return the byte offset in ``MPI_Status`` of the field that a setter sets: MPI has accessors only since 4.1."""
    status = MPI.Status()
    set_it(status, 0x5A5B5C5D)
    content = ctypes.string_at(MPI._addressof(status), MPI._sizeof(MPI.Status))
    return content.index((0x5A5B5C5D).to_bytes(4, sys.byteorder))


def _pass_mpi_to_library() -> None:
    """Pass the constants and handles of mpi4py's MPI to the C library; raise ImportError if it refuses them."""
    facts = {
        "library": str(MPI.__file__).encode(),
        "handle_size": MPI._sizeof(MPI.Comm),
        "status_size": MPI._sizeof(MPI.Status),
        "status_source": _place_in_status(MPI.Status.Set_source),
        "status_tag": _place_in_status(MPI.Status.Set_tag),
        "any_source": MPI.ANY_SOURCE,
        "any_tag": MPI.ANY_TAG,
        "tag_ub": MPI.COMM_WORLD.Get_attr(MPI.TAG_UB),
        "proc_null": MPI.PROC_NULL,
        "in_place": int(MPI.IN_PLACE),
        "match_first": "MPICH" in MPI.Get_library_version(),
        "cart": MPI.CART,
        "graph": MPI.GRAPH,
        "dist_graph": MPI.DIST_GRAPH,
        "max_error_string": MPI.MAX_ERROR_STRING,
        "err_truncate": MPI.ERR_TRUNCATE,
        "comm_world": handle_of(MPI.COMM_WORLD),
        "comm_self": handle_of(MPI.COMM_SELF),
    }

    class MPIFacts(ctypes.Structure):
        """The C struct ``mpixla_mpi_facts``: its size, the file, and numbers of 64 bits."""

        _fields_ = (
            ("struct_size", c_size_t),
            *((name, c_char_p if name == "library" else c_int64) for name in facts),
        )

    lib.mpixla_output_set(speaker.error_descriptor())
    if lib.mpixla_start(ctypes.byref(MPIFacts(ctypes.sizeof(MPIFacts), **facts))) != 0:
        raise ImportError(f"mpixla cannot use this MPI: {lib.mpixla_last_error().decode()}.")
    # For an MPI without these error classes, mpi4py has the same value for all three, a general error class.
    losses = (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED)
    if len(set(losses)) == len(losses):
        lib.mpixla_loss_classes_set(*losses)
    for mpi_name in {row.mpi_name for row in dtypes.values()}:
        check_result(lib.mpixla_datatype_bind(mpi_name.encode(), handle_of(find_mpi(mpi_name))))
    for row in reductions:
        check_result(lib.mpixla_reduction_bind(row.name.encode(), handle_of(find_mpi(row.name))))


_text, _code = c_char_p, c_void_p
dtypes = {row.name: row for row in _read_table(lib.mpixla_dtype_table, Dtype, _text, _text, _text, c_int64)}
reductions = [
    row._replace(kinds=tuple(row.kinds.split()))
    for row in _read_table(lib.mpixla_reduction_table, Reduction, _text, _text)
]
_pass_mpi_to_library()

_attributes = _attribute_names()
_all_ops = [
    row._replace(
        attributes=tuple(name for i, name in enumerate(_attributes) if row.attributes >> i & 1),
        in_place=bool(row.in_place),
        optional=tuple(name for i, name in enumerate(_attributes) if row.optional >> i & 1),
    )
    for row in _read_table(
        lib.mpixla_op_table, Op, _text, _text, _code, _code, *[c_int] * 3, c_uint32, c_int, c_int, c_uint32
    )
]
ops = {op.name: op for op in _all_ops if not op.request}
# Operations that start requests, or wait for them.
request_ops = {op.name: op for op in _all_ops if op.request}
_helpers = _read_table(lib.mpixla_helper_table, _HelperRow, _text, _code, _code)
HELPER_TARGETS = tuple(target_of(row.name) for row in _helpers)

lib.mpixla_instantiate_handler.restype = c_void_p
_instantiate = jax.ffi.pycapsule(lib.mpixla_instantiate_handler())

# One device handler serves all GPU platforms, and finds out at run time on which it is.
for _row in (*_all_ops, *_helpers):
    for _platform in ("cpu", "CUDA", "ROCM", "ONEAPI"):
        _execute = jax.ffi.pycapsule(_row.host_handler if _platform == "cpu" else _row.device_handler)
        _stages = {"execute": _execute} if _row in _helpers else {"instantiate": _instantiate, "execute": _execute}
        jax.ffi.register_ffi_target(target_of(_row.name), _stages, platform=_platform)


@public
def set_logging(enabled: bool) -> bool:
    """Turn the debug lines on or off, and return the previous setting.

    With debug lines on, each communication call prints one line on standard error when it starts and one when
    it ends, such as ``r0 | 9e37 | MPI_Allreduce with 3 items`` and
    ``r0 | 9e37 | MPI_Allreduce done with code 0 (1.2e-05s)``: the rank in ``MPI.COMM_WORLD``, a mark that tells
    the calls of a process apart, and the call. ``MPIXLA_DEBUG=1`` in the environment turns them on at import.

    Args:
        enabled: whether to print.

    Returns:
        True if debug lines were printed before.

    Example:
        >>> import mpixla
        >>> before = mpixla.set_logging(False)
        >>> mpixla.set_logging(before)
        False
    """
    return bool(lib.mpixla_logging_set(int(as_flag(enabled, "enabled", "set_logging"))))
