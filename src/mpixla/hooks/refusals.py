"""What JAX refuses, in sentences that name the way out: MPI's objects as arguments, and exports that communicate."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ..base.words import kind_of
from ..core import primitive
from ..mpi import native
from ..mpi.comm import reduction_of
from ..mpi.mpi import MPI
from . import UnfitError, replace

LOST = "JAX refuses MPI's objects as arguments, and exports that communicate, without the way out."


def install() -> None:
    """Replaces the function that finds the types of a jitted function's arguments, and has exports explained."""

    @replace("jax._src.pjit:_infer_input_type", "fun", "dbg_fn", "explicit_args")
    def types_of(infer: Any, fun: Any, debug_info: Callable[[], Any], arguments: Sequence[Any]) -> Any:
        refused = None
        try:
            return infer(fun, debug_info, arguments)
        except TypeError as e:
            refused = e
        for i, x in enumerate(arguments):
            if isinstance(x, (MPI.Op, MPI.Comm, MPI.Status)):
                names = debug_info().arg_names
                raise TypeError(_refusal(fun, names[i] if names else f"number {i}", x))
        raise refused

    primitive.before_export = _explain_exports


def _refusal(fun: Any, argument: str, x: Any) -> str:
    name = getattr(fun, "__name__", "the function")
    sentence = (
        f"argument {argument} of {name} is {kind_of(x)}, which jax.jit takes neither as an array nor, since it has no "
        "hash, as a static argument. Close over it"
    )
    if not argument.isidentifier() or not name.isidentifier():
        return f"{sentence}."
    function = f"mpixla.{name}" if getattr(fun, "__module__", "") == "mpixla" else name
    value = f"MPI.{reduction_of(x).name}" if isinstance(x, MPI.Op) and x.is_predefined else argument
    return f"{sentence}, or bind it first: jax.jit(functools.partial({function}, {argument}={value}))."


@functools.cache
def _explain_exports() -> None:
    """When the first program is exported: jax.export takes a while to import."""
    try:
        put = replace("jax._src.export._export:_check_module", "mod", "disabled_checks")
    except UnfitError:
        return  # JAX's words are right as well

    @put
    def check_module(check: Any, *args: Any, **options: Any) -> Any:
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
