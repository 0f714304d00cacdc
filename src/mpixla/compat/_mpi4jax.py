"""mpi4jax: its functions with tokens (before 0.8) and without, in terms of mpixla's."""

import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
from mpi4py import MPI

import mpixla

from ..base.settings import is_on
from ..extend import gpu, leave_ranks_to_calls
from ._modules import make_module
from ._tokens import pass_on, take_token

_PACKAGE = "mpi4jax"
_OPERATIONS = (
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "bcast",
    "gather",
    "recv",
    "reduce",
    "scan",
    "scatter",
    "send",
    "sendrecv",
)


class HashableMPIType:
    """A hashable wrapper of an MPI object, for static arguments of jax.jit; operations accept it like the object."""

    def __init__(self, obj: Any) -> None:
        """Wrap a communicator, reduction or status object."""
        self.wrapped = obj

    def __hash__(self) -> int:
        return hash(self._hash_key())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HashableMPIType) and self._hash_key() == other._hash_key()

    def _hash_key(self) -> tuple[type, int]:
        # A status object is identified by its memory, which a receive fills; other objects by MPI's handle.
        is_status = isinstance(self.wrapped, MPI.Status)
        return type(self.wrapped), (MPI._addressof if is_status else MPI._handleof)(self.wrapped)


def wrap_as_hashable(obj: Any) -> HashableMPIType:
    """Return the object in a ``HashableMPIType``; the object itself if it is one already."""
    return obj if isinstance(obj, HashableMPIType) else HashableMPIType(obj)


def unpack_hashable(obj: Any) -> Any:
    """Return the object in a ``HashableMPIType``; any other object unchanged."""
    return obj.wrapped if isinstance(obj, HashableMPIType) else obj


_signature = functools.cache(inspect.signature)


@functools.cache
def _heed_environment() -> None:
    """Apply mpi4jax's environment variables once, at the first use: a program may set them before its import."""
    if is_on("MPI4JAX_USE_CUDA_MPI") or is_on("MPI4JAX_USE_SYCL_MPI"):
        gpu.use_mpi()
    if is_on("MPI4JAX_DEBUG"):
        mpixla.set_logging(True)


def _call_operation(name: str, args: Any, kwargs: Any) -> Any:
    """Call mpixla's ``name`` with mpi4jax's arguments; return its result, or raise TypeError if they do not fit."""
    _heed_environment()
    function = getattr(mpixla, name)
    try:
        bound = _signature(function).bind(*args, **kwargs)
    except TypeError as e:
        raise TypeError(f"{name}() {e}.") from None
    with leave_ranks_to_calls():
        # Arrays go by position: only such calls are programs (core/eager.py).
        named = {what: unpack_hashable(value) for what, value in bound.kwargs.items()}
        return function(*map(unpack_hashable, bound.args), **named)


def _make_without_token(name: str, module: str = _PACKAGE) -> Callable[..., Any]:
    """Return mpi4jax's operation without tokens (mpi4jax 0.8 or later), made of mpixla's of the same name."""

    @functools.wraps(getattr(mpixla, name))
    def call_operation(*args: Any, **kwargs: Any) -> Any:
        """Call mpixla's operation; return [] if it has no result; RuntimeError or TypeError if a token is passed."""
        if "token" in kwargs and module != _PACKAGE:
            raise TypeError(f"{name}() of {module} takes no token. mpi4jax.{name}() does.")
        if "token" in kwargs:
            raise RuntimeError(
                f"{name}() takes no token: this is mpi4jax 0.8 or later, which orders calls by itself. For programs "
                "with tokens there is mpixla.compat's 'mpi4jax-tokens'."
            )
        result = _call_operation(name, args, kwargs)
        return [] if result is None else result  # send and barrier: no results, as a list

    call_operation.__module__ = module  # where pickle finds it
    return call_operation


def _make_with_token(name: str) -> Callable[..., Any]:
    """Return mpi4jax's operation with tokens (before mpi4jax 0.8), made of mpixla's of the same name."""

    @functools.wraps(getattr(mpixla, name))
    def call_operation(*args: Any, token: Any = None, **kwargs: Any) -> Any:
        """Call mpixla's operation, and return (result, token), or for barrier and send the token alone."""
        token = take_token(token, name)
        result = _call_operation(name, args, kwargs)
        token = pass_on(token)
        return token if name in ("barrier", "send") else (result, token)

    call_operation.__module__ = _PACKAGE
    signature = inspect.signature(call_operation)
    parameters = [
        *signature.parameters.values(),
        inspect.Parameter("token", inspect.Parameter.KEYWORD_ONLY, default=None),
    ]
    call_operation.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return call_operation


def _set_logging(enable: bool) -> None:
    _heed_environment()
    mpixla.set_logging(bool(enable))


def _get_logging() -> bool:
    """Return whether debug lines are on."""
    _heed_environment()
    enabled = mpixla.set_logging(False)
    mpixla.set_logging(enabled)
    return enabled


def _wait_for_programs(platform: str = "cpu") -> None:
    """Wait for all programs that were dispatched."""
    jax.block_until_ready(jax.jit(lambda: jax.numpy.zeros(()))())
    jax.effects_barrier()


def make_modules(*, tokens: bool) -> dict[str, ModuleType]:
    """Make and return modules, by name, with the API of mpi4jax before 0.8 (``tokens``) or since, over mpixla."""
    ops = {name: (_make_with_token if tokens else _make_without_token)(name) for name in _OPERATIONS}
    support = {
        "has_cuda_support": mpixla.has_cuda_support,
        "has_hip_support": mpixla.has_rocm_support,
        "has_sycl_support": mpixla.has_sycl_support,
    }
    hashable = {f.__name__: f for f in (HashableMPIType, wrap_as_hashable, unpack_hashable)}
    logging = {"set_logging": _set_logging, "get_logging": _get_logging}
    version = "0.7.2" if tokens else "0.9.1"  # the newest
    contents: dict[str, dict[str, Any]] = {
        "mpi4jax": {**ops, **support, "__version__": version, "__all__": [*ops, *support]},
        "mpi4jax._src": {**ops, **support},
        "mpi4jax._src.comm": {"get_default_comm": mpixla.get_default_comm},
        "mpi4jax._src.flush": {"flush": _wait_for_programs},
        "mpi4jax._src.utils": {**hashable, **support, "get_default_comm": mpixla.get_default_comm},
        "mpi4jax._src.xla_bridge": logging,
        "mpi4jax._src.xla_bridge.mpi_xla_bridge": logging,
    }
    if tokens:
        module = "mpi4jax.experimental.notoken"
        without = {name: _make_without_token(name, module) for name in _OPERATIONS}
        # Its calls are in program order, whatever their tokens.
        contents["mpi4jax.experimental"] = {"auto_tokenize": lambda f, token=None: f}
        contents[module] = {**without, "__all__": list(without)}
    return {name: make_module(name, names) for name, names in contents.items()}
