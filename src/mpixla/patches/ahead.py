"""Python dispatch of programs with the effect that are compiled ahead of time, ``jit(f).lower(x).compile()``.

JAX's C++ dispatch passes no tokens. JAX does not use it for a jitted function with ordered effects, but does for one
that is compiled ahead of time.
"""

from typing import Any

from ..base.patching import replace_function
from ..jaxprs.effect import ordered

LOST = "A program without a result that was compiled ahead of time fails at its second call."


def install() -> None:
    """Replace the function that creates the C++ dispatch, which then returns None for programs that show the effect."""

    @replace_function("jax._src.interpreters.pxla:MeshExecutable.create_cpp_call", "self", "params")
    def create_if_silent(create: Any, self: Any, params: Any) -> Any:
        if ordered in getattr(self.unsafe_call, "ordered_effects", ()):
            return None
        return create(self, params)
