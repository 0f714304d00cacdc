"""What is to be done before a program first runs (distributed/_cliques.py).

XLA makes what its collectives need in the middle of the first execution. JAX has no place before that where it is known
which devices a program is for. Every program is made here, and is always first dispatched in Python.
"""

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from . import replace

LOST = "mpixla.distributed is refused."
_BUILD = "jax._src.interpreters.pxla:UnloadedMeshExecutable.build_unsafe_call"
NEEDS = {
    _BUILD: ("self",),
    "jax._src.interpreters.pxla:ExecuteReplicated.__call__": ("self",),
    "jax._src.interpreters.pxla:ExecuteReplicated.xla_executable": None,
}


def install(prepare: Callable[[Any, tuple[Any, ...]], None]) -> None:
    """Calls ``prepare`` with each program's executable, and its devices in XLA's order, before it first runs."""
    from jax._src.interpreters import pxla

    devices: WeakKeyDictionary[Any, tuple[Any, ...]] = WeakKeyDictionary()  # of programs that did not run yet

    class Unprepared(pxla.ExecuteReplicated):
        __slots__ = ()

        def __call__(self, *args: Any) -> Any:
            prepare(self.xla_executable, devices[self])
            self.__class__ = pxla.ExecuteReplicated  # type: ignore[assignment]
            return self(*args)

    @replace(_BUILD)
    def build_unprepared(build: Any, self: Any) -> Any:
        call = build(self)
        devices[call] = tuple(self.device_list)
        call.__class__ = Unprepared
        return call
