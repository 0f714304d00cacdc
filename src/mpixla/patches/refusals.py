"""Better messages for JAX's refusals: MPI's objects as arguments of jitted functions, exports that communicate."""

import functools
from typing import Any

from ..base.patching import UnfitError, find_in_jax, replace_function
from ..base.state import state
from ..base.words import kind_of
from ..mpi import native
from ..mpi.comm import reduction_of
from ..mpi.mpi import MPI

LOST = "JAX's refusals of MPI's objects as arguments, and of exports that communicate, do not say what to do instead."


def install() -> None:
    """Register refusals for MPI's types where JAX looks up the abstract value of an argument, and explain exports."""
    types = find_in_jax("jax._src.core:pytype_aval_mappings")
    types.update(dict.fromkeys((MPI.Op, MPI.Comm, MPI.Status), _refuse_argument))
    state.refusals = _explain_exports


def _refuse_argument(x: Any) -> Any:
    """Raise ValueError with advice for an MPI object that JAX gets as an array: JAX would change a TypeError's text."""
    name, example = "", "functools.partial(f, comm=comm)"
    if isinstance(x, MPI.Op) and x.is_predefined:
        name = f"MPI.{reduction_of(x).name}, "
        example = f"functools.partial(mpixla.allreduce, op={name[:-2]})"
    static = " mpixla.hashable_comm(comm) can be a static argument." if isinstance(x, MPI.Comm) else ""
    raise ValueError(
        f"JAX was given {name}{kind_of(x)}, as an array: as an argument of a function under jax.jit, for example. "
        "MPI's objects have no hash, so they cannot be static arguments of jax.jit either. Close over the object, or "
        f"bind it first: jax.jit({example}).{static}"
    )


@functools.cache
def _explain_exports() -> None:
    """Replace jax.export's check by one whose error names ``export_checks``; called when a program is exported."""
    try:
        put = replace_function("jax._src.export._export:_check_module", "mod", "disabled_checks")
    except UnfitError:
        return  # JAX's own message is right, too

    @put
    def check_module(check: Any, *args: Any, **options: Any) -> Any:
        """Check a module for export, and explain the error if it is about mpixla's calls."""
        try:
            return check(*args, **options)
        except ValueError as e:
            if f"custom_call @{native.target_of('')}" not in str(e):
                raise
        raise ValueError(
            "jax.export was given a program that communicates, which it writes only if it is told that mpixla's calls "
            "stay as they are. Call jax.export.export(fun, disabled_checks=mpixla.export_checks()), and import mpixla "
            "where the program is loaded (docs/other_tools.md)."
        )
