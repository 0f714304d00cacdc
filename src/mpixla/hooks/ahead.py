"""What ``jit(f).lower(x).compile()`` returns is dispatched in Python, if it communicates and has no result.

JAX's C++ dispatch hands no tokens over. JAX asks for ordered effects before it takes it for a jitted function, but not
for one that was compiled ahead of time.
"""

from typing import Any

from ..core.effect import ordered
from . import replace

LOST = "A program without a result that was compiled ahead of time fails at its second call."


def install() -> None:
    """Replaces what makes the dispatch in C++."""

    @replace("jax._src.interpreters.pxla:MeshExecutable.create_cpp_call", "self", "params")
    def create_if_silent(create: Any, self: Any, params: Any) -> Any:
        if ordered in getattr(self.unsafe_call, "ordered_effects", ()):
            return None
        return create(self, params)
