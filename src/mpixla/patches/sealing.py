"""C++ dispatch of programs that communicate: their effect is hidden (core/seal.py) when JAX lowers them to a module.

By then JAX has analysed the program, and uses the module's effects only to choose the dispatch. A program for export
keeps its effect, for the process that loads it.
"""

from typing import Any

from ..base.patching import find_in_jax, replace_function
from ..base.state import state
from ..core.seal import seal_program
from ..jaxprs.effect import ordered

LOST = "A call of a program that communicates takes some 0.1 ms, not microseconds, unless mpixla.jit compiles it."


def install() -> None:
    """Replace JAX's function that lowers a program to a module by one that seals it first; set ``state.sealing``."""
    const_args = find_in_jax("jax._src.core:jaxpr_const_args")
    find_in_jax("jax._src.interpreters.mlir:LoweringParameters.for_export")

    @replace_function("jax._src.interpreters.pxla:_cached_lowering_to_hlo")  # a cache, without a signature
    def lower_sealed(
        lower: Any, jaxpr: Any, name: str, backend: Any, constants: int, *args: Any, **options: Any
    ) -> Any:
        """Lower a program, sealed if it communicates and is not for an export."""
        if ordered in jaxpr.effects and not getattr(options.get("lowering_parameters"), "for_export", True):
            sealed = seal_program(jaxpr)
            # JAX makes large constants arguments (jax_use_simplified_jaxpr_constants), and expects their number here.
            # It counts a constant for each equation that uses it, so sealing may change the number.
            if len(const_args(getattr(sealed, "jaxpr", sealed))) == constants:
                jaxpr = sealed
        return lower(jaxpr, name, backend, constants, *args, **options)

    state.sealing = True
