"""A callback before a program first runs (_cliques.py).

XLA creates the communicators of its collectives in the middle of the first execution. JAX has no callback before that
which knows a program's devices. Every program is built by the function that is replaced here, and is first dispatched
in Python.
"""

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from ..base.patching import find_in_jax, replace_function

LOST = "mpixla.distributed is refused."


def install(prepare: Callable[[Any, tuple[Any, ...]], None]) -> None:
    """Call ``prepare`` with each program's executable, and its devices in XLA's order, before it first runs."""
    program = find_in_jax("jax._src.interpreters.pxla:ExecuteReplicated")
    find_in_jax("jax._src.interpreters.pxla:ExecuteReplicated.xla_executable")
    devices: WeakKeyDictionary[Any, tuple[Any, ...]] = WeakKeyDictionary()  # by program, for its first run

    class UnpreparedProgram(program):  # type: ignore[misc,valid-type]
        __slots__ = ()

        def __call__(self, *args: Any) -> Any:
            prepare(self.xla_executable, devices[self])
            self.__class__ = program
            return self(*args)

    @replace_function("jax._src.interpreters.pxla:UnloadedMeshExecutable.build_unsafe_call", "self")
    def build_unprepared(build: Any, self: Any) -> Any:
        """Build an executable's call by JAX's function, and set its class so that the first run calls ``prepare``."""
        call = build(self)
        devices[call] = tuple(self.device_list)
        call.__class__ = UnpreparedProgram
        return call
