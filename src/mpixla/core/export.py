"""Support for jax.export."""

from typing import Any

from ..base.tracebacks import public
from ..mpi import native
from .primitive import LAYOUT_TARGET


@public
def export_checks() -> list[Any]:
    """Return the ``disabled_checks`` with which ``jax.export.export`` accepts programs that communicate.

    JAX exports programs only with custom calls that it knows to be stable, and must be given the names of all others.
    The custom calls of mpixla are stable. The process that loads the program must import mpixla first.
    docs/other_tools.md says more.

    Returns:
        A list of ``jax.export.DisabledSafetyCheck``, one for each custom call of mpixla, and one for XLA's
        ``LayoutConstraint``, which stands before some of them.

    Example:
        >>> import jax, jax.numpy as jnp, mpixla
        >>> from jax import export
        >>> from mpi4py import MPI
        >>> program = jax.jit(lambda x: mpixla.allreduce(x, op=MPI.SUM))
        >>> exported = export.export(program, disabled_checks=mpixla.export_checks())(jnp.ones(3))
        >>> exported.call(jnp.ones(3)).shape
        (3,)
    """
    from jax import export  # takes a while to import, and few programs need it

    targets = [op.target for op in (*native.ops.values(), *native.request_ops.values())]
    targets += [*native.HELPER_TARGETS, LAYOUT_TARGET]
    return [export.DisabledSafetyCheck.custom_call(target) for target in targets]
