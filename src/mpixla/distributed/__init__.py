"""JAX's own collectives over MPI: of ``jax.lax.psum``, of ``jax.shard_map``, and of ``jax.jit`` with sharded arrays.

Start the job with ``mpirun -n N python -m mpixla.distributed script.py``, and call :func:`initialize` first of all.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._initialize import initialize

__all__ = ["initialize"]


def __getattr__(name: str) -> Any:
    # Not at the import of this package, in which _trampoline.py must come before JAX.
    if name == "initialize":
        from ._initialize import initialize

        return initialize
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
