"""Programs that communicate are dispatched in C++: their effect is sealed in (core/seal.py) where JAX makes a module.

By then JAX has found in a program all that it wants to know; what it makes of the module's own effects is how it
dispatches the program. Not so for export, where whoever loads the program must know of the effect.
"""

from typing import Any

from ..core import jit
from ..core.effect import ordered
from ..core.seal import seal
from . import need, replace

LOST = "A call of a program that communicates takes some 0.1 ms, not microseconds, unless mpixla.jit compiles it."


def install() -> None:
    """Replaces the function that makes modules."""
    const_args = need("jax._src.core:jaxpr_const_args")
    need("jax._src.interpreters.mlir:LoweringParameters.for_export")

    @replace("jax._src.interpreters.pxla:_cached_lowering_to_hlo")  # a cache, which does not say what it takes
    def lower_sealed(
        lower: Any, jaxpr: Any, name: str, backend: Any, constants: int, *args: Any, **options: Any
    ) -> Any:
        if ordered in jaxpr.effects and not getattr(options.get("lowering_parameters"), "for_export", True):
            sealed = seal(jaxpr)
            # JAX makes large constants arguments (jax_use_simplified_jaxpr_constants) and expects as many here. One
            # that is used twice it counts twice, but not within an equation.
            if len(const_args(getattr(sealed, "jaxpr", sealed))) == constants:
                jaxpr = sealed
        return lower(jaxpr, name, backend, constants, *args, **options)

    jit.seals_itself = False
